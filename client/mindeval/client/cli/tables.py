"""Text for people: aligned tables, numbers and sizes."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from datetime import datetime

import yaml

from mindeval.client._results import (
    Checkpoint,
    CheckpointDiff,
    Dataset,
    EvaluationResult,
    Failure,
    Suite,
    TensorDifference,
)

_LEFT, _RIGHT = "<", ">"
_SHOWN_METRICS = 3


def table(header: Sequence[str], rows: Sequence[Sequence[str]], alignment: str) -> str:
    """Columns two spaces apart.

    Args:
        header: Titles.
        rows: Cells.
        alignment: "<" or ">" for each column.
    """
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(display_width(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(_pad(cell, width, side) for cell, width, side in zip(line, widths, alignment)).rstrip()
        for line in lines
    )


def display_width(text: str) -> int:
    """Columns that a text takes on a terminal: Chinese characters two, combining marks none."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def evaluation_text(result: EvaluationResult) -> str:
    """An evaluation with its values, and why it failed if it did."""
    reason = f"superseded by {result.superseded_by}" if result.superseded_by else ""
    if not reason and result.error is not None:
        reason = f"error: {result.error}"
    return "\n".join([outcome_text(result), *([reason] if reason else [])])


def outcome_text(result: EvaluationResult) -> str:
    """An evaluation with its values, each with its standard error, and how the time was spent."""
    lines = [f"{result.name}  {result.state}{_origin(result)}"]
    rows = [
        [task.name, name, _value(str(metric)), _error(str(metric)), f"{metric.count:,}", " ".join(metric.flags)]
        for task in result.tasks
        for name, metric in task.metrics.items()
    ]
    if rows:
        lines += ["", table(("task", "metric", "value", "± error", "count", ""), rows, "<<>>><")]
    for task in result.tasks:
        if task.error is not None and task.error != result.error:
            lines.append(f"task {task.name} failed: {task.error}")
        elif task.failed_count:
            lines.append(f"task {task.name}: {task.failed_count:,} of {task.expected_count:,} samples failed")
    spent = result.statistics
    # An attempt that did not end by itself reports no times, only its device.
    if spent is not None and spent.load_seconds + spent.compute_seconds > 0:
        warm = "warm" if spent.warm else f"{spent.compiled_graphs} graphs compiled"
        lines += [
            "",
            f"{spent.device}: load {spent.load_seconds:.2f} s, compile {spent.compile_seconds:.2f} s, "
            f"compute {spent.compute_seconds:.2f} s ({warm})",
        ]
    return "\n".join(lines)


def evaluations_text(results: Sequence[EvaluationResult]) -> str:
    """Evaluations, one a line."""
    if not results:
        return "no evaluations"
    rows = [
        [
            short(result.name),
            result.state,
            _suite_id(result.suite),
            result.run or "-",
            str(result.step) if result.run else "-",
            local_time(result.create_time),
            _summary(result),
        ]
        for result in results
    ]
    return table(("name", "state", "suite", "run", "step", "created", "results"), rows, "<<<<><<")


def suites_text(suites: Sequence[Suite]) -> str:
    """Suites, one a line."""
    if not suites:
        return "no suites"
    rows = [
        [suite.id, _version(suite.version), ", ".join(task.name for task in suite.tasks), suite.description]
        for suite in suites
    ]
    return table(("name", "version", "tasks", "description"), rows, "<<<<")


def suite_text(suite: Suite) -> str:
    """A suite as a definition that `suite put` takes."""
    tasks = [
        {
            "name": task.name,
            "type": task.type,
            "dataset": task.dataset,
            **({"metrics": list(task.metrics)} if task.metrics else {}),
            **task.settings,
        }
        for task in suite.tasks
    ]
    definition = {"name": suite.id, **({"description": suite.description} if suite.description else {}), "tasks": tasks}
    text: str = yaml.safe_dump(definition, sort_keys=False, allow_unicode=True)
    return f"# {suite.version}\n{text}".rstrip()


def datasets_text(datasets: Sequence[Dataset]) -> str:
    """Datasets, one a line."""
    if not datasets:
        return "no datasets"
    rows = [
        [
            dataset.id,
            _version(dataset.version),
            dataset.format,
            dataset.language,
            str(len(dataset.files)),
            size(sum(file[1] for file in dataset.files)),
        ]
        for dataset in datasets
    ]
    return table(("name", "version", "format", "language", "files", "size"), rows, "<<<<>>")


def dataset_text(dataset: Dataset) -> str:
    """A dataset with its files."""
    head = f"{dataset.version}\n{dataset.format}, {dataset.language}"
    if dataset.text_field:
        head += f", text in field {dataset.text_field!r}"
    if dataset.padding_token is not None:
        head += f", padding token {dataset.padding_token}"
    rows = [[path, size(size_bytes), digest] for path, size_bytes, digest in dataset.files]
    return f"{head}\n\n{table(('file', 'size', 'digest'), rows, '<><')}"


def checkpoints_text(checkpoints: Sequence[Checkpoint]) -> str:
    """Checkpoints, one a line."""
    if not checkpoints:
        return "no checkpoints"
    rows = [
        [
            _digits(item.digest),
            item.state + (" pinned" if item.pinned else ""),
            _steps(item.steps[:1]) + (f" +{len(item.steps) - 1}" if len(item.steps) > 1 else ""),
            size(item.size_bytes),
            size(item.own_size_bytes),
            local_time(item.use_time),
        ]
        for item in checkpoints
    ]
    return table(("checkpoint", "state", "run@step", "size", "own", "used"), rows, "<<<>><")


def checkpoint_text(item: Checkpoint) -> str:
    """A checkpoint, one property a line."""
    rows = [
        ["name", item.name],
        ["digest", item.digest],
        ["state", item.state + (", pinned" if item.pinned else "")],
        ["size", f"{size(item.size_bytes)}, of which {size(item.own_size_bytes)} are in no other checkpoint"],
        ["tensors", f"{item.tensor_count:,}"],
        ["steps", _steps(item.steps)],
        ["created", local_time(item.create_time)],
        ["used", local_time(item.use_time)],
    ]
    return "\n".join(f"{name:<8} {value}" for name, value in rows)


def checkpoint_diff_text(diff: CheckpointDiff) -> str:
    """Tensors that differ, the largest relative change first."""
    head = f"{diff.different_count:,} tensors differ, {diff.equal_count:,} are the same"
    if not diff.differences:
        return head
    ordered = sorted(diff.differences, key=lambda entry: (-_rank(entry), entry.name))
    rows = [
        [
            entry.name,
            entry.change.lower(),
            "-" if entry.relative_change is None else f"{entry.relative_change:.3g}",
            "-" if entry.largest_difference is None else f"{entry.largest_difference:.3g}",
            size(entry.size_bytes),
        ]
        for entry in ordered
    ]
    return f"{head}\n\n{table(('tensor', 'change', 'relative', 'largest', 'size'), rows, '<<>>>')}"


def _rank(entry: TensorDifference) -> float:
    # Without a number: another shape, added, removed. These come first; NaN too, which means that weights are broken.
    if entry.relative_change is None or math.isnan(entry.relative_change):
        return math.inf
    return entry.relative_change


def _steps(steps: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{run}@{step}" for run, step in steps) or "-"


def _digits(digest: str) -> str:
    return digest.rsplit(":", 1)[-1][:12]


def failure_of(result: EvaluationResult) -> Failure:
    """Why an evaluation did not succeed."""
    if result.error is not None:
        return result.error
    if result.state == "SUPERSEDED":
        return Failure("SUPERSEDED", f"a newer step took its place: {result.superseded_by}")
    return Failure(result.state, f"the evaluation is {result.state}")


def size(size_bytes: float) -> str:
    """Bytes with a unit (powers of 1000), such as "12.3 MB"."""
    if size_bytes < 1000:
        return f"{size_bytes:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        size_bytes /= 1000
        if size_bytes < 999.95 or unit == "TB":
            break
    return f"{size_bytes:.1f} {unit}"


def short(name: str) -> str:
    """Id of a full name."""
    return name.rsplit("/", 1)[-1]


def local_time(time: datetime | None) -> str:
    """A time on this machine's clock, to the second."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S") if time else "-"


def _origin(result: EvaluationResult) -> str:
    if not result.run:
        return ""
    epoch = f", epoch {result.epoch:g}" if result.epoch else ""
    return f"  run {result.run}, step {result.step}{epoch}"


def _summary(result: EvaluationResult) -> str:
    if result.error is not None:
        return result.error.reason
    shown = [f"{name} {metric}" for name, metric in list(result.metrics.items())[:_SHOWN_METRICS]]
    return "  ".join(shown) + ("  ..." if len(result.metrics) > _SHOWN_METRICS else "")


def _suite_id(name: str) -> str:
    parts = name.split("/")
    return parts[3] if len(parts) >= 4 else name


def _version(name: str) -> str:
    return name.rsplit("/", 1)[-1][:12]


def _value(text: str) -> str:
    return text.split(" ± ")[0]


def _error(text: str) -> str:
    return text.split(" ± ")[1] if " ± " in text else "-"


def _pad(text: str, width: int, side: str) -> str:
    space = " " * (width - display_width(text))
    return space + text if side == _RIGHT else text + space

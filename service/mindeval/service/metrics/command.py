"""The command line of the metrics: list the families, and check that one keeps its promises."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from mindeval.service.metrics.catalog import FAMILY_METRICS
from mindeval.service.metrics.checking import CheckFailure, CheckReport, check_family
from mindeval.service.metrics.custom import installed_families
from mindeval.service.metrics.errors import MetricError
from mindeval.service.metrics.registry import state_type
from mindeval.service.metrics.replays import CHECKS

_LIST_WIDTH = 64
EXIT_PASSED, EXIT_FAILED, EXIT_USAGE = 0, 1, 2
_DESCRIPTION = """\
Families of metrics: those of MindEval, and those that installed packages offer under the entry point group
"mindeval.metrics".
"""
_EPILOG = """\
exit codes:
  0  done; every check passed
  1  a check failed
  2  wrong usage, or no such family
"""


class _Parser(argparse.ArgumentParser):
    """Errors in one line."""

    def error(self, message: str) -> NoReturn:
        print(f"mindeval: error: {message}; see `{self.prog} --help` [USAGE]", file=sys.stderr)
        raise SystemExit(EXIT_USAGE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `mindeval metrics` with these arguments (those of the process when None); returns its exit code."""
    options = _parser().parse_args(arguments)
    code: int = options.run(options)
    return code


def _parser() -> argparse.ArgumentParser:
    shared = _Parser(add_help=False)
    shared.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser = _Parser(
        prog="mindeval metrics",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=_Parser)
    listing = actions.add_parser("list", help="list the families and their metrics", parents=[shared])
    listing.set_defaults(run=_list)
    check = actions.add_parser("check", help="replay a family's example in many ways", parents=[shared])
    check.add_argument("family", metavar="NAME", help="a family of `mindeval metrics list`")
    check.add_argument(
        "--settings", type=_settings, default={}, metavar="JSON", help="settings, such as '{\"scale\": 2}'"
    )
    check.add_argument("--trials", type=_positive, default=20, metavar="N", help="replays of each check (default 20)")
    check.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the replays (default 0)")
    check.set_defaults(run=_check)
    return parser


def _list(options: argparse.Namespace) -> int:
    families = [_family(name) for name in (*FAMILY_METRICS, *_custom_families())]
    if options.json:
        print(json.dumps({"families": families}, indent=2))
        return EXIT_PASSED
    lines = [("FAMILY", "SOURCE", "MEMORY", "METRICS")]
    for family in families:
        what = family.get("error") or ", ".join(metric["name"] for metric in family["metrics"])
        first, *more = textwrap.wrap(what, _LIST_WIDTH)
        lines.append((family["name"], family["source"], family["memory"], first))
        lines += [("", "", "", line) for line in more]
    _print_table(lines)
    return EXIT_PASSED


def _family(name: str) -> dict[str, Any]:
    source = "built in" if name in FAMILY_METRICS else "installed"
    try:
        kind = state_type(name)
    except MetricError as error:
        return {"name": name, "source": source, "memory": "-", "metrics": [], "error": str(error)}
    return {
        "name": name,
        "source": source,
        "memory": "a row a sample" if kind.exact_over_samples else "bounded",
        "metrics": [{"name": key, "higher_is_better": way} for key, way in kind.directions().items()],
    }


def _check(options: argparse.Namespace) -> int:
    family = options.family
    try:
        report = check_family(family, options.settings, trials=options.trials, seed=options.seed)
    except MetricError as error:
        of = [name for name, metrics in FAMILY_METRICS.items() if family in metrics]
        hint = f"; {family!r} is a metric of {', '.join(of)}" if of else ""
        return _refuse(f"{error}{hint}", error.reason.upper())
    except NotImplementedError as error:
        return _refuse(f"{error}; give the class a method `example_batch`", "NO_EXAMPLE")
    except Exception as error:  # the example is the metric's own code, which may raise anything
        return _refuse(f"the example of {family!r}: {type(error).__name__}: {error}", "BAD_EXAMPLE")
    rows = _rows(report)
    if options.json:
        document = {
            "family": family,
            "settings": options.settings,
            "samples": report.samples,
            "trials": options.trials,
            "seed": options.seed,
            "passed": report.passed,
            "checks": rows,
        }
        print(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        _print_report(family, report, rows)
    return EXIT_PASSED if report.passed else EXIT_FAILED


def _rows(report: CheckReport) -> list[dict[str, Any]]:
    failures = {failure.check: failure for failure in report.failures}
    rows = []
    for check in CHECKS:
        row: dict[str, Any] = {"name": check.name, "promise": check.promise}
        failure = failures.get(check.name)
        if failure is not None:
            row.update(status="failed", detail=failure.detail, trial=failure.trial, example=failure.example)
        else:
            row["status"] = "passed" if check.name in report.checks else "skipped"
        rows.append(row)
    return rows


def _print_report(family: str, report: CheckReport, rows: Sequence[Mapping[str, Any]]) -> None:
    words = {"passed": "pass", "failed": "FAIL", "skipped": "-"}
    _print_table([("CHECK", "RESULT", "PROMISE"), *((r["name"], words[r["status"]], r["promise"]) for r in rows)])
    if any(row["status"] == "skipped" for row in rows):
        print("\n-: not asked of a state of bounded memory, which refuses to merge states that share samples")
    for failure in report.failures:
        print(f"\n{failure.check}: {failure.detail}")
        if failure.example:
            print(f"  states made from the updates {_example_text(failure)} (positions in the example batch)")
    passed = sum(row["status"] == "passed" for row in rows)
    verdict = "keeps its promises" if report.passed else "breaks its promises"
    print(f"\n{family} {verdict}: {passed} of {len(report.checks)} checks passed on {report.samples} samples")


def _example_text(failure: CheckFailure) -> str:
    """The updates of each state: `[0 1][2]` is a state of two updates."""
    states = ["".join(f"[{' '.join(map(str, update))}]" for update in updates) for updates in failure.example]
    return ", ".join(dict.fromkeys(states))


def _print_table(lines: Sequence[Sequence[str]]) -> None:
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]) - 1)]
    for line in lines:
        print("  ".join([*(text.ljust(width) for text, width in zip(line, widths)), line[-1]]))


def _custom_families() -> tuple[str, ...]:
    return tuple(name for name in installed_families() if name not in FAMILY_METRICS)


def _refuse(message: str, reason: str) -> int:
    print(f"mindeval: error: {message} [{reason}]", file=sys.stderr)
    return EXIT_USAGE


def _settings(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return found


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 1")
    return int(text)

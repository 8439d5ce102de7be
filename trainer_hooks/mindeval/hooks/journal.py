"""The two logs of a run: a table for people and plotting tools, and everything as JSON lines.

Both are appended to, so that a resumed job continues them, and flushed at every line. A log that cannot be written
(disk full) is given up with one warning; it is never a reason to disturb training.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import time
from pathlib import Path
from typing import IO, Any

from mindeval.hooks.summary import EvaluationRecord

logger = logging.getLogger("mindeval")

TABLE_FILE = "metrics.tsv"
EVENTS_FILE = "events.jsonl"
TABLE_HEADER = "Epoch\tTrain_Loss\tVal_Loss\tPPL\tStep_Time(ms)"


class Journal:
    """Writes both logs; writes nothing when there is no folder.

    Args:
        folder: Where they are; made when missing.
        monitor: "task/metric" of the stopping rule; its task is the one whose loss and perplexity fill the table.
    """

    def __init__(self, folder: Path | None, monitor: str = "") -> None:
        self._task = monitor.rpartition("/")[0]
        self._table: IO[str] | None = None
        self._events: IO[str] | None = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._table = _open_table(folder / TABLE_FILE)
            self._events = _open_for_lines(folder / EVENTS_FILE)

    def event(self, kind: str, **fields: Any) -> None:
        """Adds a line to events.jsonl: `time` (seconds since 1970), `event` and the fields."""
        if self._events is not None:
            entry = _plain({"time": round(time.time(), 3), "event": kind, **fields})
            line = json.dumps(entry, separators=(",", ":"), allow_nan=False)
            self._events = _write_line(self._events, line)

    def row(self, record: EvaluationRecord) -> None:
        """Adds a succeeded evaluation to metrics.tsv; NaN stands for what is not known."""
        if self._table is None:
            return
        loss = _of_task(record, self._task, "loss")
        perplexity = _of_task(record, self._task, "ppl", "token_ppl")
        if perplexity is None and loss is not None:
            perplexity = math.exp(loss) if loss < 700 else math.inf
        cells = [f"{record.epoch:.4g}", *(_cell(v) for v in (record.train_loss, loss, perplexity))]
        cells.append("nan" if record.step_time_ms is None else f"{record.step_time_ms:.2f}")
        self._table = _write_line(self._table, "\t".join(cells))

    def close(self) -> None:
        """Closes the files."""
        for stream in (self._table, self._events):
            if stream is not None:
                stream.close()
        self._table = self._events = None


def _of_task(record: EvaluationRecord, task: str, *metrics: str) -> float | None:
    for metric in metrics:
        value = record.value(f"{task}/{metric}")
        if value is not None:
            return value
    return record.find(*metrics)


def _cell(value: float | None) -> str:
    return "nan" if value is None else f"{value:.6f}"


def _plain(value: Any) -> Any:
    """The value with "nan", "inf" and "-inf" as text: JSON has no such numbers, and many readers refuse the file."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _open_table(path: Path) -> IO[str]:
    try:
        with path.open(encoding="utf-8") as table:
            ours = table.readline().rstrip("\n") == TABLE_HEADER
    except FileNotFoundError:
        ours = False
    else:
        if not ours and path.stat().st_size:
            # Somebody else's table of the same name is theirs to keep.
            path.rename(path.with_name(f"{path.name}.{time.strftime('%Y%m%d-%H%M%S')}"))
    stream = _open_for_lines(path)
    if not ours:
        _write_line(stream, TABLE_HEADER)
    return stream


def _open_for_lines(path: Path) -> IO[str]:
    with path.open("a+b") as tail:
        size = tail.seek(0, os.SEEK_END)
        if size:
            tail.seek(size - 1)
            if tail.read(1) != b"\n":
                tail.write(b"\n")  # the job before was cut off within a line
    return path.open("a", encoding="utf-8")


def _write_line(stream: IO[str], line: str) -> IO[str] | None:
    try:
        stream.write(line + "\n")
        stream.flush()
    except OSError as error:
        logger.warning("%s cannot be written any more (%s); training goes on without it", stream.name, error)
        with contextlib.suppress(OSError):
            stream.close()
        return None
    return stream

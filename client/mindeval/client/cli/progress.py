"""Progress on standard error: one line that is drawn again on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import shutil
import time
from typing import TextIO

_REDRAW_S = 0.1
_LINE_S = 10.0
_BAR_CELLS = 24


class ProgressDisplay:
    """Shows nothing; the base of the displays that do."""

    def say(self, text: str) -> None:
        """Something happened, once."""

    def update(self, label: str, done: float, total: float, unit: str, note: str = "") -> None:
        """Something goes on.

        Args:
            label: What, such as "upload" or "val scoring". A new label starts anew.
            done: Units done.
            total: Units in all; 0 when nobody knows.
            unit: "B" for bytes, else what is counted, such as "tokens".
            note: What else there is to say.
        """

    def close(self) -> None:
        """Leaves a clean line behind. Repeating it is harmless."""


class _Measured(ProgressDisplay):
    """Keeps what rates and times left are computed from."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._label = ""
        self._began = 0.0
        self._first = 0.0
        self._shown_at = 0.0

    def _start(self, label: str, done: float) -> bool:
        """Whether the label is new."""
        if label == self._label:
            return False
        self._label, self._began, self._first, self._shown_at = label, time.monotonic(), done, 0.0
        return True

    def _is_due(self, interval_s: float, at_end: bool) -> bool:
        now = time.monotonic()
        if not at_end and now - self._shown_at < interval_s:
            return False
        self._shown_at = now
        return True

    def _describe(self, done: float, total: float, unit: str, note: str) -> str:
        elapsed = time.monotonic() - self._began
        rate = (done - self._first) / elapsed if elapsed > 0.2 else 0.0
        parts = [f"{_amount(done, unit)}/{_amount(total, unit)}" if total else _amount(done, unit)]
        if rate > 0:
            parts.append(f"{_amount(rate, unit)}/s")
            if total > done:
                parts.append(f"{clock((total - done) / rate)} left")
        if note:
            parts.append(note)
        return "  ".join(parts)


class TerminalDisplay(_Measured):
    """A bar."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._drawn = 0

    def say(self, text: str) -> None:
        """Prints the text in a line of its own."""
        self._erase()
        print(text, file=self._stream, flush=True)

    def update(self, label: str, done: float, total: float, unit: str, note: str = "") -> None:
        """Draws the bar, at most ten times a second."""
        self._start(label, done)
        if not self._is_due(_REDRAW_S, bool(total) and done >= total):
            return
        share = min(done / total, 1.0) if total else 0.0
        filled = int(share * _BAR_CELLS)
        bar = f"[{'#' * filled}{'-' * (_BAR_CELLS - filled)}] {share:4.0%}  " if total else ""
        line = f"{label}  {bar}{self._describe(done, total, unit, note)}"[
            : max(shutil.get_terminal_size().columns - 1, 20)
        ]
        print("\r" + line.ljust(self._drawn), end="", file=self._stream, flush=True)
        self._drawn = len(line)

    def close(self) -> None:
        """Erases the bar."""
        self._erase()

    def _erase(self) -> None:
        if self._drawn:
            print("\r" + " " * self._drawn + "\r", end="", file=self._stream, flush=True)
            self._drawn = 0


class LineDisplay(_Measured):
    """Plain lines, for logs."""

    def say(self, text: str) -> None:
        """Prints the text."""
        print(text, file=self._stream, flush=True)

    def update(self, label: str, done: float, total: float, unit: str, note: str = "") -> None:
        """Prints a line every ten seconds; short work prints none, its end is told by `say`."""
        if self._start(label, done):
            self._shown_at = time.monotonic()
        elif self._is_due(_LINE_S, at_end=False):
            print(f"{label}: {self._describe(done, total, unit, note)}", file=self._stream, flush=True)


def make_display(stream: TextIO, quiet: bool) -> ProgressDisplay:
    """The display that suits a stream."""
    if quiet:
        return ProgressDisplay()
    return TerminalDisplay(stream) if stream.isatty() else LineDisplay(stream)


def clock(seconds: float) -> str:
    """Seconds as "0:07" or "2:03:45"."""
    whole = int(seconds + 0.5)
    hours, rest = divmod(whole, 3600)
    minutes, rest = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _amount(value: float, unit: str) -> str:
    if unit != "B":
        return f"{value:,.0f} {unit}".rstrip()
    from mindeval.client.cli.tables import size

    return size(value)

"""JSON lines from and to the trainer, on threads of their own, so that a slow trainer never stops the loop."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

MAX_LINE_BYTES = 16 << 20
_READ_BYTES = 1 << 16


class LineReader:
    """Reads lines from a descriptor of any kind (pipe, file, terminal)."""

    def __init__(self, descriptor: int, loop: asyncio.AbstractEventLoop) -> None:
        self._descriptor = descriptor
        self._loop = loop
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        threading.Thread(target=self._read, name="mindeval-stdin", daemon=True).start()

    async def next_line(self) -> bytes | None:
        """The next line that is not blank, without its end; None at the end of the file.

        A line over MAX_LINE_BYTES comes cut to one byte more than that.
        """
        return await self._lines.get()

    def _read(self) -> None:
        # os.read and not sys.stdin: a thread that waits inside a buffered reader cannot be left behind at exit.
        line = bytearray()
        while True:
            try:
                data = os.read(self._descriptor, _READ_BYTES)
            except OSError:
                data = b""
            first, *others = data.split(b"\n")
            _extend(line, first)
            for other in others:
                self._hand_over(line)
                line = bytearray()
                _extend(line, other)
            if not data:
                self._hand_over(line)
                self._put(None)
                return

    def _hand_over(self, line: bytearray) -> None:
        if content := bytes(line.strip()):
            self._put(content)

    def _put(self, line: bytes | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)


def _extend(line: bytearray, data: bytes) -> None:
    # One byte over the limit is kept, so that a line that was cut cannot pass for a whole one.
    line += data[: MAX_LINE_BYTES + 1 - len(line)]


class LineWriter:
    """Writes messages to a descriptor; never blocks the caller."""

    def __init__(self, descriptor: int, on_broken: Callable[[], None]) -> None:
        """Starts the thread.

        Args:
            descriptor: Where the lines go.
            on_broken: Called once, from the thread, when nobody reads them any more.
        """
        self._descriptor = descriptor
        self._on_broken = on_broken
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="mindeval-stdout", daemon=True)
        self._thread.start()

    def send(self, kind: str, **fields: Any) -> None:
        """Queues one message."""
        self._lines.put(json.dumps({"type": kind, **fields}, ensure_ascii=False).encode("utf-8", "replace") + b"\n")

    def close(self, timeout_s: float) -> None:
        """Waits until everything was written, at most so long."""
        self._lines.put(None)
        self._thread.join(timeout_s)

    def _write(self) -> None:
        while True:
            line = self._lines.get()
            if line is None:
                return
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except OSError:
                self._on_broken()
                return

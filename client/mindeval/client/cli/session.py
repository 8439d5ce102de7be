"""What every command has: the client, the progress display, and ways to print."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mindeval.client.cli.parser import DEFAULT_ENDPOINT
from mindeval.client.cli.progress import ProgressDisplay, make_display
from mindeval.formats.errors import FormatError

if TYPE_CHECKING:
    from mindeval.client._async_client import AsyncClient

_CONNECT_TIMEOUT_S = 3.0
_TIMEOUT_S = 60.0


class Session:
    """One run of the command.

    Attributes:
        progress: Shows progress on standard error.
        interrupt_hint: What to add when Ctrl-C ends the command, such as how to go on watching.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._client: AsyncClient | None = None
        self.progress: ProgressDisplay = make_display(sys.stderr, options.quiet)
        self.interrupt_hint = ""

    async def __aenter__(self) -> Session:
        from mindeval.client._async_client import AsyncClient
        from mindeval.client._channel import TlsFiles

        options = self._options
        self._client = AsyncClient(
            options.endpoint,
            project=options.project,
            token=_token(options.token_file),
            tls=TlsFiles(ca_file=options.tls_ca) if options.tls or options.tls_ca else None,
            connect_timeout_s=_CONNECT_TIMEOUT_S,
            timeout_s=_TIMEOUT_S,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.progress.close()
        if self._client is not None:
            await self._client.close()

    @property
    def client(self) -> AsyncClient:
        """The client; open within `async with`."""
        assert self._client is not None
        return self._client

    def address_options(self) -> str:
        """Options that a further command needs to reach the same project, followed by a space."""
        options = self._options
        words = []
        if options.endpoint != (os.environ.get("MINDEVAL_ENDPOINT") or DEFAULT_ENDPOINT):
            words.append(f"--endpoint {options.endpoint} ")
        if options.project != (os.environ.get("MINDEVAL_PROJECT") or "default"):
            words.append(f"--project {options.project} ")
        return "".join(words)

    def show(self, document: Mapping[str, Any], text: str) -> None:
        """Prints a result: the document with --json, the text otherwise."""
        self.progress.close()
        if self._options.json:
            print(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))
        elif text:
            print(text)

    def report(self, document: Mapping[str, Any], text: str) -> None:
        """Prints one of many results as it comes: a line of JSON with --json, the text otherwise."""
        self.progress.close()
        if self._options.json:
            text = json.dumps(document, ensure_ascii=False, allow_nan=False)
        print(text, flush=True)

    def fail(self, reason: str, message: str, metadata: Mapping[str, str], *, document: bool = True) -> None:
        """Prints an error: one line on standard error and, with --json, a document unless there is one already."""
        line = " ".join(message.split())
        print(f"mindeval: error: {line} [{reason}]", file=sys.stderr)
        if self._options.json and document:
            error = {"reason": reason, "message": line, "metadata": dict(metadata)}
            print(json.dumps({"error": error}, indent=2, ensure_ascii=False))


def _token(path: str | None) -> str | None:
    if path is None:
        return os.environ.get("MINDEVAL_TOKEN") or None
    try:
        with open(path, encoding="utf-8") as file:
            token = file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror.lower() if isinstance(error, OSError) and error.strerror else "not a text file"
        raise FormatError("INVALID_FIELD", f"{path}: {what}", {"field": "token-file"}) from None
    if not token:
        raise FormatError(
            "INVALID_FIELD", f"{path}: the file is empty; it should hold a token", {"field": "token-file"}
        )
    return token

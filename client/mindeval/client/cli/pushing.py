"""`mindeval push`: once, or each checkpoint that a training job saves."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path
from typing import Any

from mindeval.client._checkpoints import is_uri
from mindeval.client._errors import AccessDenied, ServiceError
from mindeval.client._results import EvaluationResult, PushedCheckpoint, PushProgress
from mindeval.client._watched_folder import NewCheckpoint, PushedBefore, WatchedFolder, state_path
from mindeval.client.cli import documents, tables
from mindeval.client.cli.session import Session
from mindeval.formats.errors import FormatError

_RETRY_S = 10.0


async def push(session: Session, options: argparse.Namespace) -> int:
    """Pushes, registers and, when asked to, creates an evaluation."""
    if options.step is not None and options.run_id is None:
        raise FormatError("INVALID_FIELD", "step: say of which run, with --run", {"field": "run"})
    if options.step is not None and options.watch:
        raise FormatError("INVALID_FIELD", "step: with --watch, the files tell it", {"field": "step"})
    if options.suite:
        await session.client.get_suite(options.suite)  # before a large checkpoint travels for nothing
    if options.watch:
        return await _Watch(session, options).run()
    session.interrupt_hint = "; what was sent is kept, push again to go on"
    document, text = await _push_one(session, options, options.checkpoint, options.step, options.epoch)
    session.show(document, text)
    return 0


class Uploading:
    """Shows a push."""

    def __init__(self, session: Session, label: str = "push") -> None:
        self._display = session.progress
        self._label = label

    def __call__(self, progress: PushProgress) -> None:
        """Draws it."""
        done = progress.bytes_sent + progress.bytes_saved
        note = f"sent {tables.size(progress.bytes_sent)}, saved {tables.size(progress.bytes_saved)}"
        self._display.update(self._label, done, progress.bytes_total, "B", note)


def pushed_text(pushed: PushedCheckpoint) -> str:
    """A push in a line."""
    saved = max(pushed.bytes_total - pushed.bytes_sent, 0)
    rate = f" ({tables.size(pushed.bytes_sent / pushed.seconds)}/s)" if pushed.bytes_sent and pushed.seconds else ""
    text = f"pushed {tables.size(pushed.bytes_sent)} in {pushed.seconds:.1f} s{rate}"
    if saved > 0:
        text += f", {tables.size(saved)} were there already"
    return f"{text}: {pushed.digest}"


def watch_command(session: Session, name: str) -> str:
    """The command that follows an evaluation."""
    return f"mindeval {session.address_options()}watch {tables.short(name)}"


async def _push_one(
    session: Session, options: argparse.Namespace, checkpoint: Any, step: int | None, epoch: float
) -> tuple[dict[str, Any], str]:
    """Pushes one checkpoint (or has the service read it); its document and text."""
    client, run = session.client, options.run_id
    if isinstance(checkpoint, str) and is_uri(checkpoint):
        registered = await client.create_checkpoint(checkpoint, run=run, step=step)
        document = documents.checkpoint(registered)
        lines = [f"read {tables.size(registered.size_bytes)} by reference: {registered.digest}"]
    else:
        pushed = await client.push_checkpoint(checkpoint, model_files=options.model_files, progress=Uploading(session))
        registered = await client.create_checkpoint(pushed.digest, run=run, step=step)
        document = {**documents.pushed(pushed), "name": registered.name}
        lines = [pushed_text(pushed)]
    if run is not None:
        document.update(run=run, step=step or 0)
        lines[0] += f"  {run}@{step or 0}"
    if options.suite:
        created: EvaluationResult = await client.create_evaluation(
            registered.digest, options.suite, run=run, step=step or 0, epoch=epoch
        )
        document["evaluation"] = created.name
        lines.append(f"evaluation {tables.short(created.name)}: {watch_command(session, created.name)}")
    return document, "\n".join(lines)


class _Watch:
    """Follows a folder until it is interrupted."""

    def __init__(self, session: Session, options: argparse.Namespace) -> None:
        if is_uri(options.checkpoint):
            raise FormatError("INVALID_FIELD", "checkpoint: --watch takes a local folder", {"field": "checkpoint"})
        if os.path.isfile(options.checkpoint):
            raise FormatError("INVALID_FIELD", f"{options.checkpoint}: --watch takes a folder", {"field": "checkpoint"})
        self._session = session
        self._options = options
        state = options.state or state_path(options.checkpoint, session.client.endpoint, session.client.project)
        self._folder = WatchedFolder(options.checkpoint, PushedBefore(Path(state)), options.steps_per_epoch)
        self._count = 0
        self._said = ""

    async def run(self) -> int:
        """Looks, pushes, waits."""
        self._session.progress.say(f"watching {self._folder.path}; Ctrl-C ends it")
        while True:
            self._hint()
            delay_s = self._options.poll
            try:
                for found in await asyncio.to_thread(self._folder.poll):
                    await self._push(found)
            except AccessDenied:
                raise
            except ServiceError as error:
                # A restart, a full disk, a quota: the training goes on, and so does this.
                self._complain(f"{error}; trying again")
                delay_s = max(delay_s, _RETRY_S)
            except FormatError as error:
                self._complain(str(error))
            await asyncio.sleep(delay_s)

    async def _push(self, found: NewCheckpoint) -> None:
        step = found.step if self._options.run_id is not None else None
        try:
            document, text = await _push_one(
                self._session, self._options, found.candidate, step, float(found.epoch or 0)
            )
        except FormatError as error:
            # This one cannot be used, or has changed; the next may be fine.
            self._folder.failed(found)
            self._session.fail(error.reason, f"{found.title}: {error.message}", error.metadata, document=False)
            return
        self._folder.pushed(found)
        self._count += 1
        self._said = ""
        self._hint()
        self._session.report({"file": found.candidate.files[0].path, **document}, f"{found.title}: {text}")

    def _hint(self) -> None:
        self._session.interrupt_hint = f"; {self._count} checkpoints pushed, start it again to go on"

    def _complain(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._session.progress.say(f"mindeval: {text}")

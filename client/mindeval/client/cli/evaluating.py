"""`mindeval evaluate` and `mindeval watch`."""

from __future__ import annotations

import argparse
import asyncio
import os
import re

from mindeval.client._checkpoints import is_uri
from mindeval.client._results import EvaluationEvent, EvaluationResult
from mindeval.client.cli import documents, tables
from mindeval.client.cli.pushing import Uploading, pushed_text, watch_command
from mindeval.client.cli.session import Session
from mindeval.formats.digest import is_digest

# What `checkpoints list` shows. Anything else is taken for a path that does not exist.
_REGISTERED = re.compile(r"[0-9a-f]{4,64}\Z|[^@/]+@\d+\Z|projects/")


async def evaluate(session: Session, options: argparse.Namespace) -> int:
    """Pushes a checkpoint unless it is a digest, creates the evaluation, and waits for it unless told not to."""
    client = session.client
    session.interrupt_hint = " before the evaluation was created"
    await client.get_suite(options.suite)  # before a large checkpoint travels for nothing
    digest = await _checkpoint(session, options)
    created = await client.create_evaluation(
        digest,
        options.suite,
        run=options.run_id,
        step=options.step,
        epoch=options.epoch,
        conflict_policy="rerun" if options.rerun else "use_existing",
        timeout_s=options.timeout,
    )
    if options.no_wait:
        text = f"{created.name}  {created.state}\nfollow it with: {watch_command(session, created.name)}"
        session.show(documents.evaluation(created), text)
        return 0
    return await _follow(session, created.name)


async def watch(session: Session, options: argparse.Namespace) -> int:
    """Follows an evaluation to its end."""
    return await _follow(session, options.name)


async def _follow(session: Session, name: str) -> int:
    session.interrupt_hint = f"; the evaluation goes on, follow it with: {watch_command(session, name)}"
    result = await session.client.wait(name, on_event=_Following(session))
    # Why it failed is said once, on standard error.
    session.show(documents.evaluation(result), tables.outcome_text(result))
    if result.succeeded:
        return 0
    failure = tables.failure_of(result)
    session.fail(failure.reason, failure.message, failure.metadata, document=False)
    return 1


async def _checkpoint(session: Session, options: argparse.Namespace) -> str:
    """What to evaluate: a digest, or a URI; pushed when it is a path."""
    client, text = session.client, options.checkpoint
    if is_digest(text) or is_uri(text):
        return str(text)
    if _REGISTERED.match(text) and not await asyncio.to_thread(os.path.exists, text):
        return (await client.get_checkpoint(text)).digest
    pushed = await client.push_checkpoint(text, model_files=options.model_files, progress=Uploading(session))
    session.progress.say(pushed_text(pushed))
    return pushed.digest


class _Following:
    """Shows the events of an evaluation."""

    def __init__(self, session: Session) -> None:
        self._display = session.progress
        self._said = ""

    def __call__(self, event: EvaluationEvent) -> None:
        if event.state_change is not None and not event.state_change.done:
            self._say_once(_state_text(event.state_change))
        elif event.progress is not None:
            at = event.progress
            self._display.update(f"{at.task} {at.phase}".strip(), at.done, at.total, at.unit)
        elif event.task is not None:
            outcome = "failed" if event.task.error else "scored"
            self._say_once(f"task {event.task.name} {outcome}")

    def _say_once(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._display.say(text)


def _state_text(result: EvaluationResult) -> str:
    again = f" (attempt {result.attempt})" if result.attempt > 1 else ""
    return f"{tables.short(result.name)}: {result.state.lower()}{again}"

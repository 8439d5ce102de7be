"""`mindeval checkpoints`."""

from __future__ import annotations

import argparse

from mindeval.client.cli import documents, tables
from mindeval.client.cli.session import Session


async def list_checkpoints(session: Session, options: argparse.Namespace) -> int:
    """`mindeval checkpoints list`."""
    found = []
    async for item in session.client.list_checkpoints(run=options.run_id):
        found.append(item)
        if len(found) >= options.limit:
            break
    session.show({"checkpoints": [documents.checkpoint(item) for item in found]}, tables.checkpoints_text(found))
    return 0


async def show_checkpoint(session: Session, options: argparse.Namespace) -> int:
    """`mindeval checkpoints show`."""
    item = await session.client.get_checkpoint(options.checkpoint)
    session.show(documents.checkpoint(item), tables.checkpoint_text(item))
    return 0


async def diff_checkpoints(session: Session, options: argparse.Namespace) -> int:
    """`mindeval checkpoints diff`."""
    diff = await session.client.diff_checkpoints(options.base, options.other, with_values=not options.names_only)
    session.show(documents.checkpoint_diff(diff), tables.checkpoint_diff_text(diff))
    return 0


async def pin_checkpoint(session: Session, options: argparse.Namespace) -> int:
    """`mindeval checkpoints pin`."""
    return await _pin(session, options.checkpoint, pinned=True)


async def unpin_checkpoint(session: Session, options: argparse.Namespace) -> int:
    """`mindeval checkpoints unpin`."""
    return await _pin(session, options.checkpoint, pinned=False)


async def delete_checkpoint(session: Session, options: argparse.Namespace) -> int:
    """`mindeval checkpoints delete`."""
    freed = await session.client.delete_checkpoint(options.checkpoint)
    session.show({"freed_bytes": freed}, f"deleted {options.checkpoint}; {tables.size(freed)} freed")
    return 0


async def _pin(session: Session, checkpoint: str, *, pinned: bool) -> int:
    item = await session.client.pin_checkpoint(checkpoint, pinned=pinned)
    session.show(documents.checkpoint(item), f"{item.digest}  {'pinned' if pinned else 'not pinned'}")
    return 0

"""Packs of which little is left are written anew, so that the rest of their bytes is free."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from mindeval.service.storage.access import StoreAccess
from mindeval.service.storage.blobs import ObjectGoneError, StoredObject, pack_key
from mindeval.service.storage.library import BlobLibrary
from mindeval.service.storage.packs import PackFile
from mindeval.service.storage.records import BlobRecord, PackRecord
from mindeval.service.storage.spool import Spool

_log = logging.getLogger(__name__)


async def compact(access: StoreAccess, library: BlobLibrary, spool: Spool, project: str) -> int:
    """Writes a project's packs anew that are less than half needed, and tells how many.

    Who reads an old pack at the time goes on reading it: a store keeps what is held.
    """
    packs = await access.read(access.store.blobs.packs, project)
    sparse = [pack for pack in packs if pack.live_bytes * 2 < pack.size_bytes]
    empty = [pack_key(project, pack.id) for pack in packs if not pack.live_bytes]
    for pack in sparse:
        if pack.live_bytes:
            await _rewrite(access, library, spool, pack)
    # A pack of nothing but empty blobs has no live bytes either; the sweep leaves it alone.
    await library.sweep(project, empty)
    return len(sparse)


async def _rewrite(access: StoreAccess, library: BlobLibrary, spool: Spool, pack: PackRecord) -> None:
    index = access.store.blobs
    # Damaged bytes must not be carried on under the digest of a new pack.
    await library.drop_damaged(
        pack.project, [blob.digest for blob in await access.read(index.packed, pack.project, pack.id)]
    )
    blobs = await access.read(index.packed, pack.project, pack.id)
    item = StoredObject(pack_key(pack.project, pack.id), pack.digest, pack.size_bytes)
    try:
        path = await asyncio.to_thread(library.store.hold, item)
    except ObjectGoneError:
        return  # Everything in it was just dropped.
    file = PackFile(spool, pack.project)
    try:
        record = await asyncio.to_thread(_copy, path, blobs, file)
        if record is not None:
            entries = list(file.blobs.values())
            count = await library.publish_pack(record, entries, spool.path(file.name), replaced=pack.id)
            _log.info("a pack was written anew", extra={"project": pack.project, "blobs": count})
    finally:
        library.store.release(item.key)
        await asyncio.to_thread(file.close)


def _copy(source: Path, blobs: list[BlobRecord], target: PackFile) -> PackRecord | None:
    if not blobs:
        return None
    fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for blob in blobs:
            target.append([(blob.digest, os.pread(fd, blob.size_bytes, blob.offset))])
    finally:
        os.close(fd)
    return target.seal()

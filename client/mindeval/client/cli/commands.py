"""The commands that ask or tell one thing."""

from __future__ import annotations

import argparse
from pathlib import Path

from mindeval.client._results import PushProgress
from mindeval.client._suites import read_definition
from mindeval.client.cli import documents, tables
from mindeval.client.cli.session import Session
from mindeval.formats.errors import FormatError


async def put_suite(session: Session, options: argparse.Namespace) -> int:
    """`mindeval suite put`."""
    definition = read_definition(options.file)
    name = options.name or definition.get("name") or Path(options.file).stem
    suite = await session.client.put_suite(name, definition)
    session.show(documents.suite(suite), _put_text("suite", suite.id, suite.version, suite.created))
    return 0


async def list_suites(session: Session, _options: argparse.Namespace) -> int:
    """`mindeval suite list`."""
    suites = [suite async for suite in session.client.list_suites()]
    session.show({"suites": [documents.suite(suite) for suite in suites]}, tables.suites_text(suites))
    return 0


async def get_suite(session: Session, options: argparse.Namespace) -> int:
    """`mindeval suite get`."""
    suite = await session.client.get_suite(options.name)
    session.show(documents.suite(suite), tables.suite_text(suite))
    return 0


async def put_dataset(session: Session, options: argparse.Namespace) -> int:
    """`mindeval dataset put`."""

    def uploading(progress: PushProgress) -> None:
        session.progress.update("upload", progress.bytes_sent, progress.bytes_to_send, "B")

    dataset = await session.client.put_dataset(
        options.name,
        options.files,
        format=options.format,
        language=options.language,
        text_field=options.text_field,
        padding_token=options.padding_token,
        progress=uploading,
    )
    session.show(documents.dataset(dataset), _put_text("dataset", dataset.id, dataset.version, dataset.created))
    return 0


async def list_datasets(session: Session, _options: argparse.Namespace) -> int:
    """`mindeval dataset list`."""
    datasets = [dataset async for dataset in session.client.list_datasets()]
    session.show({"datasets": [documents.dataset(dataset) for dataset in datasets]}, tables.datasets_text(datasets))
    return 0


async def get_dataset(session: Session, options: argparse.Namespace) -> int:
    """`mindeval dataset get`."""
    dataset = await session.client.get_dataset(options.name)
    session.show(documents.dataset(dataset), tables.dataset_text(dataset))
    return 0


async def list_evaluations(session: Session, options: argparse.Namespace) -> int:
    """`mindeval list`."""
    if options.limit < 1:
        raise FormatError("INVALID_FIELD", "limit: must be at least 1", {"field": "limit"})
    found = [item async for item in session.client.list_evaluations(options.filter, limit=options.limit)]
    session.show({"evaluations": [documents.evaluation(item) for item in found]}, tables.evaluations_text(found))
    return 0


async def get_evaluation(session: Session, options: argparse.Namespace) -> int:
    """`mindeval get`."""
    result = await session.client.get_evaluation(options.name)
    session.show(documents.evaluation(result), tables.evaluation_text(result))
    return 0


async def cancel_evaluation(session: Session, options: argparse.Namespace) -> int:
    """`mindeval cancel`."""
    result = await session.client.cancel_evaluation(options.name)
    session.show(documents.evaluation(result), f"{result.name}  {result.state}")
    return 0


def _put_text(kind: str, name: str, version: str, created: bool | None) -> str:
    return f"{kind} {name}: {'new version' if created else 'unchanged'} {version}"

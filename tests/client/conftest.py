from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.client.fake import FakeService
from tests.support.service import FAULTY_RUNNER, ServiceProcess

from mindeval.client import AsyncClient, Client


@pytest.fixture
async def fake() -> AsyncIterator[FakeService]:
    service = FakeService()
    await service.start()
    yield service
    await service.stop()


@pytest.fixture
async def client(fake: FakeService) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(fake.endpoint, timeout_s=10.0) as opened:
        yield opened


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def fixed_service(tmp_path: Path) -> Iterator[ServiceProcess]:
    """A service that keeps its address over restarts; started."""
    listen = f"127.0.0.1:{free_port()}"
    service = ServiceProcess(tmp_path / "service", runner_command=FAULTY_RUNNER, listen=listen)
    try:
        yield service.start()
    finally:
        service.kill()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service for the tests of a module."""
    process = ServiceProcess(tmp_path_factory.mktemp("service"), runner_command=FAULTY_RUNNER)
    try:
        yield process.start()
    finally:
        process.kill()


def put_suite(client: Client, folder: Path, script: str, suite: str = "s") -> None:
    """A suite whose only task makes the scripted runner do this."""
    file = folder / f"{suite}.txt"
    file.write_text(f"{script}\none two three\nfour five\n", encoding="utf-8")
    client.put_dataset(f"{suite}-data", [file], format="text_lines", language="en")
    task = {"name": "val", "type": "language_modeling", "dataset": f"{suite}-data", "metrics": ["loss", "ppl"]}
    client.put_suite(suite, {"tasks": [task]})

"""One server a module, one project a test."""

from __future__ import annotations

import re
from collections.abc import Iterator

import grpc
import pytest
from tests.service.stubs import Client
from tests.support.service import FAULTY_RUNNER, ServiceProcess

# Short enough for tests, long enough for a busy machine.
QUICK = {"bookmark_interval_s": 0.3, "heartbeat_timeout_s": 2.0, "cancel_grace_s": 0.5, "drain_grace_s": 0.5}


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    with ServiceProcess(runner_command=FAULTY_RUNNER, **QUICK) as process:
        yield process


@pytest.fixture(scope="module")
def channel(service: ServiceProcess) -> Iterator[grpc.Channel]:
    with service.channel() as channel:
        yield channel


@pytest.fixture
def client(channel: grpc.Channel, request: pytest.FixtureRequest) -> Client:
    project = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")[:60]
    return Client(channel, project.rstrip("-"))

"""One server a module, one project a test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from tests.service.stubs import Client
from tests.support.s3 import S3Server, s3_server
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


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        server.make_bucket("models")
        server.make_bucket("secret")
        yield server


@pytest.fixture
def bucket(s3: S3Server) -> Any:
    import s3fs

    return s3fs.S3FileSystem(
        endpoint_url=s3.endpoint_url,
        key="testing",
        secret="testing",
        use_listings_cache=False,
        skip_instance_cache=True,
    )

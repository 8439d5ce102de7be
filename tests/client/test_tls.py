"""TLS and tokens."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from tests.client.fake import FakeService, Fault

from mindeval.client import AccessDenied, AsyncClient, ServiceUnavailable, TlsFiles

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A self-signed certificate of 127.0.0.1 and its key."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    line = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    subprocess.run(
        [*line.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    return certificate, key


def credentials_of(certificate: Path, key: Path) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])


@pytest.fixture
async def secure(tmp_path: Path) -> AsyncIterator[FakeService]:
    fake = FakeService()
    await fake.start(credentials=credentials_of(*make_certificate(tmp_path, "first")))
    yield fake
    await fake.stop()


async def test_token_over_tls(secure: FakeService, tmp_path: Path) -> None:
    tls = TlsFiles(ca_file=str(tmp_path / "first.pem"))
    async with AsyncClient(secure.endpoint, token="mde_id_secret", tls=tls) as client:
        assert (await client.capabilities()).version == "9.9.9"
        assert secure.metadata["authorization"] == "Bearer mde_id_secret"
        secure.fail_next("GetSuite", Fault(grpc.StatusCode.UNAUTHENTICATED, "TOKEN_INVALID"))
        with pytest.raises(AccessDenied):
            await client.get_suite("s")


async def test_unknown_authority(secure: FakeService, tmp_path: Path) -> None:
    other, _ = make_certificate(tmp_path, "other")
    async with AsyncClient(secure.endpoint, tls=TlsFiles(ca_file=str(other)), connect_timeout_s=0.5) as client:
        with pytest.raises(ServiceUnavailable, match="cannot be reached"):
            await client.capabilities()


async def test_rotated_certificate_is_read_again(secure: FakeService, tmp_path: Path) -> None:
    trusted = tmp_path / "trusted.pem"
    shutil.copy(tmp_path / "first.pem", trusted)
    async with AsyncClient(secure.endpoint, tls=TlsFiles(ca_file=str(trusted)), timeout_s=20.0) as client:
        await client.get_suite("s")
        endpoint = secure.endpoint
        await secure.stop()
        certificate, key = make_certificate(tmp_path, "second")
        shutil.copy(certificate, trusted)
        await secure.start(endpoint, credentials_of(certificate, key))
        await client.get_suite("s")

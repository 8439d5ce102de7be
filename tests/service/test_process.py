"""The process itself: settings, start and stop, locks, TLS, health, reflection."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.service.stubs import TIMEOUT_S, Client
from tests.support.service import FAULTY_RUNNER, ServiceProcess, wait_until

from mindeval.v1 import capability_pb2


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mindeval.service", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, env={**os.environ, **(env or {})}, check=False
    )


def test_says_where_it_listens(service: ServiceProcess, client: Client) -> None:
    (line,) = [line for line in service.log().splitlines() if line.startswith("MindEval ")]
    assert line == f"MindEval 0.1.0 listening on {service.endpoint} (devices: cpu:0), data in {service.data_dir}"
    assert (service.data_dir / "endpoint").read_text() == service.endpoint + "\n"
    assert client.health.Check(health_pb2.HealthCheckRequest(service="mindeval.v1.BlobService")).status == 1


def test_capabilities(client: Client) -> None:
    request = capability_pb2.GetCapabilitiesRequest()
    response = client.capabilities.GetCapabilities(request, timeout=TIMEOUT_S)
    assert response.version == "0.1.0"
    assert response.evaluator_build.startswith("0.1.0+")
    assert list(response.digest_algorithms) == ["blake3"]
    assert response.max_chunk_bytes == 1 << 20
    types = {task.name: list(task.metrics) for task in response.task_types}
    assert "word_ppl" in types["language_modeling"]
    assert [device.name for device in response.devices] == ["cpu:0"]


def test_reflection_lists_the_services(channel: grpc.Channel) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    (response,) = stub.ServerReflectionInfo(iter([request]), timeout=TIMEOUT_S)
    names = {service.name for service in response.list_services_response.service}
    assert {"mindeval.v1.EvaluationService", "mindeval.v1.RunService", "grpc.health.v1.Health"} <= names


def test_mindspore_is_never_loaded(service: ServiceProcess, client: Client) -> None:
    client.run(client.suite("s"))
    assert "mindspore" not in Path(f"/proc/{service.pid}/maps").read_text()


def test_one_service_a_data_directory(service: ServiceProcess) -> None:
    result = run("--data-dir", str(service.data_dir), "--listen", "127.0.0.1:0")
    assert result.returncode == 1
    assert result.stderr.strip().splitlines() == [
        f"mindeval: another service uses the data directory {service.data_dir} (process {service.pid})"
    ]


def test_a_port_in_use_is_said_in_one_line(service: ServiceProcess, tmp_path: Path) -> None:
    env = {"MINDEVAL_LOG_LEVEL": "error"}
    result = run("--data-dir", str(tmp_path), "--listen", service.endpoint, env=env)
    assert result.returncode == 1
    assert f"mindeval: cannot listen on {service.endpoint}" in result.stderr
    assert "Traceback" not in result.stderr


def test_settings_faults_are_one_line_each(tmp_path: Path) -> None:
    config = tmp_path / "settings.toml"
    config.write_text('colour = "blue"\nbookmark_interval_s = "soon"\n')
    result = run("--config", str(config), "--listen", "nowhere", env={"MINDEVAL_DRAIN_GRACE_S": "later"})
    assert result.returncode == 2
    lines = result.stderr.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("mindeval: ") for line in lines)
    assert "colour: unknown key" in lines[0]
    assert run("--listen", "0.0.0.0:0", "--data-dir", str(tmp_path)).returncode == 2


def test_a_database_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    with ServiceProcess(data_dir=tmp_path, runner_command=FAULTY_RUNNER):
        pass
    with sqlite3.connect(tmp_path / "mindeval.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    result = run("--data-dir", str(tmp_path), "--listen", "127.0.0.1:0")
    assert result.returncode == 1
    assert "newer" in result.stderr.splitlines()[-1]


def test_tls(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    service = ServiceProcess(
        data_dir=tmp_path / "data",
        runner_command=FAULTY_RUNNER,
        tls_certificate=str(certificate),
        tls_key=str(key),
        listen="0.0.0.0:0",
    )
    try:
        service.launch()
        endpoint = wait_until(lambda: read(service.data_dir / "endpoint"), what="the endpoint")
        credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
        with grpc.secure_channel(f"127.0.0.1:{endpoint.rpartition(':')[2]}", credentials) as channel:
            request = health_pb2.HealthCheckRequest()
            assert Client(channel, "p").health.Check(request, timeout=TIMEOUT_S, wait_for_ready=True).status == 1
        assert "WARNING" not in service.log()
    finally:
        service.kill()


def test_an_open_port_without_tls_is_loud(tmp_path: Path) -> None:
    service = ServiceProcess(data_dir=tmp_path, runner_command=FAULTY_RUNNER, allow_insecure=True, listen="0.0.0.0:0")
    with service:
        assert "WARNING" in service.log()


def read(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""

"""How fast a checkpoint is pushed over loopback, against the other ways of moving the same bytes.

    python benchmarks/push.py [--size 1000] [--rounds 5]

Every round measures each way once, in a shuffled order; values are medians over the rounds, so slow and fast moments of
the machine meet all ways alike. Each way copies the same file into the same file system, from the page cache, with
both ends in processes of their own. The last line is a JSON object.

Ways:
    push          `AsyncClient.push_checkpoint` to a fresh service: digests on both sides, fsync and commit included
    push_tls      the same over TLS
    cp            cp
    cp_fsync      cp, and then fsync: as fast as the disk takes the bytes, which no durable push can outrun
    socket        a bare socket: sendfile, recv, write
    grpc          a client stream of 1 MiB messages as gRPC comes, write
    rsync         rsync's daemon, when it is installed
Only push and cp_fsync make the bytes durable; the others leave them in the page cache.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import os
import platform
import random
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

MB = 1_000_000
CHUNK_BYTES = 1 << 20
# Larger writes are many times slower on some file systems.
SLICE_BYTES = 256 << 10
TENSORS = 100
STREAMS = 8
PUSHES_BESIDE_HEALTH = 3
MAX_MB_PER_STREAM = 30
TIMEOUT_S = 600.0


# --- what is pushed ---


def write_checkpoint(folder: Path, size_bytes: int, seed: int = 0) -> Path:
    """config.json and one file of `TENSORS` tensors of the same size."""
    import numpy as np

    from mindeval.formats.safetensors import encode_header

    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type":"llama"}')
    rows = size_bytes // TENSORS // 4
    head, _ = encode_header([(f"layers.{number}.weight", "F32", (rows,)) for number in range(TENSORS)])
    generator = np.random.default_rng(seed)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(head)
        for _ in range(TENSORS):
            file.write(generator.bytes(rows * 4))
    return folder / "model.safetensors"


def change_tensors(file: Path, count: int, seed: int) -> int:
    """Other values for the first tensors; returns their bytes."""
    from mindeval.formats.readers import open_tensors

    changed = 0
    with open(file, "r+b") as out:
        for tensor in open_tensors(file).tensors[:count]:
            out.seek(tensor.spans[0].begin)
            out.write(random.Random(f"{seed} {tensor.name}").randbytes(tensor.size_bytes))
            changed += tensor.size_bytes
    return changed


# --- processes of the benchmark: `push.py --child ROLE ...` ---


def child_push(endpoint: str, folder: str, project: str, ca_file: str) -> None:
    """Pushes once, as the command line does, and prints what came of it."""
    from mindeval.client import AsyncClient, TlsFiles
    from mindeval.client._memory import keep_freed_memory

    async def push() -> dict[str, float]:
        tls = TlsFiles(ca_file=ca_file) if ca_file else None
        async with AsyncClient(endpoint, project=project, tls=tls) as client:
            await client.capabilities()
            base_mb, base = memory_mb(os.getpid(), "VmRSS"), resource.getrusage(resource.RUSAGE_SELF)
            pushed = await client.push_checkpoint(folder)
            after = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "seconds": pushed.seconds,
            "bytes_sent": pushed.bytes_sent,
            "base_mb": base_mb,
            "peak_mb": memory_mb(os.getpid(), "VmHWM"),
            "cpu_s": after.ru_utime + after.ru_stime - base.ru_utime - base.ru_stime,
        }

    keep_freed_memory()
    print(json.dumps(asyncio.run(push())), flush=True)


def child_streams(endpoint: str, folder: str) -> None:
    """Pushes into as many projects at once as it takes to have `STREAMS` streams; they wait for the service."""
    from mindeval.client import AsyncClient
    from mindeval.client._memory import keep_freed_memory

    async def push(number: int) -> None:
        async with AsyncClient(endpoint, project=f"stream-{number}") as client:
            await client.push_checkpoint(folder)

    async def all_of_them() -> None:
        await asyncio.gather(*(push(number) for number in range(STREAMS // upload_streams())))

    keep_freed_memory()
    asyncio.run(all_of_them())
    print(json.dumps({"peak_mb": memory_mb(os.getpid(), "VmHWM")}), flush=True)


def child_socket_server(target: str) -> None:
    """Receives files: 8 bytes of length, then the bytes; answers with one byte when all are written."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        buffer = memoryview(bytearray(CHUNK_BYTES))
        while True:
            connection, _ = listener.accept()
            with connection, open(target, "wb", buffering=0) as file:
                left = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "little")
                while left:
                    count = connection.recv_into(buffer[: min(left, CHUNK_BYTES)])
                    write_slices(file.fileno(), buffer[:count])
                    left -= count
                connection.sendall(b"k")


def child_grpc_server(target: str) -> None:
    """Writes what a client stream brings, with gRPC's defaults."""
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    from mindeval.v1 import blob_pb2, blob_pb2_grpc

    class Plain(blob_pb2_grpc.BlobServiceServicer):
        def WriteUpload(self, request_iterator: Any, context: Any) -> Any:  # noqa: N802
            offset = 0
            with open(target, "wb", buffering=0) as file:
                for request in request_iterator:
                    write_slices(file.fileno(), memoryview(request.data))
                    offset += len(request.data)
            return blob_pb2.WriteUploadResponse(committed_offset=offset)

    server = grpc.server(ThreadPoolExecutor(4))
    blob_pb2_grpc.add_BlobServiceServicer_to_server(Plain(), server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


def child_grpc_client(port: str, source: str) -> None:
    """Sends a file as a client stream, with gRPC's defaults."""
    import grpc

    from mindeval.v1 import blob_pb2, blob_pb2_grpc

    def requests() -> Iterator[Any]:
        offset = 0
        with open(source, "rb", buffering=0) as file:
            while data := file.read(CHUNK_BYTES):
                yield blob_pb2.WriteUploadRequest(name="x" if offset == 0 else "", offset=offset, data=data)
                offset += len(data)

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        grpc.channel_ready_future(channel).result(30)
        began = time.perf_counter()
        blob_pb2_grpc.BlobServiceStub(channel).WriteUpload(requests())
        print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)


CHILDREN = {
    "push": child_push,
    "streams": child_streams,
    "socket-server": child_socket_server,
    "grpc-server": child_grpc_server,
    "grpc-client": child_grpc_client,
}


def write_slices(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data[:SLICE_BYTES]) :]


def start_child(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, "--child", *words], stdout=subprocess.PIPE)


def result_of(process: subprocess.Popen[bytes]) -> dict[str, float]:
    out, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, f"a process of the benchmark ended with {process.returncode}"
    result: dict[str, float] = json.loads(out.splitlines()[-1])
    return result


@contextlib.contextmanager
def server_child(role: str, target: Path) -> Iterator[str]:
    """A server among the children; yields its port."""
    with start_child(role, str(target)) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().decode().strip()
        finally:
            process.kill()


# --- the service ---


@contextlib.contextmanager
def fresh_service(folder: Path, **settings: Any) -> Iterator[Any]:
    """A service without data, in a folder of its own that is removed afterwards."""
    from tests.support.service import FAULTY_RUNNER, ServiceProcess

    data = Path(tempfile.mkdtemp(prefix="service-", dir=folder))
    try:
        with ServiceProcess(data, runner_command=FAULTY_RUNNER, env={}, **{"log_level": "info", **settings}) as service:
            yield service
    finally:
        shutil.rmtree(data, ignore_errors=True)


def service_memory_mb(service: Any, key: str) -> float:
    """Memory ("VmRSS" or "VmHWM") of the service's processes; its runners are left out, they hold no blob here."""
    children = service.runner_pids()
    runners = {pid for pid in children if b"faulty_runner" in command_of(pid)}
    return sum(memory_mb(pid, key) for pid in {service.pid, *children} - runners)


def memory_mb(pid: int, key: str) -> float:
    """ "VmRSS" or "VmHWM" (its peak) of a process. Not ru_maxrss, which begins with that of the parent."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024 / MB
    return 0.0


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


# --- measurements ---


class Ways:
    """One measurement of each way at a time; seconds, and what else was seen."""

    def __init__(self, folder: Path, file: Path) -> None:
        self._folder = folder
        self._file = file
        self._target = folder / "target"
        self._certificate, self._key = make_certificate(folder)
        self.seen: dict[str, list[float]] = {}

    def measure(self, name: str) -> float:
        with contextlib.suppress(FileNotFoundError):
            self._target.unlink()
        seconds: float = getattr(self, name)()
        self.note(name, seconds)
        return seconds

    def note(self, name: str, value: float) -> None:
        self.seen.setdefault(name, []).append(value)

    def cp(self) -> float:
        began = time.perf_counter()
        subprocess.run(["cp", str(self._file), str(self._target)], check=True)
        return time.perf_counter() - began

    def cp_fsync(self) -> float:
        began = time.perf_counter()
        subprocess.run(["cp", str(self._file), str(self._target)], check=True)
        descriptor = os.open(self._target, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        return time.perf_counter() - began

    def socket(self) -> float:
        with server_child("socket-server", self._target) as port, open(self._file, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            began = time.perf_counter()
            with socket.create_connection(("127.0.0.1", int(port))) as connection:
                connection.sendall(size.to_bytes(8, "little"))
                connection.sendfile(file)
                connection.recv(1)
            return time.perf_counter() - began

    def grpc(self) -> float:
        with server_child("grpc-server", self._target) as port:
            return result_of(start_child("grpc-client", port, str(self._file)))["seconds"]

    def rsync(self) -> float:
        module = self._folder / "rsync"
        module.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            (module / self._file.name).unlink()
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        config = self._folder / "rsyncd.conf"
        config.write_text(f"use chroot = no\n[files]\npath = {module}\nread only = no\nuid = {os.getuid()}\n")
        command = ["rsync", "--daemon", "--no-detach", "--address=127.0.0.1", f"--port={port}", f"--config={config}"]
        with subprocess.Popen(command) as daemon:
            try:
                wait_for_port(port)
                began = time.perf_counter()
                subprocess.run(["rsync", "-W", str(self._file), f"rsync://127.0.0.1:{port}/files/"], check=True)
                return time.perf_counter() - began
            finally:
                daemon.terminate()

    def push(self) -> float:
        return self._push("push", {}, "")

    def push_tls(self) -> float:
        settings = {"tls_certificate": str(self._certificate), "tls_key": str(self._key)}
        return self._push("push_tls", settings, str(self._certificate))

    def _push(self, name: str, settings: dict[str, str], ca_file: str) -> float:
        with tls_or_plain_service(self._folder, settings, ca_file) as service:
            base = service_memory_mb(service, "VmRSS")
            cpu = service_cpu_s(service)
            result = result_of(start_child("push", service.endpoint, str(self._file.parent), "p", ca_file))
            self.note(f"{name}_server_mb", service_memory_mb(service, "VmHWM"))
            self.note(f"{name}_server_base_mb", base)
            self.note(f"{name}_server_cpu_s", service_cpu_s(service) - cpu)
        self.note(f"{name}_client_mb", result["peak_mb"])
        self.note(f"{name}_client_base_mb", result["base_mb"])
        self.note(f"{name}_client_cpu_s", result["cpu_s"])
        assert result["bytes_sent"] >= self._file.stat().st_size * 0.99
        return result["seconds"]


@contextlib.contextmanager
def tls_or_plain_service(folder: Path, settings: dict[str, str], ca_file: str) -> Iterator[Any]:
    if not ca_file:
        with fresh_service(folder) as service:
            yield service
        return
    import grpc
    from tests.support.service import ServiceProcess

    class TlsService(ServiceProcess):
        """Looked at over TLS as well."""

        def channel(self) -> grpc.Channel:
            credentials = grpc.ssl_channel_credentials(Path(ca_file).read_bytes())
            return grpc.secure_channel(self.endpoint, credentials, options=[("grpc.use_local_subchannel_pool", 1)])

    from tests.support.service import FAULTY_RUNNER

    data = Path(tempfile.mkdtemp(prefix="service-", dir=folder))
    try:
        with TlsService(data, runner_command=FAULTY_RUNNER, **{"log_level": "info", **settings}) as service:
            yield service
    finally:
        shutil.rmtree(data, ignore_errors=True)


def service_cpu_s(service: Any) -> float:
    ticks = 0
    for pid in {service.pid, *service.runner_pids()}:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, "the server does not listen"
            time.sleep(0.02)


def measure_streams(folder: Path, file: Path) -> dict[str, float]:
    """Memory of both sides while `STREAMS` pushes wait for one another."""
    with fresh_service(folder) as service:
        result = result_of(start_child("streams", service.endpoint, str(file.parent)))
        return {"server_mb": service_memory_mb(service, "VmHWM"), "client_mb": result["peak_mb"]}


def measure_again(folder: Path, size_bytes: int, rounds: int) -> dict[str, float]:
    """Second pushes with some of the tensors changed: seconds, bytes over the changed ones, and one pass of BLAKE3."""
    from mindeval.formats.digest import digest_file

    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)

    with fresh_service(folder) as service:
        copy = write_checkpoint(folder / "again", size_bytes, seed=9)
        result_of(start_child("push", service.endpoint, str(copy.parent), "p", ""))
        for number in range(rounds):
            began = time.perf_counter()
            digest_file(copy)
            note("blake3_s", time.perf_counter() - began)
            for percent in (0, 1, 10, 100) if number == 0 else (0, 1, 10):
                changed = change_tensors(copy, TENSORS * percent // 100, seed=100 * number + percent)
                result = result_of(start_child("push", service.endpoint, str(copy.parent), "p", ""))
                note(f"again_{percent}_s", result["seconds"])
                # What has to travel in any case: the changed tensors.
                note(f"again_{percent}_excess_bytes", result["bytes_sent"] - changed)
                if changed:
                    note(f"again_{percent}_bytes_over_changed", result["bytes_sent"] / changed)
    return {name: statistics.median(values) for name, values in found.items()}


def measure_health(folder: Path, file: Path) -> dict[str, float]:
    """Milliseconds of a health call while pushes run."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    times: list[float] = []
    stopped = threading.Event()

    def ask(service: Any) -> None:
        with service.channel() as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            stub.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=10)
            while not stopped.is_set():
                began = time.perf_counter()
                stub.Check(health_pb2.HealthCheckRequest(), timeout=30)
                times.append((time.perf_counter() - began) * 1000)
                stopped.wait(0.005)

    assert grpc is not None
    with fresh_service(folder) as service:
        pushes = [
            start_child("push", service.endpoint, str(file.parent), f"p{number}", "")
            for number in range(PUSHES_BESIDE_HEALTH)
        ]
        thread = threading.Thread(target=ask, args=(service,))
        thread.start()
        try:
            for push in pushes:
                result_of(push)
        finally:
            stopped.set()
            thread.join()
    ordered = sorted(times)
    return {"p50": statistics.median(ordered), "p99": ordered[int(len(ordered) * 0.99)], "calls": len(ordered)}


# --- the report ---


def results_of(
    seen: dict[str, list[float]],
    size_bytes: int,
    again: dict[str, float],
    streams: dict[str, float],
    health: dict[str, float],
) -> list[dict[str, object]]:
    """Values with their targets."""
    middle = {name: statistics.median(values) for name, values in seen.items()}
    results: list[dict[str, object]] = []

    def entry(name: str, value: float, unit: str, target: float | None = None, at_least: bool = False) -> None:
        met = None if target is None else value >= target if at_least else value <= target
        results.append({"name": name, "value": round(value, 4), "unit": unit, "target": target, "met": met})

    def ratio(name: str, over: str, way: str, target: float | None) -> None:
        # Each round has its own ratio: a slow moment of the machine meets both.
        values = [other / own for own, other in zip(seen[way], seen[over])]
        entry(name, statistics.median(values), "ratio", target, at_least=True)

    entry("size", size_bytes / MB, "MB")
    for way in ("push", "push_tls", "cp", "cp_fsync", "socket", "grpc", "rsync"):
        if way in middle:
            entry(f"{way}_rate", size_bytes / middle[way] / 1e9, "GB/s")
    ratio("push_over_socket", "socket", "push", 0.75)
    ratio("push_over_grpc", "grpc", "push", 1.2)
    ratio("push_over_cp", "cp", "push", 0.35)
    ratio("push_over_cp_fsync", "cp_fsync", "push", None)
    ratio("push_tls_over_socket", "socket", "push_tls", 0.55)
    for way in ("push", "push_tls"):
        for side in ("client", "server"):
            entry(f"{way}_{side}_cpu", middle[f"{way}_{side}_cpu_s"] / size_bytes * 1e9, "s/GB")
            grown = middle[f"{way}_{side}_mb"] - middle[f"{way}_{side}_base_mb"]
            entry(f"{way}_{side}_memory_over_base", grown, "MB", MAX_MB_PER_STREAM * upload_streams())
    entry("streams_8_server_memory", streams["server_mb"], "MB", 200.0)
    entry("streams_8_client_memory", streams["client_mb"], "MB", 200.0)
    entry("blake3_pass", again["blake3_s"], "s")
    for percent in (0, 1, 10, 100):
        entry(f"again_{percent}_seconds", again[f"again_{percent}_s"], "s")
    entry("again_0_bytes", again["again_0_excess_bytes"], "bytes", 0.0)
    for percent in (1, 10, 100):
        entry(f"again_{percent}_bytes_over_changed", again[f"again_{percent}_bytes_over_changed"], "ratio", 1.01)
    entry("again_0_over_blake3_pass", again["again_0_s"] / again["blake3_s"], "ratio", 1.25)
    entry("health_p50", health["p50"], "ms")
    entry("health_p99", health["p99"], "ms", 25.0)
    return results


def upload_streams() -> int:
    """Streams that one push uses at once."""
    from mindeval.client import _upload

    return _upload.CONCURRENCY


def machine() -> dict[str, object]:
    """What it ran on."""
    import grpc

    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "grpc": grpc.__version__,
        "rsync": shutil.which("rsync") is not None,
        "load_before": round(os.getloadavg()[0], 2),
    }


def measure(size_bytes: int, rounds: int, where: str | None, log: Callable[[str], None]) -> list[dict[str, object]]:
    """Everything; takes about 20 s a round for 1 GB, and a minute besides."""
    with tempfile.TemporaryDirectory(prefix="mindeval-push-", dir=where) as name:
        folder = Path(name)
        file = write_checkpoint(folder / "weights", size_bytes)
        ways = Ways(folder, file)
        names = ["push", "push_tls", "cp", "cp_fsync", "socket", "grpc"]
        if shutil.which("rsync"):
            names.append("rsync")
        else:
            log("rsync is not installed: left out")
        shuffled = random.Random(1)
        for number in range(rounds):
            shuffled.shuffle(names)
            measured = {way: ways.measure(way) for way in names}
            log(f"round {number + 1}: " + ", ".join(f"{way} {seconds:.2f} s" for way, seconds in measured.items()))
        again = measure_again(folder, size_bytes, rounds)
        log("again: " + ", ".join(f"{name} {value:.4g}" for name, value in again.items()))
        streams = measure_streams(folder, write_checkpoint(folder / "part", size_bytes // 4, seed=3))
        log(f"{STREAMS} streams: {streams}")
        health = measure_health(folder, file)
        log(f"health: {health}")
        return results_of(ways.seen, size_bytes, again, streams, health)


def main() -> int:
    """Measures, and prints the JSON object; 0 when the targets are met."""
    if sys.argv[1:2] == ["--child"]:
        CHILDREN[sys.argv[2]](*sys.argv[3:])
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=1000, metavar="MB", help="size of the checkpoint (default 1000)")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each way (default 5)")
    parser.add_argument("--folder", metavar="DIR", help="where the files lie; fsync is free in /dev/shm")
    options = parser.parse_args()
    before = {**machine(), "folder": options.folder or tempfile.gettempdir()}
    results = measure(options.size * MB, options.rounds, options.folder, lambda text: print(text, flush=True))
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    print(json.dumps({"benchmark": "push", "date": date, "machine": before, "results": results}))
    return 0 if all(result["met"] is not False for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Joining states by MindSpore's own collectives, in processes that msrun starts: the bits of a merge on the host."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.metrics.rank_main import LAYOUTS, METHODS, families, fingerprint, shard

from mindeval.service.metrics import create, state_from_bytes
from mindeval.service.runtime.collectives import collective

_TIMEOUT_S = 200.0
_RANK_MAIN = Path(__file__).with_name("rank_main.py")
_MSRUN = Path(sys.executable).with_name("msrun")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def end_with_ranks(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Ends msrun, and the ranks that it starts in sessions of their own: those that were given `folder`."""
    process.kill()
    process.wait()
    ranks = [own for own in psutil.process_iter(["cmdline"]) if str(folder) in (own.info["cmdline"] or ())]
    for rank in ranks:
        with contextlib.suppress(psutil.NoSuchProcess):
            rank.kill()
    psutil.wait_procs(ranks, timeout=10)


def run_ranks(world: int, folder: Path, mode: str) -> None:
    """Runs `rank_main.py` on so many ranks; none of them outlives this call."""
    environment = {
        **os.environ,
        "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python",
        # msrun starts whatever `python` means.
        "PATH": f"{_MSRUN.parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "OMP_NUM_THREADS": "1",
    }
    # How long a rank waits for its peers: on a busy machine they come late.
    environment.setdefault("MS_NODE_TIMEOUT", "60")
    command = [
        str(_MSRUN),
        f"--worker_num={world}",
        f"--local_worker_num={world}",
        "--master_addr=127.0.0.1",
        f"--master_port={free_port()}",
        "--join=True",
        "--cluster_time_out=120",
        f"--log_dir={folder / 'log'}",
        str(_RANK_MAIN),
        str(folder),
        mode,
    ]
    # Files, not pipes: an orphaned worker would hold a pipe open.
    with (folder / "msrun.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder)
        try:
            code = process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            end_with_ranks(process, folder)
    if code:
        tails = [path.read_text(errors="replace")[-1500:] for path in sorted((folder / "log").glob("worker_*.log"))]
        pytest.fail(f"msrun ended with {code}\n" + "\n---\n".join(tails))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mindspore") is None, reason="MindSpore is not installed")
@pytest.mark.skipif(not _MSRUN.exists(), reason=f"there is no {_MSRUN}")
@pytest.mark.parametrize(("world", "mode"), [(2, "pynative"), (3, "graph")])
def test_ranks_under_msrun_get_the_bits_of_one_process(world: int, mode: str, tmp_path: Path) -> None:
    run_ranks(world, tmp_path, mode)
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(world)]
    for family in families():
        name, settings, batch = family
        alone = create(name, settings)
        alone.update(**batch)
        for layout, counts in LAYOUTS[world].items():
            host = create(name, settings)
            for rank in reversed(range(world)):
                host.merge(state_from_bytes(shard(family, counts, rank).to_bytes()))
            wanted = fingerprint(alone)
            assert fingerprint(host) == wanted
            for method in METHODS:
                for found in ranks:
                    assert found[f"{name}/{layout}/{method}"] == wanted, (name, layout, method)


@pytest.mark.parametrize(("target", "method"), [("ascend", "gather"), ("cpu", "all_gather"), ("gpu", "all_reduce")])
def test_collectives_that_no_backend_has_are_refused(target: str, method: str) -> None:
    with pytest.raises(ValueError, match="all_reduce on ascend"):
        collective(target, method)

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mindeval.formats.readers import iter_record_bytes, open_tensors

Raw = dict[str, tuple[str, tuple[int, ...], bytes]]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that MindSpore wrote, in a process of its own."""
    folder = tmp_path_factory.mktemp("made")
    environment = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python", "GLOG_v": "3"}
    script = Path(__file__).with_name("make_fixtures.py")
    done = subprocess.run(
        [sys.executable, str(script), str(folder)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.fixture(scope="session")
def raw():
    """Reads name → (dtype, shape, bytes) of a whole file."""

    def read(path: Path) -> Raw:
        return {t.name: (t.dtype, t.shape, b"".join(iter_record_bytes(t, 5000))) for t in open_tensors(path).tensors}

    return read


@pytest.fixture(scope="session")
def encode():
    """Writes a record of a .ckpt, well-formed or not."""
    return encode_record


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


def field(number: int, data: bytes, length: int | None = None) -> bytes:
    return varint(number << 3 | 2) + varint(len(data) if length is None else length) + data


def encode_record(
    name: str | bytes, kind: str = "Float32", dims: tuple[int, ...] = (1,), content: bytes = b"\0" * 4, more: int = 0
) -> bytes:
    """A record; `more` bytes of content are promised beyond those given."""
    shape = b"".join(b"\x08" + varint(dim) for dim in dims)
    content_field = field(3, content, len(content) + more)
    tensor = shape + field(2, kind.encode()) + content_field
    tag = name.encode() if isinstance(name, str) else name
    value = field(1, tag) + field(2, tensor, len(tensor) + more)
    return field(1, value, len(value) + more)

"""The serialised form of a state: a header, lists of strings, and little-endian arrays. No pickle anywhere.

Binary layout: magic `MDEM`, one format byte, the header's length as uint32, the header as JSON (names, shapes, sizes),
then one deflated block: for each list of strings the byte lengths as uint32 and the UTF-8 bytes, then the arrays.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mindeval.service.metrics.errors import MetricStateError

AnyArray = npt.NDArray[Any]

_MAGIC = b"MDEM\x01"
_MAX_HEADER_BYTES = 1 << 26
_MAX_BODY_BYTES = 1 << 31
_DTYPES = {"i8": "<i8", "i4": "<i4", "i2": "<i2", "u8": "<u8", "u4": "<u4", "u1": "|u1", "f8": "<f8", "f4": "<f4"}


def _damaged(message: str) -> MetricStateError:
    return MetricStateError(f"damaged state: {message}", reason="damaged_state")


def _code(array: AnyArray) -> str:
    code = f"{array.dtype.kind}{array.dtype.itemsize}"
    if code not in _DTYPES:
        raise TypeError(f"arrays of {array.dtype} are not serialised")
    return code


def _array(code: object, shape: object, data: bytes) -> AnyArray:
    if not isinstance(code, str) or code not in _DTYPES:
        raise _damaged(f"unknown array type {code!r}")
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise _damaged(f"bad array shape {shape!r}")
    dtype = np.dtype(_DTYPES[code])
    size = dtype.itemsize
    for side in shape:
        size *= side
    if len(data) != size:
        raise _damaged(f"an array of shape {shape} has {len(data)} bytes, not {size}")
    # A copy in native byte order: the buffer is read-only and may keep a large message alive.
    return np.frombuffer(data, dtype=dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=True)


@dataclass
class Payload:
    """The content of a state, before it is written in one of the two forms.

    Attributes:
        family: The family's name.
        version: The version of the family's content.
        settings: JSON-able settings.
        strings: Lists of text by name, without lone surrogates.
        arrays: Arrays by name, of the integer and float types listed in this module.
    """

    family: str
    version: int
    settings: dict[str, Any]
    strings: dict[str, list[str]] = field(default_factory=dict)
    arrays: dict[str, AnyArray] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; floats inside arrays are base64, so nan and inf need no JSON extension."""
        return {
            "family": self.family,
            "version": self.version,
            "settings": self.settings,
            "strings": {name: list(values) for name, values in self.strings.items()},
            "arrays": {
                name: {
                    "type": _code(array),
                    "shape": list(array.shape),
                    "base64": base64.b64encode(_little(array)).decode("ascii"),
                }
                for name, array in self.arrays.items()
            },
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Payload:
        """Read `to_dict`'s form.

        Raises:
            MetricStateError: Something is missing or malformed (`damaged_state`).
        """
        payload = _header(data)
        strings, arrays = data.get("strings"), data.get("arrays")
        if not isinstance(strings, Mapping) or not isinstance(arrays, Mapping):
            raise _damaged("strings or arrays are missing")
        for name, values in strings.items():
            if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
                raise _damaged(f"{name!r} is not a list of text")
            payload.strings[name] = list(values)
        for name, entry in arrays.items():
            if not isinstance(entry, Mapping) or not isinstance(entry.get("base64"), str):
                raise _damaged(f"{name!r} is not an array")
            try:
                content = base64.b64decode(entry["base64"], validate=True)
            except (binascii.Error, ValueError) as error:
                raise _damaged(f"{name!r}: {error}") from error
            payload.arrays[name] = _array(entry.get("type"), entry.get("shape"), content)
        return payload

    def to_bytes(self) -> bytes:
        """Binary form, several times smaller than the JSON one."""
        blocks: list[bytes] = []
        strings = []
        for name, values in self.strings.items():
            encoded = [value.encode("utf-8") for value in values]
            blocks.append(np.array([len(value) for value in encoded], dtype="<u4").tobytes())
            blocks.append(b"".join(encoded))
            strings.append([name, len(values), len(blocks[-1])])
        arrays = []
        for name, array in self.arrays.items():
            blocks.append(_little(array))
            arrays.append([name, _code(array), list(array.shape), len(blocks[-1])])
        body = b"".join(blocks)
        header = json.dumps(
            {
                "family": self.family,
                "version": self.version,
                "settings": self.settings,
                "strings": strings,
                "arrays": arrays,
                "body": len(body),
            },
            allow_nan=False,
            separators=(",", ":"),
        ).encode("ascii")
        return b"".join((_MAGIC, struct.pack("<I", len(header)), header, zlib.compress(body, 1)))

    @classmethod
    def from_bytes(cls, data: bytes) -> Payload:
        """Read `to_bytes`' form; the inflated size is bounded by what the header declares.

        Raises:
            MetricStateError: The bytes are truncated or malformed (`damaged_state`).
        """
        start = len(_MAGIC) + 4
        if len(data) < start or data[: len(_MAGIC)] != _MAGIC:
            raise _damaged("no state begins here")
        (header_size,) = struct.unpack("<I", data[len(_MAGIC) : start])
        if header_size > _MAX_HEADER_BYTES or start + header_size > len(data):
            raise _damaged("the header is cut off")
        try:
            header = json.loads(data[start : start + header_size])
        except (ValueError, RecursionError) as error:
            raise _damaged(f"the header is not JSON: {error}") from error
        payload = _header(header)
        reader = _Reader(_inflate(data[start + header_size :], header.get("body")))
        try:
            for name, count, size in header["strings"]:
                payload.strings[str(name)] = reader.text(count, size)
            for name, code, shape, size in header["arrays"]:
                payload.arrays[str(name)] = _array(code, shape, reader.take(size))
        except (KeyError, TypeError, ValueError) as error:
            raise error if isinstance(error, MetricStateError) else _damaged(str(error)) from error
        if reader.left():
            raise _damaged(f"{reader.left()} bytes too many")
        return payload


def _little(array: AnyArray) -> bytes:
    return np.ascontiguousarray(array).astype(_DTYPES[_code(array)], copy=False).tobytes()


def _header(data: object) -> Payload:
    if not isinstance(data, Mapping):
        raise _damaged("the header is not an object")
    family, version, settings = data.get("family"), data.get("version"), data.get("settings")
    if not isinstance(family, str) or type(version) is not int or not isinstance(settings, Mapping):
        raise _damaged("family, version or settings are missing")
    return Payload(family=family, version=version, settings=dict(settings))


def _inflate(data: bytes, size: object) -> bytes:
    if type(size) is not int or not 0 <= size <= _MAX_BODY_BYTES:
        raise _damaged(f"bad body size {size!r}")
    try:
        # One byte more than declared, so that a longer body shows without being inflated as a whole.
        inflater = zlib.decompressobj()
        body = inflater.decompress(data, size + 1)
    except zlib.error as error:
        raise _damaged(str(error)) from error
    if len(body) != size or not inflater.eof or inflater.unused_data:
        raise _damaged("the body has another size than declared")
    return body


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._offset = 0

    def left(self) -> int:
        return len(self._data) - self._offset

    def take(self, size: object) -> bytes:
        if type(size) is not int or not 0 <= size <= self.left():
            raise _damaged(f"a block of {size!r} bytes is cut off")
        start = self._offset
        self._offset += size
        return self._data[start : self._offset]

    def text(self, count: object, size: object) -> list[str]:
        if type(count) is not int or count < 0:
            raise _damaged(f"bad count {count!r}")
        lengths = np.frombuffer(self.take(4 * count), dtype="<u4").tolist()
        block = self.take(size)
        if sum(lengths) != len(block):
            raise _damaged("the lengths of a text column do not add up")
        values, start = [], 0
        for length in lengths:
            values.append(block[start : start + length].decode("utf-8"))
            start += length
        return values

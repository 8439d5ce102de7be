"""The protobuf wire format, as much of it as MindSpore's files use, read from bytes at hand with every length checked.

https://protobuf.dev/programming-guides/encoding/: a message is a row of fields; a field is a varint key
(number << 3 | wire type) and a value: a varint (type 0), or a varint length and that many bytes (type 2).
"""

from __future__ import annotations

from collections.abc import Iterator

VARINT = 0
BYTES = 2
_MAX_VARINT_BYTES = 10


class WireError(ValueError):
    """The bytes are no protobuf message."""


class EndOfBytesError(WireError):
    """A value goes on past the bytes at hand."""


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """An unsigned varint at `at` of `data[:end]`.

    Returns:
        The value, at most 2**64 - 1, and the position behind it.

    Raises:
        EndOfBytesError: When `end` comes first.
        WireError: When it is longer than 64 bits.
    """
    if at < end and data[at] < 0x80:
        return data[at], at + 1
    value = shift = 0
    for position in range(at, min(end, at + _MAX_VARINT_BYTES)):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return value, position + 1
        shift += 7
    else:
        if end < at + _MAX_VARINT_BYTES:
            raise EndOfBytesError("it ends within a number")
    raise WireError("it holds a number of more than 64 bits")


def signed(value: int) -> int:
    """The int32 or int64 that an unsigned varint stands for."""
    return value - (1 << 64) if value >> 63 else value


def iter_fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int | tuple[int, int]]]:
    """The fields of the message in `data[at:end]`.

    Yields:
        The key and the value: a number for a varint, the positions (begin, end) in `data` of bytes.

    Raises:
        WireError: When it is no message, or uses another wire type.
    """
    while at < end:
        key, at = read_varint(data, at, end)
        if key & 7 == VARINT:
            value, at = read_varint(data, at, end)
            yield key, value
        elif key & 7 == BYTES:
            size, at = read_varint(data, at, end)
            if size > end - at:
                raise EndOfBytesError("a field goes on past the end of what holds it")
            yield key, (at, at + size)
            at += size
        else:
            raise WireError(f"it holds a field of the unexpected kind {key & 7}")
        if key >> 3 == 0:
            raise WireError("it holds a field numbered 0")


def read_numbers(data: bytes, key: int, value: int | tuple[int, int], limit: int) -> list[int]:
    """The numbers of one occurrence of a repeated number, packed or not, as unsigned varints.

    Raises:
        WireError: When there are more than `limit`, or they are malformed.
    """
    if isinstance(value, int):
        return [value]
    numbers: list[int] = []
    at, end = value
    if end > len(data):
        raise EndOfBytesError("it ends within a list of numbers")
    while at < end:
        number, at = read_varint(data, at, end)
        numbers.append(number)
        if len(numbers) > limit:
            raise WireError(f"a list in field {key >> 3} has more than {limit} numbers")
    return numbers


def key_of(number: int, wire_type: int) -> int:
    """The key of a field."""
    return number << 3 | wire_type

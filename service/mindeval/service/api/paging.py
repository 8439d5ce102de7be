"""Page tokens: opaque to clients, and bound to the method and parameters that they were made for."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from google.protobuf.message import Message

from mindeval.formats.digest import digest_bytes, digest_hex
from mindeval.service.errors import ServiceError

_MAX_TOKEN_LENGTH = 2048


# Clients take messages of 4 MiB by default; a page ends early rather than be larger than this.
_MAX_PAGE_BYTES = 2 << 20

M = TypeVar("M", bound=Message)


def fitting(messages: Iterable[M]) -> list[M]:
    """The first messages that make a page of acceptable size; at least one, if there is one."""
    page: list[M] = []
    size_bytes = 0
    for message in messages:
        size_bytes += message.ByteSize()
        if page and size_bytes > _MAX_PAGE_BYTES:
            break
        page.append(message)
    return page


class Pager:
    """Makes and reads the tokens of one listing."""

    def __init__(self, method: str, *parameters: str) -> None:
        """Binds tokens to a listing.

        Args:
            method: Name of the method.
            parameters: Everything that decides what is listed, apart from the size of a page.
        """
        self._binding = digest_hex(digest_bytes(json.dumps([method, *parameters]).encode("utf-8")))[:16]

    def token(self, *cursor: str | int) -> str:
        """The token of the page after the given place."""
        data = json.dumps([self._binding, *cursor], separators=(",", ":")).encode("utf-8")
        return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")

    def cursor(self, token: str, kinds: Sequence[type]) -> list[Any] | None:
        """The place that a token stands for; None for the beginning.

        Args:
            token: As sent by the client.
            kinds: Types of the parts of a cursor.

        Raises:
            ServiceError: PAGE_TOKEN_INVALID.
        """
        if not token:
            return None
        try:
            if len(token) > _MAX_TOKEN_LENGTH or not token.isascii():
                raise ValueError
            data = json.loads(base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True))
            if not isinstance(data, list) or data[:1] != [self._binding]:
                raise ValueError
            cursor = data[1:]
            if [type(part) for part in cursor] != list(kinds):
                raise ValueError
            if any(isinstance(part, int) and not -(2**63) <= part < 2**63 for part in cursor):
                raise ValueError
        except (ValueError, binascii.Error, RecursionError):
            raise ServiceError(
                "PAGE_TOKEN_INVALID",
                "page_token was not made by this method with these parameters; begin again without one",
                {"field": "page_token"},
            ) from None
        return cursor

"""URIs of checkpoints: how they are read, and which of them a project may name.

Reading is strict rather than clever: there is one way to write a place, and whatever could be taken in two ways (a
query, a fragment, percent-encoding, "..", a host in a file URI) is refused. Where a place really lies, symbolic links
followed, is checked when it is opened (`local`, `objects`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from mindeval.service.errors import FieldError, ServiceError

MAX_URI_LENGTH = 2_048
SCHEMES = ("file", "s3")
ANY_PROJECT = "*"

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z")
_REFUSED = {
    "?": "a query",
    "#": "a fragment",
    "%": "percent-encoding",
    "\\": "a backslash",
}


@dataclass(frozen=True)
class Place:
    """A file, folder, object or prefix of objects.

    Attributes:
        scheme: One of `SCHEMES`.
        bucket: Name of the bucket; "" for files.
        parts: The names below the bucket, or below "/".
    """

    scheme: str
    bucket: str
    parts: tuple[str, ...]

    @property
    def path(self) -> str:
        """The absolute path of a file or folder; the key of an object."""
        joined = "/".join(self.parts)
        return f"/{joined}" if self.scheme == "file" else joined

    def is_below(self, root: Place) -> bool:
        """Whether it is a root or lies below it, by whole names."""
        same_store = (self.scheme, self.bucket) == (root.scheme, root.bucket)
        return same_store and self.parts[: len(root.parts)] == root.parts

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{'/'.join(self.parts)}"


def parse_uri(text: str, field: str = "uri") -> Place:
    """Reads a URI.

    Raises:
        ServiceError: INVALID_FIELD when it is no URI; URI_FORBIDDEN for another scheme, and for everything that
            could hide where it leads.
    """
    if not text or len(text) > MAX_URI_LENGTH or not text.isprintable():
        raise FieldError(field, f"must be 1 to {MAX_URI_LENGTH} printable characters")
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise FieldError(field, f"{text[:120]!r} is not a URI such as file:///shared/run/step-100 or s3://bucket/run")
    if scheme not in SCHEMES:
        raise forbidden(text, f"the scheme {scheme[:40]!r} is none of {', '.join(SCHEMES)}")
    for character, what in _REFUSED.items():
        if character in rest:
            raise forbidden(text, f"{what} is not taken in it")
    host, _, path = rest.partition("/")
    if scheme == "file" and host:
        raise forbidden(text, "a file URI has no host: it begins with file:/// and an absolute path")
    if scheme == "s3" and not _BUCKET.match(host):
        raise forbidden(text, "it does not begin with s3:// and the name of a bucket")
    parts = tuple(path.removesuffix("/").split("/")) if path.strip("/") else ()
    if any(part in ("", ".", "..") for part in parts) or (not parts and path not in ("", "/")):
        raise forbidden(text, "'.', '..' and empty names are not taken in it")
    return Place(scheme, host, parts)


def forbidden(uri: str, why: str) -> ServiceError:
    """The error for a URI that is refused."""
    return ServiceError("URI_FORBIDDEN", f"{uri[:400]}: {why}", {"uri": uri})


def unreadable(uri: str, why: str, file: str = "") -> ServiceError:
    """The error for a place that is allowed and cannot be read."""
    metadata = {"uri": uri, **({"file": file} if file else {})}
    return ServiceError("URI_UNREADABLE", f"{uri[:400]}: {why}", metadata)


class StorageRoots:
    """Below which places each project may name checkpoints."""

    def __init__(self, roots: Mapping[str, Sequence[str]]) -> None:
        """Takes the setting `storage_roots`: URIs by project, "*" for every project.

        Raises:
            ServiceError: INVALID_FIELD or URI_FORBIDDEN when a root is malformed.
        """
        self._roots = MappingProxyType(
            {project: tuple(parse_uri(uri, "storage_roots") for uri in uris) for project, uris in roots.items()}
        )

    def of(self, project: str) -> tuple[Place, ...]:
        """The roots of a project."""
        return self._roots.get(project, ()) + self._roots.get(ANY_PROJECT, ())

    def find(self, project: str, place: Place) -> list[Place]:
        """The roots of a project in the store that a place is in; links from one into another are harmless.

        Raises:
            ServiceError: URI_FORBIDDEN when the place lies below none of them by its name.
        """
        if not any(place.is_below(root) for root in self.of(project)):
            raise outside(project, str(place))
        return [root for root in self.of(project) if (root.scheme, root.bucket) == (place.scheme, place.bucket)]


def outside(project: str, uri: str) -> ServiceError:
    """The error for a place beyond every root of a project."""
    return forbidden(
        uri,
        f"it is not below a storage root of project {project!r}; the operator of the service allows roots with the "
        'setting storage_roots, such as storage_roots = {"' + project + '" = ["file:///shared/' + project + '"]}',
    )

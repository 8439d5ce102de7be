"""Resource names: the one place that makes and reads them.

    projects/{project}
    projects/{project}/runs/{run}
    projects/{project}/evaluations/{evaluation}
    projects/{project}/uploads/{upload}
    projects/{project}/checkpoints/{hex digest of the manifest}
    projects/{project}/datasets/{dataset}[/versions/{hex digest}]
    projects/{project}/suites/{suite}[/versions/{hex digest}]

An id has 1 to 63 of A-Z a-z 0-9 . _ - and begins with a letter or digit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mindeval.formats.errors import FormatError

ID_RULE = "1 to 63 letters, digits, '.', '_' or '-', the first a letter or digit"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
_VERSION = re.compile(r"[0-9a-f]{64}\Z")

_COLLECTIONS = ("runs", "evaluations", "uploads", "checkpoints", "datasets", "suites")
_VERSIONED = ("datasets", "suites")


@dataclass(frozen=True)
class ResourceName:
    """A resource below a project.

    Attributes:
        project: Id of the project.
        collection: "runs", "evaluations", "uploads", "checkpoints", "datasets" or "suites".
        id: Id within the collection.
        version: 64 hexadecimal digits, or "" for the newest (datasets and suites only).
    """

    project: str
    collection: str
    id: str
    version: str = ""

    def __str__(self) -> str:
        tail = f"/versions/{self.version}" if self.version else ""
        return f"projects/{self.project}/{self.collection}/{self.id}{tail}"


def check_id(value: str, field: str) -> str:
    """Returns the id.

    Raises:
        FormatError: INVALID_FIELD when it breaks the rule.
    """
    if not _ID.match(value):
        raise FormatError("INVALID_FIELD", f"{field}: {value[:80]!r} is not an id ({ID_RULE})", {"field": field})
    return value


def project_name(project: str) -> str:
    """Name of a project."""
    return f"projects/{project}"


def parse_project(name: str, field: str) -> str:
    """Id of the project in "projects/{project}".

    Raises:
        FormatError: INVALID_FIELD.
    """
    parts = name.split("/")
    if len(parts) != 2 or parts[0] != "projects":
        raise _malformed(name, field, "projects/{project}")
    return check_id(parts[1], field)


def parse(name: str, collection: str, field: str) -> ResourceName:
    """Reads a name of one collection.

    Raises:
        FormatError: INVALID_FIELD; metadata name the field.
    """
    assert collection in _COLLECTIONS
    singular = collection[:-1]
    form = f"projects/{{project}}/{collection}/{{{singular}}}"
    parts = name.split("/")
    versioned = collection in _VERSIONED and len(parts) == 6
    if not (len(parts) == 4 or versioned) or parts[0] != "projects" or parts[2] != collection:
        raise _malformed(name, field, form)
    version = ""
    if versioned:
        version = parts[5]
        if parts[4] != "versions" or not _VERSION.match(version):
            raise _malformed(name, field, form + "/versions/{64 hexadecimal digits}")
    if collection == "checkpoints":
        if not _VERSION.match(parts[3]):
            raise _malformed(name, field, "projects/{project}/checkpoints/{64 hexadecimal digits}")
        return ResourceName(check_id(parts[1], field), collection, parts[3])
    return ResourceName(check_id(parts[1], field), collection, check_id(parts[3], field), version)


def _malformed(name: str, field: str, form: str) -> FormatError:
    return FormatError("INVALID_FIELD", f"{field}: {name[:120]!r} is not of the form {form}", {"field": field})

"""Checks of request fields; each returns the value or raises INVALID_FIELD with the name of the field."""

from __future__ import annotations

import math
import uuid

from mindeval.formats.names import ResourceName, parse
from mindeval.service.errors import FieldError

DEFAULT_PAGE_SIZE = 50
MAX_PAGE_SIZE = 1000
MAX_INT64 = 2**63 - 1


def text(value: str, field: str, limit: int) -> str:
    """Text of at most so many characters, without NUL."""
    if len(value) > limit:
        raise FieldError(field, f"has {len(value)} characters; at most {limit} are taken")
    if "\0" in value:
        raise FieldError(field, "must not contain a NUL character")
    return value


def whole_number(value: int, field: str, low: int = 0, high: int = MAX_INT64) -> int:
    """A whole number in a range."""
    if not low <= value <= high:
        raise FieldError(
            field, f"is {value}; must be {low} to {high}" if high < MAX_INT64 else f"must be {low} or more"
        )
    return value


def finite(value: float, field: str) -> float:
    """A finite number that is not negative."""
    if not math.isfinite(value) or value < 0:
        raise FieldError(field, f"is {value}; must be finite and not negative")
    return value


def page_size(value: int, default: int = DEFAULT_PAGE_SIZE, most: int = MAX_PAGE_SIZE) -> int:
    """The size of a page: 0 stands for the default, and larger ones are cut to the most."""
    return min(whole_number(value, "page_size"), most) or default


def request_id(value: str) -> str:
    """A UUID, in its usual form, or nothing."""
    if not value:
        return ""
    try:
        return str(uuid.UUID(value))
    except ValueError:
        raise FieldError("request_id", f"{value[:80]!r} is not a UUID") from None


def name_in(project: str, value: str, collection: str, field: str) -> ResourceName:
    """A resource name below a project."""
    name = parse(value, collection, field)
    if name.project != project:
        raise FieldError(field, f"{value[:120]!r} is not in project {project!r}")
    return name


def unversioned(value: str, collection: str, field: str) -> ResourceName:
    """A resource name of a collection without versions."""
    return parse(value, collection, field)

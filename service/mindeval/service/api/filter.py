"""The filter of ListEvaluations.

    filter    = condition { "AND" condition }
    condition = field operator value
    field     = "state" | "run" | "step" | "suite" | "checkpoint"
    operator  = "=" | "!=" | "<" | "<=" | ">" | ">="      (the last four for step only)
    value     = word | number | '"' characters '"'        (\\" and \\\\ inside quotes)

A run or suite is an id or a full name; a suite may name one version. There are no brackets and no OR.
"""

from __future__ import annotations

import re

from mindeval.formats.digest import is_digest
from mindeval.formats.errors import FormatError
from mindeval.formats.names import ResourceName, check_id, parse
from mindeval.service.errors import ServiceError
from mindeval.service.storage.records import Condition, State

MAX_FILTER_LENGTH = 1000
MAX_CONDITIONS = 20

# One token at a time, each alternative begins differently: linear in the length of the filter.
_TOKEN = re.compile(r'\s*(?:(?P<operator>!=|<=|>=|=|<|>)|"(?P<quoted>(?:[^"\\]|\\["\\])*)"|(?P<word>[^\s"=!<>]+))')
_ORDERED = ("<", "<=", ">", ">=")
_FIELDS = ("state", "run", "step", "suite", "checkpoint")


def parse_filter(text: str, project: str) -> tuple[Condition, ...]:
    """Reads a filter.

    Args:
        text: "" for no condition.
        project: Id of the project that is listed.

    Raises:
        ServiceError: FILTER_INVALID, with what is wrong and where.
    """
    if not text.strip():
        return ()
    if len(text) > MAX_FILTER_LENGTH:
        raise _invalid(f"has {len(text)} characters; at most {MAX_FILTER_LENGTH} are taken")
    tokens = _tokens(text)
    conditions = []
    position = 0
    while True:
        part = tokens[position : position + 3]
        kinds = [kind for kind, _ in part]
        if len(part) < 3 or kinds[0] != "word" or kinds[1] != "operator" or kinds[2] == "operator":
            shown = " ".join(value for _, value in part) or "the end"
            raise _invalid(f"expected a condition such as 'step >= 100' at {shown[:80]!r}")
        conditions.append(_condition(part[0][1], part[1][1], part[2][1], project))
        position += 3
        if position == len(tokens):
            break
        if tokens[position] != ("word", "AND"):
            raise _invalid(f"expected AND instead of {tokens[position][1][:80]!r}")
        position += 1
    if len(conditions) > MAX_CONDITIONS:
        raise _invalid(f"has {len(conditions)} conditions; at most {MAX_CONDITIONS} are taken")
    return tuple(conditions)


def parse_order(text: str) -> tuple[str, bool]:
    """Reads order_by.

    Returns:
        "create_time" or "step", and whether the largest comes first.

    Raises:
        ServiceError: INVALID_FIELD.
    """
    orders = {
        "": ("create_time", True),
        "create_time": ("create_time", False),
        "create_time desc": ("create_time", True),
        "step": ("step", False),
        "step desc": ("step", True),
    }
    key = " ".join(text[:80].split())
    if key not in orders:
        known = ", ".join(repr(order) for order in orders if order)
        raise ServiceError("INVALID_FIELD", f"order_by: {text[:80]!r} is none of {known}", {"field": "order_by"})
    return orders[key]


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens = []
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            raise _invalid(f"cannot be read at {text[position : position + 40]!r}")
        value = match.group(match.lastgroup)
        if match.lastgroup == "quoted":
            value = re.sub(r"\\(.)", r"\1", value)
        tokens.append((match.lastgroup, value))
        position = match.end()
    return tokens


def _condition(field: str, operator: str, value: str, project: str) -> Condition:
    if field not in _FIELDS:
        raise _invalid(f"field {field[:80]!r} is none of {', '.join(_FIELDS)}")
    if operator in _ORDERED and field != "step":
        raise _invalid(f"{operator} is for step only; {field} takes = and !=")
    if field == "state":
        if value not in State.__members__:
            raise _invalid(f"state {value[:80]!r} is none of {', '.join(State.__members__)}")
        return Condition("state", operator, int(State[value]))
    if field == "step":
        if not (value.isascii() and value.isdigit()) or len(value) > 18:
            raise _invalid(f"step {value[:80]!r} is not a whole number")
        return Condition("step", operator, int(value))
    if field == "checkpoint":
        if not is_digest(value):
            raise _invalid(f"checkpoint {value[:80]!r} is not a digest")
        return Condition("checkpoint", operator, value)
    try:
        name = _named(field, value, project)
    except FormatError as error:
        raise _invalid(error.message) from None
    if name.version:
        return Condition("suite_version", operator, str(name))
    return Condition(field, operator, name.id)


def _named(field: str, value: str, project: str) -> ResourceName:
    collection = f"{field}s"
    if "/" not in value:
        return ResourceName(project, collection, check_id(value, field))
    name = parse(value, collection, field)
    if name.project != project:
        raise FormatError("INVALID_FIELD", f"{value[:120]!r} is not in project {project!r}")
    return name


def _invalid(what: str) -> ServiceError:
    return ServiceError("FILTER_INVALID", f"filter: {what}", {"field": "filter"})

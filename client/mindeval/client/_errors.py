"""Errors of the client.

MindEvalError                     reason, message, metadata (mindeval.formats.errors)
├── FormatError                   a local file, name or setting does not follow its format
│   └── CheckpointChanged         a file changed while it was read or sent
├── EvaluationFailed              an evaluation ended without results (EvaluationResult.raise_for_state)
└── ServiceError                  the service answered with an error: code, retryable
    ├── ServiceUnavailable        it cannot be reached, or is shutting down
    ├── AccessDenied              the token is missing, wrong, expired or not allowed to do this
    ├── InvalidRequest            a field of the request is wrong
    ├── NotFound                  no such evaluation, suite, dataset, upload or blob
    ├── Conflict                  it exists already, or changed meanwhile
    └── PreconditionFailed        the state of something does not allow it now
"""

# Named as gRPC and the web name these conditions, without a suffix.
# ruff: noqa: N818

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from mindeval.formats.errors import FormatError, MindEvalError

DOMAIN = "mindeval"
UNAVAILABLE = "SERVICE_UNAVAILABLE"
# A service that asks for a longer wait than this (STORAGE_FULL) needs a person first; the caller is told at once.
_LONGEST_RETRY_AFTER_S = 10.0
_DETAILS_KEY = "grpc-status-details-bin"


class CheckpointChanged(FormatError):
    """A file of the checkpoint changed while it was read or sent."""

    def __init__(self, file: str) -> None:
        super().__init__(
            "CHECKPOINT_CHANGED",
            f"{file}: the file changed while it was read; push it again once it is complete",
            {"file": file},
        )


class EvaluationFailed(MindEvalError):
    """An evaluation ended in another state than SUCCEEDED."""


class ServiceError(MindEvalError):
    """An error that the service, or the way to it, answered with.

    Attributes:
        code: Name of the gRPC status code, such as "NOT_FOUND".
        retryable: Whether the same call may succeed later without a change.
        retry_after_s: Seconds that the service asked to wait; None when it did not say.
        missing_digests: Digests of blobs that have to be pushed first (BLOB_MISSING).
    """

    def __init__(
        self,
        reason: str,
        message: str,
        metadata: Mapping[str, str] | None = None,
        *,
        code: str,
        retryable: bool = False,
        retry_after_s: float | None = None,
        missing_digests: Iterable[str] = (),
    ) -> None:
        super().__init__(reason, message, metadata)
        self.code = code
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.missing_digests = tuple(missing_digests)


class ServiceUnavailable(ServiceError):
    """The service cannot be reached, does not answer, or is shutting down."""


class AccessDenied(ServiceError):
    """The token is missing, wrong, expired, or does not allow this."""


class InvalidRequest(ServiceError):
    """A field of the request is wrong."""


class NotFound(ServiceError):
    """Something that the request names does not exist."""


class Conflict(ServiceError):
    """Something exists already, or changed meanwhile."""


class PreconditionFailed(ServiceError):
    """The state of something does not allow the request."""


_CLASSES: Mapping[str, type[ServiceError]] = {
    "UNAVAILABLE": ServiceUnavailable,
    "DEADLINE_EXCEEDED": ServiceUnavailable,
    "UNAUTHENTICATED": AccessDenied,
    "PERMISSION_DENIED": AccessDenied,
    "INVALID_ARGUMENT": InvalidRequest,
    "OUT_OF_RANGE": InvalidRequest,
    "NOT_FOUND": NotFound,
    "ALREADY_EXISTS": Conflict,
    "ABORTED": Conflict,
    "FAILED_PRECONDITION": PreconditionFailed,
}

# What gRPC's texts mean, by a piece of them.
_CAUSES: Mapping[str, str] = {
    "Connection refused": "connection refused: is it running there?",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not trusted: name its authority",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "before receiving SETTINGS": "no answer: is it another kind of service, or one that wants TLS?",
    "Domain name not found": "the name of the host is not known",
    "DNS resolution failed": "the name of the host is not known",
}

# Reasons after which the same upload goes on once its offset was read anew, whatever the status code is.
RESUMABLE_UPLOAD_REASONS = frozenset({"UPLOAD_BUSY", "UPLOAD_OFFSET_MISMATCH", "UPLOAD_NOT_FOUND"})


def from_rpc_error(error: grpc.aio.AioRpcError, endpoint: str) -> ServiceError:
    """The error that a failed call stands for.

    Args:
        error: What gRPC raised.
        endpoint: Where the call went, for the message.
    """
    code = error.code().name
    details = error.details() or ""
    status = _status_details(error)
    if status is None:
        return _from_transport(code, details, endpoint)
    info, retry_after_s, missing = _read_details(status)
    if info is None:
        return _from_transport(code, details, endpoint)
    kind = ServiceUnavailable if info.reason == "SERVICE_DRAINING" else _CLASSES.get(code, ServiceError)
    return kind(
        info.reason,
        status.message or details or info.reason,
        dict(info.metadata),
        code=code,
        retryable=code in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
        or (retry_after_s is not None and retry_after_s <= _LONGEST_RETRY_AFTER_S),
        retry_after_s=retry_after_s,
        missing_digests=missing,
    )


def unavailable(endpoint: str, what: str, code: str = "UNAVAILABLE") -> ServiceUnavailable:
    """The error that the service at an endpoint `what` ("cannot be reached", say)."""
    return ServiceUnavailable(
        UNAVAILABLE, f"the service at {endpoint} {what}", {"endpoint": endpoint}, code=code, retryable=True
    )


def read_status(status: status_pb2.Status) -> tuple[str, str, dict[str, str]]:
    """Reason, message and metadata of a google.rpc.Status inside a message."""
    info, _, _ = _read_details(status)
    if info is None:
        return "UNSPECIFIED", status.message, {}
    return info.reason, status.message, dict(info.metadata)


def _from_transport(code: str, details: str, endpoint: str) -> ServiceError:
    # No ErrorInfo: gRPC itself made this status, or something between us and the service did.
    cut = code in ("UNKNOWN", "INTERNAL") and ("RST_STREAM" in details or "Stream removed" in details)
    if code in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED") or cut:
        what = "does not answer in time" if code == "DEADLINE_EXCEEDED" else "cannot be reached"
        return unavailable(endpoint, f"{what} ({_cause(details)})", code)
    if code == "UNIMPLEMENTED":
        message = f"the service at {endpoint} does not know this call; its version is older than this client's"
    else:
        message = f"the service at {endpoint} answered {code}: {_first_line(details)}"
    return _CLASSES.get(code, ServiceError)(code, message, {"endpoint": endpoint}, code=code)


def _status_details(error: grpc.aio.AioRpcError) -> status_pb2.Status | None:
    metadata: Any = error.trailing_metadata() or ()
    for key, value in metadata:
        if key == _DETAILS_KEY and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                return None
    return None


def _read_details(
    status: status_pb2.Status,
) -> tuple[error_details_pb2.ErrorInfo | None, float | None, list[str]]:
    info: error_details_pb2.ErrorInfo | None = None
    retry_after_s: float | None = None
    missing: list[str] = []
    for detail in status.details:
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            candidate = error_details_pb2.ErrorInfo()
            detail.Unpack(candidate)
            if candidate.domain == DOMAIN:
                info = candidate
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            retry = error_details_pb2.RetryInfo()
            detail.Unpack(retry)
            retry_after_s = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
        elif detail.Is(error_details_pb2.PreconditionFailure.DESCRIPTOR):
            failure = error_details_pb2.PreconditionFailure()
            detail.Unpack(failure)
            missing.extend(violation.subject for violation in failure.violations)
    return info, retry_after_s, missing


def _cause(details: str) -> str:
    """What gRPC's details mean for a person."""
    return next((meaning for sign, meaning in _CAUSES.items() if sign in details), _first_line(details))


def _first_line(text: str) -> str:
    line = text.strip().splitlines()[0] if text.strip() else "no details"
    return line if len(line) <= 200 else line[:197] + "..."

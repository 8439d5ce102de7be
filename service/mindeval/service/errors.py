"""Errors of the service, and the one table that turns a reason into a gRPC status.

    MindEvalError (mindeval.formats.errors)
    └── ServiceError          refused by the service; may say when to try again
        ├── FieldError        INVALID_FIELD: one field of a request
        └── BlobsMissingError      BLOB_MISSING: blobs that a request needs

Handlers raise; the interceptor (api/guard.py) aborts the call with what `status_of` builds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import grpc
from google.protobuf import any_pb2, message
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from mindeval.formats.errors import MindEvalError

DOMAIN = "mindeval"
DETAILS_KEY = "grpc-status-details-bin"

# Trailers above about 8 KB arrive as RESOURCE_EXHAUSTED, or not at all, so everything below stays well under that.
MAX_STATUS_BYTES = 5_500
_MAX_MESSAGE_CHARACTERS = 800
_MAX_MESSAGE_BYTES = 1_200
_MAX_METADATA_PAIRS = 16
_MAX_METADATA_BYTES = 160
_MAX_LISTED_BLOBS = 24

_Code = grpc.StatusCode
STATUS_CODES: Mapping[str, grpc.StatusCode] = MappingProxyType(
    {
        "INVALID_FIELD": _Code.INVALID_ARGUMENT,
        "REQUEST_ID_REUSED": _Code.INVALID_ARGUMENT,
        "PAGE_TOKEN_INVALID": _Code.INVALID_ARGUMENT,
        "FILTER_INVALID": _Code.INVALID_ARGUMENT,
        "ETAG_MISMATCH": _Code.ABORTED,
        "SERVICE_DRAINING": _Code.UNAVAILABLE,
        "INTERNAL": _Code.INTERNAL,
        "EVALUATION_NOT_FOUND": _Code.NOT_FOUND,
        "EVALUATION_EXISTS": _Code.ALREADY_EXISTS,
        "EVALUATION_TERMINAL": _Code.FAILED_PRECONDITION,
        "EVENTS_EXPIRED": _Code.OUT_OF_RANGE,
        "SEQUENCE_AHEAD": _Code.OUT_OF_RANGE,
        "CANCELLED_BY_USER": _Code.CANCELLED,
        "EVALUATION_TIMEOUT": _Code.DEADLINE_EXCEEDED,
        "TASKS_FAILED": _Code.FAILED_PRECONDITION,
        "SUITE_NOT_FOUND": _Code.NOT_FOUND,
        "DATASET_NOT_FOUND": _Code.NOT_FOUND,
        "RUN_NOT_FOUND": _Code.NOT_FOUND,
        "UNKNOWN_METRIC": _Code.INVALID_ARGUMENT,
        "UNKNOWN_TASK_TYPE": _Code.INVALID_ARGUMENT,
        "DATASET_EMPTY": _Code.FAILED_PRECONDITION,
        "DATASET_INVALID": _Code.FAILED_PRECONDITION,
        "UPLOAD_NOT_FOUND": _Code.NOT_FOUND,
        "UPLOAD_BUSY": _Code.ABORTED,
        "UPLOAD_OFFSET_MISMATCH": _Code.ABORTED,
        "UPLOAD_SIZE_MISMATCH": _Code.FAILED_PRECONDITION,
        "DIGEST_MISMATCH": _Code.DATA_LOSS,
        "BLOB_NOT_FOUND": _Code.NOT_FOUND,
        "BLOB_MISSING": _Code.FAILED_PRECONDITION,
        "STORAGE_FULL": _Code.RESOURCE_EXHAUSTED,
        "CHECKPOINT_UNREADABLE": _Code.INVALID_ARGUMENT,
        "CHECKPOINT_TRUNCATED": _Code.INVALID_ARGUMENT,
        "CHECKPOINT_CORRUPT": _Code.DATA_LOSS,
        "MANIFEST_INVALID": _Code.INVALID_ARGUMENT,
        "TENSOR_MISSING": _Code.INVALID_ARGUMENT,
        "TENSOR_UNEXPECTED": _Code.INVALID_ARGUMENT,
        "TENSOR_MISMATCH": _Code.INVALID_ARGUMENT,
        "NON_FINITE_WEIGHT": _Code.INVALID_ARGUMENT,
        "MODEL_UNSUPPORTED": _Code.INVALID_ARGUMENT,
        "MODEL_INVALID": _Code.INVALID_ARGUMENT,
        "TOKENIZER_INVALID": _Code.INVALID_ARGUMENT,
        "TOKEN_OUT_OF_VOCABULARY": _Code.INVALID_ARGUMENT,
        "CHECKPOINT_CHANGED": _Code.ABORTED,
        "CHECKPOINT_NOT_FOUND": _Code.NOT_FOUND,
        "CHECKPOINT_IN_USE": _Code.FAILED_PRECONDITION,
        "URI_FORBIDDEN": _Code.PERMISSION_DENIED,
        "URI_UNREADABLE": _Code.FAILED_PRECONDITION,
        "QUOTA_EXCEEDED": _Code.RESOURCE_EXHAUSTED,
        "RUNNER_LOST": _Code.UNAVAILABLE,
        "RUNNER_HUNG": _Code.UNAVAILABLE,
        "RUNNER_START_FAILED": _Code.UNAVAILABLE,
        "OUT_OF_MEMORY": _Code.RESOURCE_EXHAUSTED,
        "RUNNER_ERROR": _Code.UNKNOWN,
    }
)
"""gRPC status code of every reason of `mindeval.v1.ErrorReason`."""

# Causes that can pass by themselves, with the seconds after which a caller may try again.
_RETRY_AFTER_S: Mapping[str, float] = MappingProxyType(
    {"SERVICE_DRAINING": 2.0, "UPLOAD_BUSY": 0.2, "STORAGE_FULL": 30.0}
)


class ServiceError(MindEvalError):
    """A request that the service refuses.

    Attributes:
        retry_after_s: Seconds after which the same call may succeed; None when repeating it is no use.
    """

    def __init__(
        self,
        reason: str,
        message: str,
        metadata: Mapping[str, str] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(reason, message, metadata)
        self.retry_after_s = _RETRY_AFTER_S.get(reason) if retry_after_s is None else retry_after_s


class FieldError(ServiceError):
    """A field of a request is missing, malformed or out of range."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__("INVALID_FIELD", f"{field}: {rule}", {"field": field})


class BlobsMissingError(ServiceError):
    """A request needs blobs that the project does not hold.

    Attributes:
        digests: All of them; the status lists the first ones and counts the rest.
    """

    def __init__(self, what: str, digests: Iterable[str]) -> None:
        self.digests = list(dict.fromkeys(digests))
        count = len(self.digests)
        super().__init__(
            "BLOB_MISSING",
            f"{what} needs {count} blob{'s' if count != 1 else ''} that the project does not hold; upload "
            f"{'them' if count != 1 else 'it'} (FindMissingBlobs lists all) and try again",
            {"missing_count": str(count), "digest": self.digests[0] if self.digests else ""},
        )


def known_reason(reason: str) -> bool:
    """Whether the reason is one of the public ones (a runner's report may hold anything)."""
    return reason in STATUS_CODES


def code_of(reason: str) -> grpc.StatusCode:
    """gRPC status code of a reason; UNKNOWN for one that this release does not know."""
    return STATUS_CODES.get(reason, _Code.UNKNOWN)


def status_of(error: MindEvalError) -> status_pb2.Status:
    """The error as google.rpc.Status: ErrorInfo first, then the details that its kind calls for.

    The result is at most `MAX_STATUS_BYTES` long: messages and metadata are cut, and blobs beyond the first ones are
    only counted.
    """
    status = status_pb2.Status(code=code_of(error.reason).value[0], message=_short_message(error.message))
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    for key, value in list(error.metadata.items())[:_MAX_METADATA_PAIRS]:
        info.metadata[_cut(key, 64)] = _cut(value, _MAX_METADATA_BYTES)
    _attach(status, info)
    field = error.metadata.get("field", "")
    if error.reason == "INVALID_FIELD" and field:
        bad = error_details_pb2.BadRequest()
        bad.field_violations.add(field=_cut(field, _MAX_METADATA_BYTES), description=_cut(error.message, 400))
        _attach(status, bad)
    if isinstance(error, BlobsMissingError):
        failure = error_details_pb2.PreconditionFailure()
        for digest in error.digests[:_MAX_LISTED_BLOBS]:
            failure.violations.add(type="BLOB", subject=digest, description="missing")
        _attach(status, failure)
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        delay = Duration()
        delay.FromMilliseconds(round(retry_after_s * 1000))
        _attach(status, error_details_pb2.RetryInfo(retry_delay=delay))
    return status


def _attach(status: status_pb2.Status, detail: message.Message) -> None:
    packed = any_pb2.Any()
    packed.Pack(detail)
    if status.ByteSize() + packed.ByteSize() <= MAX_STATUS_BYTES:
        status.details.append(packed)


def _short_message(text: str) -> str:
    return _cut(text[:_MAX_MESSAGE_CHARACTERS], _MAX_MESSAGE_BYTES)


def _cut(text: str, size_bytes: int) -> str:
    # Lone surrogates (from file names, or from a runner's log) cannot be put into a protobuf string.
    data = text.encode("utf-8", errors="replace")
    if len(data) <= size_bytes:
        return data.decode("utf-8")
    return data[: size_bytes - 3].decode("utf-8", errors="ignore") + "…"

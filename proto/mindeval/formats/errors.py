"""The root of the error tree.

Every error that MindEval raises on purpose is a `MindEvalError`: a reason (a name of `mindeval.v1.ErrorReason` without
its prefix), a message that says what to do, and metadata that name what was at fault. The service turns it into a gRPC
status in one place; the client turns the status back into the same class.
"""

from __future__ import annotations

from collections.abc import Mapping


class MindEvalError(Exception):
    """Something that was asked for cannot be done.

    Attributes:
        reason: Name of an `ErrorReason` without its prefix, such as "TENSOR_MISSING".
        message: One or two sentences: what is wrong and what to do.
        metadata: What was at fault: "field", "file", "tensor", "sample", "digest" and the like, as text.
    """

    def __init__(self, reason: str, message: str, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.metadata: dict[str, str] = dict(metadata or {})

    def __str__(self) -> str:
        return f"{self.message} [{self.reason}]"


class FormatError(MindEvalError):
    """A file, manifest or name does not follow its format."""

"""The error tree of the metrics package.

    MetricError (ValueError)
    ├── MetricSettingsError   a setting is unknown or has a bad value; `.field` names it
    ├── MetricInputError      a batch given to `update` is malformed; `.sample_id` names the sample
    └── MetricStateError      two states cannot be merged or compared, or a serialised state cannot be read

Every error has a short machine-readable `reason`, so that a caller never has to parse the message.
"""

from __future__ import annotations


class MetricError(ValueError):
    """Base of every error raised by this package.

    Attributes:
        reason: A stable code in snake case, such as `length_mismatch`.
        sample_id: The sample at fault, or None when the error concerns no single sample.
    """

    def __init__(self, message: str, *, reason: str, sample_id: str | None = None) -> None:
        super().__init__(message if sample_id is None else f"sample {sample_id!r}: {message}")
        self.reason = reason
        self.sample_id = sample_id


class MetricSettingsError(MetricError):
    """A setting is unknown, has the wrong type, or a value outside its range.

    Attributes:
        field: The name of the setting.
    """

    def __init__(self, message: str, *, field: str, reason: str = "invalid_setting") -> None:
        super().__init__(f"{field}: {message}", reason=reason)
        self.field = field


class MetricInputError(MetricError):
    """A batch given to `update` cannot be scored; the state is left as it was."""


class MetricStateError(MetricError):
    """States do not fit together, or a serialised state is damaged, too new, or of another family."""

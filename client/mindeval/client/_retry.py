"""When to try again, and how long to wait before."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass

from mindeval.client._errors import ServiceError

_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 5.0


@dataclass(frozen=True)
class Patience:
    """How long a call keeps trying while the service is out of reach.

    Attributes:
        connect_timeout_s: Seconds until the first answer ever; short, because a wrong address shows itself here.
        timeout_s: Seconds later on, long enough for a restart of the service. `math.inf` to try for ever.
    """

    connect_timeout_s: float = 10.0
    timeout_s: float = 60.0


class Retry:
    """The tries of one operation: jittered, growing delays, until its patience ends."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._failures = 0

    def progressed(self) -> None:
        """Something worked: the next failure is a first one again."""
        self._since = time.monotonic()
        self._failures = 0

    def check(self, error: ServiceError, limit_s: float) -> None:
        """Lets the next try be made at another time, unless the patience has ended.

        Args:
            error: Why the last try failed.
            limit_s: As for `pause`.

        Raises:
            ServiceError: The given error, when the patience has ended.
        """
        if time.monotonic() - self._since >= limit_s:
            raise error

    async def pause(self, error: ServiceError, limit_s: float) -> None:
        """Waits before the next try.

        Args:
            error: Why the last try failed.
            limit_s: Patience in seconds, from the first failure after the last progress.

        Raises:
            ServiceError: The given error, when the patience has ended.
        """
        delay = self._next_delay_s()
        if error.retry_after_s is not None:
            delay = max(delay, error.retry_after_s * random.uniform(1.0, 1.2))
        left = limit_s - (time.monotonic() - self._since)
        if left <= 0:
            raise error
        await asyncio.sleep(min(delay, left))

    def _next_delay_s(self) -> float:
        # Half fixed, half random: clients that were cut off together do not come back together.
        ceiling = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(self._failures, 10))
        self._failures += 1
        return ceiling * random.uniform(0.5, 1.0)

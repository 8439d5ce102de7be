"""The one fact that the parts of the service share about shutting down."""

from __future__ import annotations

import asyncio

from mindeval.service.errors import ServiceError


class Drain:
    """Off until the service begins to shut down, then on for good."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    @property
    def is_on(self) -> bool:
        """Whether the service is shutting down."""
        return self._event.is_set()

    def begin(self) -> None:
        """Turns it on."""
        self._event.set()

    async def wait(self) -> None:
        """Waits until it is on."""
        await self._event.wait()


def refusal() -> ServiceError:
    """The error for what is not begun any more."""
    return ServiceError("SERVICE_DRAINING", "the service is shutting down; try again in a moment")

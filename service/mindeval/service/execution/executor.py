"""The interface between the scheduler and whatever runs jobs."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from mindeval.service.execution.job import Job, Report
from mindeval.service.storage.records import Failure


class DeviceState(enum.IntEnum):
    """What the runner of a device does; the numbers are those of `mindeval.v1.DeviceState`."""

    STARTING = 1
    IDLE = 2
    BUSY = 3
    LOST = 4


@dataclass(frozen=True)
class DeviceStatus:
    """A device, and the evaluator build that its runner told ("" before it did)."""

    name: str
    state: DeviceState
    evaluator_build: str


@dataclass(frozen=True)
class Reservation:
    """The right to run one job on a device; worthless once the device's runner is gone."""

    device: str
    serial: int


class DeviceLost(Exception):  # noqa: N818 - not an error of the job: it never began
    """The runner of a reserved device ended before the job reached it."""


class Executor(ABC):
    """Runs jobs on devices, one at a time on each."""

    @abstractmethod
    async def start(self, on_change: Callable[[], None]) -> None:
        """Begins to start runners, and returns at once.

        Args:
            on_change: Called on the event loop whenever a device has become idle, or could not be started.
        """

    @abstractmethod
    def devices(self) -> list[DeviceStatus]:
        """All devices, in order."""

    @abstractmethod
    def start_failure(self) -> Failure | None:
        """Why no device can be started, when that has gone on for several tries; None otherwise."""

    @abstractmethod
    def reserve(self, device: str) -> Reservation:
        """Takes an idle device; `run` or `release` must follow."""

    @abstractmethod
    def release(self, reservation: Reservation) -> None:
        """Gives a reserved device back unused."""

    @abstractmethod
    def run(self, reservation: Reservation, job: Job) -> AsyncGenerator[Report, None]:
        """Runs a job on a reserved device and yields its reports; the last one is Finished, Failed or Cancelled.

        A runner that ends, hangs or talks nonsense gives Failed (RUNNER_LOST, RUNNER_HUNG). A caller that closes the
        generator early ends the runner.

        Raises:
            DeviceLost: When the job did not reach the runner.
        """

    @abstractmethod
    def cancel(self, device: str, job_id: str) -> None:
        """Asks for a running job to stop; its runner is ended when it does not within the grace period."""

    @abstractmethod
    async def stop(self) -> None:
        """Ends all runners, and with them what they are at work on."""

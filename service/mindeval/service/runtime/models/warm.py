"""The architectures that a runner keeps compiled."""

from __future__ import annotations

import gc
from collections import OrderedDict

from mindeval.service.runtime.models.adapter import ModelAdapter
from mindeval.service.runtime.models.select import Architecture


class WarmModels:
    """Adapters by architecture, the least recently used one dropped when there are too many."""

    def __init__(self, capacity: int = 2) -> None:
        self._capacity = capacity
        self._adapters: OrderedDict[str, ModelAdapter] = OrderedDict()

    def get(self, architecture: Architecture) -> tuple[ModelAdapter, bool]:
        """The adapter of an architecture, and whether it was there already.

        Raises:
            RunnerError: What building it raises; nothing is kept then.
        """
        adapter = self._adapters.get(architecture.key)
        if adapter is not None:
            self._adapters.move_to_end(architecture.key)
            return adapter, True
        while len(self._adapters) >= self._capacity:
            self._adapters.popitem(last=False)
            # Cells and graphs refer to each other in circles; the memory is wanted before the next one is built.
            gc.collect()
        adapter = architecture.build()
        self._adapters[architecture.key] = adapter
        return adapter, False

    def drop_all(self) -> None:
        """Forgets everything, to give memory back after the device ran out of it."""
        self._adapters.clear()
        gc.collect()

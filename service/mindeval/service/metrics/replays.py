"""The replays behind the checks of a metric: ways for the same samples to arrive, and what must not differ."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mindeval.service.metrics.errors import MetricError
from mindeval.service.metrics.interface import MetricState, MetricValue

Batch = Mapping[str, Any]
Factory = Callable[[], MetricState]


def sample_count(batch: Batch) -> int:
    """The number of samples in a batch; raises ValueError when arguments differ in length."""
    sizes = {name: len(values) for name, values in batch.items() if values is not None}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"arguments differ in length: {sizes}")
    return next(iter(sizes.values()), 0)


def select(batch: Batch, indices: Sequence[int]) -> dict[str, Any]:
    """The samples at `indices` of a batch, in that order."""
    chosen: dict[str, Any] = {}
    for name, values in batch.items():
        if values is None:
            chosen[name] = None
        elif isinstance(values, np.ndarray):
            chosen[name] = values[np.asarray(indices, dtype=np.int64)]
        else:
            chosen[name] = [values[k] for k in indices]
    return chosen


def bits(results: Mapping[str, MetricValue]) -> dict[str, tuple[Any, ...]]:
    """Results in a form in which `==` compares every bit, nan included."""
    return {
        name: (
            struct.pack("<d", value.value),
            None if value.standard_error is None else struct.pack("<d", value.standard_error),
            value.standard_error_method,
            value.count,
            value.signature,
            value.flags,
        )
        for name, value in results.items()
    }


@dataclass(frozen=True)
class Subject:
    """A metric under one replay.

    Attributes:
        factory: Makes an empty state.
        batch: Keyword arguments of one update with all samples.
        samples: How many samples it has.
        names: The metrics to compare; None for all.
        made: The states that the replay made: for each, the positions of the samples of each update.
    """

    factory: Factory
    batch: Batch
    samples: int
    names: Sequence[str] | None
    made: list[list[list[int]]] = field(default_factory=list)

    def state(self, batches: Sequence[Sequence[int]]) -> MetricState:
        """A state after these updates."""
        self.made.append([list(indices) for indices in batches])
        state = self.factory()
        for indices in batches:
            state.update(**select(self.batch, indices))
        return state

    def whole(self) -> MetricState:
        """The state after one update with all samples."""
        return self.state([range(self.samples)])

    def differs(self, state: MetricState, expected: MetricState | None = None) -> str:
        """What differs from the state made by one update, or an empty text."""
        before = (expected or self.whole()).result(self.names)
        after = state.result(self.names)
        old, new = bits(before), bits(after)
        changed = [_change(name, before[name], after.get(name)) for name in old if old[name] != new.get(name)]
        return "; ".join(changed)


def _change(name: str, before: MetricValue, after: MetricValue | None) -> str:
    """What differs, in the words of a message."""
    if after is None:
        return f"{name} is missing"
    for part in ("value", "standard_error", "standard_error_method", "count", "flags", "signature"):
        old, new = getattr(before, part), getattr(after, part)
        if repr(old) != repr(new):
            return f"{name}: {part} {old!r} became {new!r}"
    return f"{name} changed in its last bits"


def cut(items: Sequence[int], parts: int, generator: random.Random) -> list[list[int]]:
    """Cut a sequence at random places into `parts` pieces; some may be empty."""
    places = sorted(generator.randint(0, len(items)) for _ in range(parts - 1))
    edges = [0, *places, len(items)]
    return [list(items[a:b]) for a, b in zip(edges, edges[1:])]


def _shuffled(samples: int, generator: random.Random) -> list[int]:
    order = list(range(samples))
    generator.shuffle(order)
    return order


def _batches(subject: Subject, generator: random.Random) -> str:
    return subject.differs(subject.state(cut(range(subject.samples), generator.randint(1, 5), generator)))


def _order(subject: Subject, generator: random.Random) -> str:
    return subject.differs(subject.state([_shuffled(subject.samples, generator)]))


def _shards(subject: Subject, generator: random.Random) -> str:
    parts = cut(_shuffled(subject.samples, generator), generator.randint(2, 4), generator)
    states = [subject.state(cut(part, 2, generator)) for part in parts]
    total = subject.factory()
    for state in states:
        total.merge(state)
    return subject.differs(total)


def _merge_tree(subject: Subject, generator: random.Random) -> str:
    parts = cut(_shuffled(subject.samples, generator), generator.randint(2, 6), generator)
    states = [subject.state([part]) for part in parts]
    while len(states) > 1:
        other = states.pop(generator.randrange(len(states)))
        states[generator.randrange(len(states))].merge(other)
    return subject.differs(states[0])


def _duplicates(subject: Subject, generator: random.Random) -> str:
    repeats = [generator.randrange(subject.samples) for _ in range(generator.randint(1, 4))]
    together = [*range(subject.samples), *repeats]
    return subject.differs(subject.state([together])) or subject.differs(
        subject.state([range(subject.samples), repeats])
    )


def _overlapping_shards(subject: Subject, generator: random.Random) -> str:
    parts = cut(_shuffled(subject.samples, generator), 3, generator)
    extra = [generator.randrange(subject.samples) for _ in range(2)]
    total = subject.state([parts[0] + extra])
    for part in parts[1:]:
        total.merge(subject.state([part + extra]))
    return subject.differs(total)


def _serialisation(subject: Subject, generator: random.Random) -> str:
    first, second = cut(_shuffled(subject.samples, generator), 2, generator)
    left, right = subject.state([first]), subject.state([second])
    left = type(left).from_bytes(left.to_bytes())
    right = type(right).from_dict(json.loads(json.dumps(right.to_dict(), allow_nan=False)))
    left.merge(right)
    if detail := subject.differs(left):
        return detail
    return "" if left.to_bytes() == subject.whole().to_bytes() else "equal states have different bytes"


def _empty(subject: Subject, generator: random.Random) -> str:
    empty = subject.factory()
    empty.result(subject.names)
    empty = type(empty).from_bytes(empty.to_bytes())
    left = subject.whole()
    left.merge(empty)
    empty.merge(subject.whole())
    return subject.differs(left) or subject.differs(empty)


def _other_unchanged(subject: Subject, generator: random.Random) -> str:
    first, second = cut(_shuffled(subject.samples, generator), 2, generator)
    left, right = subject.state([first]), subject.state([second])
    before = right.to_bytes()
    left.merge(right)
    left.update(**select(subject.batch, second if not _bounded(left) else []))
    left.result(subject.names)
    return "" if right.to_bytes() == before else "merge changed the other state"


def _result_repeats(subject: Subject, generator: random.Random) -> str:
    first, second = cut(range(subject.samples), 2, generator)
    state = subject.state([first])
    state.result(subject.names)
    state.update(**select(subject.batch, second))
    state.result(subject.names)
    return subject.differs(state)


def _names(subject: Subject, generator: random.Random) -> str:
    whole = subject.whole().result(subject.names)
    name = generator.choice(sorted(whole))
    alone = subject.whole().result([name])
    return "" if bits(alone)[name] == bits(whole)[name] else f"{name} alone differs"


def _update_is_atomic(subject: Subject, generator: random.Random) -> str:
    state = subject.whole()
    before = state.to_bytes()
    broken = dict(select(subject.batch, [0]))
    name = generator.choice([key for key, values in broken.items() if values is not None])
    broken[name] = [*broken[name], *broken[name]]
    if len(broken) > 1:
        try:
            state.update(**broken)
        except MetricError:
            pass
        else:
            return f"{name} of another length was accepted"
    return "" if state.to_bytes() == before else "a refused update changed the state"


def _bounded(state: MetricState) -> bool:
    return not state.exact_over_samples


@dataclass(frozen=True)
class Check:
    """One promise of `MetricState` and the replay that tries to break it.

    Attributes:
        name: Such as `shards`.
        promise: What has to hold, in a few words.
        replay: Returns what differed, or an empty text.
        overlapping: Whether it merges states that share samples, which states of bounded memory refuse.
    """

    name: str
    promise: str
    replay: Callable[[Subject, random.Random], str]
    overlapping: bool = False


CHECKS = (
    Check("batches", "any split into batches gives the same bits", _batches),
    Check("order", "any order of samples gives the same bits", _order),
    Check("shards", "states of shards merge to the same bits", _shards),
    Check("merge_tree", "so they do in any tree of merges", _merge_tree),
    Check("duplicates", "a sample given twice counts once", _duplicates),
    Check("overlapping_shards", "a sample in several states counts once", _overlapping_shards, overlapping=True),
    Check("serialisation", "bytes and JSON carry a state; equal states have equal bytes", _serialisation),
    Check("empty", "an empty state reports, travels and merges", _empty),
    Check("other_unchanged", "merge leaves the other state alone", _other_unchanged),
    Check("result_repeats", "results in between change nothing", _result_repeats),
    Check("names", "a metric alone has the bits that it has among all", _names),
    Check("update_is_atomic", "a refused update leaves the state alone", _update_is_atomic),
)

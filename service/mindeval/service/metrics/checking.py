"""Checks that a metric keeps the promises of `MetricState`: the same bits however its samples arrive.

Meant for the authors of custom metrics, and run on every metric of this package. A check needs a factory of empty
states and one batch of samples; it replays the batch in many ways and compares every bit of the results.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindeval.service.metrics.errors import MetricError
from mindeval.service.metrics.interface import MetricState, MetricValue
from mindeval.service.metrics.registry import state_type

Batch = Mapping[str, Any]
Factory = Callable[[], MetricState]


@dataclass(frozen=True)
class CheckFailure:
    """One broken promise.

    Attributes:
        check: The check's name, such as `shards`.
        detail: What differed, or the error that was raised.
        trial: The trial's number; the same seed and trial repeat it.
    """

    check: str
    detail: str
    trial: int


@dataclass(frozen=True)
class CheckReport:
    """The outcome of `check_metric`.

    Attributes:
        checks: Names of all checks that ran.
        failures: At most one failure a check, the first seen.
        samples: Number of samples in the batch.
    """

    checks: tuple[str, ...]
    failures: tuple[CheckFailure, ...]
    samples: int

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return not self.failures


def check_metric(
    factory: Factory,
    batch: Batch,
    *,
    names: Sequence[str] | None = None,
    trials: int = 20,
    seed: int = 0,
    overlaps: bool = True,
) -> CheckReport:
    """Replay a batch in many ways and compare the results bit by bit.

    Args:
        factory: Makes an empty state; called often.
        batch: Keyword arguments of one `update`: sequences or arrays whose first axis is the sample, or None.
        names: The metrics to compare; all by default.
        trials: Random replays of each check.
        seed: Seed of the replays.
        overlaps: Whether states that share samples may be merged; False for states of bounded memory.

    Returns:
        The report. An exception inside the metric is a failure of the check that met it, not an error here.

    Raises:
        ValueError: The batch has no samples, or its arguments differ in length.
    """
    samples = sample_count(batch)
    if samples == 0:
        raise ValueError("the batch has no samples")
    failures = []
    checks = [name for name in _CHECKS if overlaps or name not in _OVERLAPPING]
    for name in checks:
        generator = random.Random(f"{seed}/{name}")
        for trial in range(trials):
            try:
                detail = _CHECKS[name](_Subject(factory, batch, samples, names), generator)
            except Exception as error:  # a metric under test may raise anything, and each is a finding
                detail = f"{type(error).__name__}: {error}"
            if detail:
                failures.append(CheckFailure(name, detail, trial))
                break
    return CheckReport(tuple(checks), tuple(failures), samples)


def check_family(family: str, settings: Mapping[str, Any] | None = None, *, trials: int = 20) -> CheckReport:
    """Run `check_metric` on an installed family with its own example batch.

    Raises:
        MetricError: The family is unknown or its package broken, or a setting is refused.
        NotImplementedError: The family has no example batch.
    """
    kind = state_type(family)
    kind(settings)
    return check_metric(lambda: kind(settings), kind.example_batch(), trials=trials, overlaps=kind.exact_over_samples)


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
class _Subject:
    factory: Factory
    batch: Batch
    samples: int
    names: Sequence[str] | None

    def state(self, batches: Sequence[Sequence[int]]) -> MetricState:
        state = self.factory()
        for indices in batches:
            state.update(**select(self.batch, indices))
        return state

    def whole(self) -> MetricState:
        return self.state([range(self.samples)])

    def differs(self, state: MetricState, expected: MetricState | None = None) -> str:
        """What differs from the state made by one update, or an empty text."""
        before = bits((expected or self.whole()).result(self.names))
        after = bits(state.result(self.names))
        changed = [name for name in before if before[name] != after.get(name)]
        return f"{', '.join(changed)} changed" if changed else ""


def cut(items: Sequence[int], parts: int, generator: random.Random) -> list[list[int]]:
    """Cut a sequence at random places into `parts` pieces; some may be empty."""
    places = sorted(generator.randint(0, len(items)) for _ in range(parts - 1))
    edges = [0, *places, len(items)]
    return [list(items[a:b]) for a, b in zip(edges, edges[1:])]


def _shuffled(samples: int, generator: random.Random) -> list[int]:
    order = list(range(samples))
    generator.shuffle(order)
    return order


def _batches(subject: _Subject, generator: random.Random) -> str:
    return subject.differs(subject.state(cut(range(subject.samples), generator.randint(1, 5), generator)))


def _order(subject: _Subject, generator: random.Random) -> str:
    return subject.differs(subject.state([_shuffled(subject.samples, generator)]))


def _shards(subject: _Subject, generator: random.Random) -> str:
    parts = cut(_shuffled(subject.samples, generator), generator.randint(2, 4), generator)
    states = [subject.state(cut(part, 2, generator)) for part in parts]
    total = subject.factory()
    for state in states:
        total.merge(state)
    return subject.differs(total)


def _merge_tree(subject: _Subject, generator: random.Random) -> str:
    parts = cut(_shuffled(subject.samples, generator), generator.randint(2, 6), generator)
    states = [subject.state([part]) for part in parts]
    while len(states) > 1:
        other = states.pop(generator.randrange(len(states)))
        states[generator.randrange(len(states))].merge(other)
    return subject.differs(states[0])


def _duplicates(subject: _Subject, generator: random.Random) -> str:
    repeats = [generator.randrange(subject.samples) for _ in range(generator.randint(1, 4))]
    together = [*range(subject.samples), *repeats]
    return subject.differs(subject.state([together])) or subject.differs(
        subject.state([range(subject.samples), repeats])
    )


def _overlapping_shards(subject: _Subject, generator: random.Random) -> str:
    parts = cut(_shuffled(subject.samples, generator), 3, generator)
    extra = [generator.randrange(subject.samples) for _ in range(2)]
    total = subject.state([parts[0] + extra])
    for part in parts[1:]:
        total.merge(subject.state([part + extra]))
    return subject.differs(total)


def _serialisation(subject: _Subject, generator: random.Random) -> str:
    first, second = cut(_shuffled(subject.samples, generator), 2, generator)
    left, right = subject.state([first]), subject.state([second])
    left = type(left).from_bytes(left.to_bytes())
    right = type(right).from_dict(json.loads(json.dumps(right.to_dict(), allow_nan=False)))
    left.merge(right)
    if detail := subject.differs(left):
        return detail
    return "" if left.to_bytes() == subject.whole().to_bytes() else "equal states have different bytes"


def _empty(subject: _Subject, generator: random.Random) -> str:
    empty = subject.factory()
    empty.result(subject.names)
    empty = type(empty).from_bytes(empty.to_bytes())
    left = subject.whole()
    left.merge(empty)
    empty.merge(subject.whole())
    return subject.differs(left) or subject.differs(empty)


def _other_unchanged(subject: _Subject, generator: random.Random) -> str:
    first, second = cut(_shuffled(subject.samples, generator), 2, generator)
    left, right = subject.state([first]), subject.state([second])
    before = right.to_bytes()
    left.merge(right)
    left.update(**select(subject.batch, second if not _bounded(left) else []))
    left.result(subject.names)
    return "" if right.to_bytes() == before else "merge changed the other state"


def _result_repeats(subject: _Subject, generator: random.Random) -> str:
    first, second = cut(range(subject.samples), 2, generator)
    state = subject.state([first])
    state.result(subject.names)
    state.update(**select(subject.batch, second))
    state.result(subject.names)
    return subject.differs(state)


def _names(subject: _Subject, generator: random.Random) -> str:
    whole = subject.whole().result(subject.names)
    name = generator.choice(sorted(whole))
    alone = subject.whole().result([name])
    return "" if bits(alone)[name] == bits(whole)[name] else f"{name} alone differs"


def _update_is_atomic(subject: _Subject, generator: random.Random) -> str:
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


_OVERLAPPING = frozenset({"overlapping_shards"})
_CHECKS: Mapping[str, Callable[[_Subject, random.Random], str]] = {
    "batches": _batches,
    "order": _order,
    "shards": _shards,
    "merge_tree": _merge_tree,
    "duplicates": _duplicates,
    "overlapping_shards": _overlapping_shards,
    "serialisation": _serialisation,
    "empty": _empty,
    "other_unchanged": _other_unchanged,
    "result_repeats": _result_repeats,
    "names": _names,
    "update_is_atomic": _update_is_atomic,
}

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindeval.formats.errors import MindEvalError
from mindeval.hooks.stopping import StepOrder, StoppingRule, StoppingTracker


def run(rule, values):
    """Decisions for evaluations at steps 10, 20, ..."""
    tracker = StoppingTracker(rule)
    return tracker, [tracker.observe(10 * (i + 1), value, 10 * (i + 1) + 3) for i, value in enumerate(values)]


def verdicts(rule, values):
    return [decision.verdict for decision in run(rule, values)[1]]


def test_stops_at_the_patience_th_evaluation_without_improvement():
    tracker, decisions = run(StoppingRule("val/loss", mode="min", patience=2), [3.0, 2.0, 2.5, 2.1])
    assert [d.verdict for d in decisions] == ["improved", "improved", "not_improved", "stop"]
    stop = decisions[-1]
    assert tracker.stop_decision is stop
    assert (stop.step, stop.value, stop.best_step, stop.best_value, stop.misses) == (40, 2.1, 20, 2.0, 2)
    assert stop.decided_at_step == 43
    assert stop.rule == {
        "monitor": "val/loss", "mode": "min", "min_delta": 0.0, "patience": 2, "restore_best": True
    }  # fmt: skip
    assert "2.1" in stop.reason
    assert "2 of 2" in stop.reason


def test_an_improvement_starts_patience_anew():
    assert "stop" not in verdicts(StoppingRule(mode="min", patience=2), [3.0, 3.1, 2.9, 3.0, 2.8])


def test_mode_max_maximises_whatever_the_name():
    assert verdicts(StoppingRule("val/ppl", mode="max", patience=1), [1.0, 2.0, 1.5]) == [
        "improved",
        "improved",
        "stop",
    ]


def test_zero_is_a_value():
    tracker, decisions = run(StoppingRule(mode="min", patience=1), [0.5, 0.0, 0.1])
    assert [d.verdict for d in decisions] == ["improved", "improved", "stop"]
    assert tracker.best_value == 0.0


def test_patience_one_goes_on_while_improving():
    assert verdicts(StoppingRule(mode="min", patience=1), [3.0, 2.0, 1.0]) == ["improved"] * 3


def test_min_delta_counts_against_patience_but_the_best_is_the_best():
    tracker, decisions = run(StoppingRule(mode="min", patience=2, min_delta=0.5), [3.0, 2.8, 2.6])
    assert [d.verdict for d in decisions] == ["improved", "not_improved", "stop"]
    assert (tracker.best_step, tracker.best_value) == (30, 2.6)


def test_small_steps_add_up_to_an_improvement():
    # Against the last improvement, not against the value before.
    assert verdicts(StoppingRule(mode="min", patience=3, min_delta=0.5), [3.0, 2.7, 2.4])[-1] == "improved"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_only_a_finite_value_is_best(bad):
    tracker, decisions = run(StoppingRule(mode="min", patience=3), [bad, 2.0, bad, 1.0])
    assert [d.verdict for d in decisions] == ["not_improved", "improved", "not_improved", "improved"]
    assert (tracker.best_step, tracker.best_value) == (40, 1.0)


def test_nan_alone_stops_without_a_best():
    tracker, decisions = run(StoppingRule(mode="min", patience=2), [math.nan, math.nan])
    assert decisions[-1].verdict == "stop"
    assert tracker.best_step is None
    assert tracker.best_value is None


def test_a_missing_evaluation_is_neither_improvement_nor_patience():
    tracker, decisions = run(StoppingRule(mode="min", patience=2), [2.0, 2.1, None, None, None, 1.9])
    assert [d.verdict for d in decisions][2:5] == ["not_counted"] * 3
    assert [d.misses for d in decisions] == [0, 1, 1, 1, 1, 0]
    assert tracker.stop_decision is None


def test_a_better_late_result_after_the_stop_is_still_the_best():
    tracker, decisions = run(StoppingRule(mode="min", patience=1), [2.0, 2.1, 1.5, 3.0])
    assert [d.verdict for d in decisions] == ["improved", "stop", "improved", "not_improved"]
    assert tracker.best_step == 30
    assert tracker.stop_decision is decisions[1]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "mode"),
        ({"mode": "auto"}, "mode"),
        ({"mode": "min", "patience": 0}, "patience"),
        ({"mode": "min", "patience": 1.5}, "patience"),
        ({"mode": "min", "patience": True}, "patience"),
        ({"mode": "min", "min_delta": -0.1}, "min_delta"),
        ({"mode": "min", "min_delta": math.nan}, "min_delta"),
        ({"mode": "min", "monitor": ""}, "monitor"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(fields, named):
    with pytest.raises(MindEvalError, match=named) as caught:
        StoppingRule(**fields)
    assert caught.value.reason == "INVALID_FIELD"
    assert caught.value.metadata == {"field": named}


def test_later_outcomes_wait_for_earlier_ones():
    order = StepOrder()
    for step in (10, 20, 30):
        order.expect(step)
    order.resolve(20, "b")
    assert list(order.ready()) == []
    order.resolve(10, "a")
    assert list(order.ready()) == [(10, "a"), (20, "b")]
    order.resolve(30, "c")
    order.resolve(30, "again")
    order.resolve(99, "unknown")
    assert list(order.ready()) == [(30, "c")]


outcomes = st.lists(st.one_of(st.none(), st.floats(allow_nan=True, width=16)), min_size=1, max_size=12)


@given(values=outcomes, data=st.data(), mode=st.sampled_from(["min", "max"]), patience=st.integers(1, 4))
def test_the_order_of_arrival_does_not_matter(values, data, mode, patience):
    rule = StoppingRule(mode=mode, patience=patience, min_delta=data.draw(st.sampled_from([0.0, 0.5])))
    in_order = StoppingTracker(rule)
    expected = [repr(in_order.observe(step, value, 0)) for step, value in enumerate(values)]

    order, late = StepOrder(), StoppingTracker(rule)
    for step in range(len(values)):
        order.expect(step)
    seen = []
    for step in data.draw(st.permutations(range(len(values)))):
        order.resolve(step, values[step])
        seen += [repr(late.observe(s, value, 0)) for s, value in order.ready()]
    assert seen == expected
    assert (late.best_step, repr(late.best_value)) == (in_order.best_step, repr(in_order.best_value))


@given(values=outcomes, patience=st.integers(1, 4))
def test_the_best_is_the_first_finite_minimum(values, patience):
    tracker, _ = run(StoppingRule(mode="min", patience=patience), values)
    finite = [(value, 10 * (i + 1)) for i, value in enumerate(values) if value is not None and math.isfinite(value)]
    assert (tracker.best_value, tracker.best_step) == (min(finite) if finite else (None, None))

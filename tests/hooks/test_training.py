from types import SimpleNamespace

import numpy as np
import pytest

from mindeval.hooks.training import IntervalCrossing, StepClock, StepCounter, Throughput, host_memory_bytes, loss_of


class Params(dict):
    """As MindSpore's callback parameters: attributes and items, None for what is not there."""

    __getattr__ = dict.get


class FakeTensor:
    def __init__(self, array):
        self._array = np.asarray(array)

    def asnumpy(self):
        return self._array


@pytest.mark.parametrize(
    ("outputs", "loss"),
    [
        (FakeTensor(2.5), 2.5),
        ((FakeTensor(2.5), False, 1024.0), 2.5),
        ([FakeTensor([2.0, 3.0]), FakeTensor(1.0)], 2.5),
        (((FakeTensor(0.0),),), 0.0),
        (1.5, 1.5),
        (np.float32(1.5), 1.5),
        ((), None),
        (None, None),
        ("loss", None),
    ],
)
def test_loss_of_every_form_of_outputs(outputs, loss):
    assert loss_of(outputs) == loss


def test_loss_that_is_nan_stays_nan():
    assert np.isnan(loss_of((FakeTensor(np.nan), True, 1.0)))


def steps(counter, numbers, **fields):
    for number in numbers:
        counter.advance(Params(cur_step_num=number, **fields))
    return counter.step


def test_steps_and_fractions_of_epochs():
    counter = StepCounter()
    assert steps(counter, [1, 2, 3], batch_num=4, cur_epoch_num=1) == 3
    assert counter.epoch == 0.75


def test_a_run_resumed_at_a_later_epoch_counts_on():
    # initial_epoch=2 of 10 steps each: the loop itself begins at 1 again.
    assert steps(StepCounter(), [1, 2], batch_num=10, cur_epoch_num=3) == 22


def test_a_loop_that_resumes_its_own_counter_is_believed():
    assert steps(StepCounter(), [25, 26], batch_num=10, cur_epoch_num=3) == 26


def test_data_sink_mode_jumps():
    counter = StepCounter()
    assert steps(counter, [50, 100], batch_num=50, cur_epoch_num=1) == 100
    assert counter.epoch == 2.0


def test_a_counter_that_goes_back_still_counts_forward():
    assert steps(StepCounter(), [1, 2, 3, 1, 2], batch_num=100, cur_epoch_num=1) == 5


def test_intervals_are_crossed_and_not_divided():
    interval = IntervalCrossing(10)
    assert [n for n in [7, 14, 21, 28, 35, 60, 61] if interval.crossed(n)] == [14, 21, 35, 60]


def test_an_interval_starts_from_where_the_run_stands():
    interval = IntervalCrossing(10, start=15)
    assert [n for n in range(16, 31) if interval.crossed(n)] == [20, 30]


def test_throughput_reads_the_batch_unless_told():
    tokens = SimpleNamespace(shape=(8, 128), dtype="Int32")
    images = SimpleNamespace(shape=(8, 3, 32, 32), dtype="Float32")
    assert Throughput.of(Params(train_dataset_element=(tokens, tokens)), None, None) == Throughput(8, 1024)
    assert Throughput.of(Params(train_dataset_element=(images,)), None, None) == Throughput(8, None)
    assert Throughput.of(Params(train_dataset_element=(tokens,)), 64, 8192) == Throughput(64, 8192)
    assert Throughput.of(Params(), None, None) == Throughput(None, None)


def test_the_clock_leaves_out_compilation_and_stalls(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("mindeval.hooks.training.time.perf_counter", lambda: now[0])
    clock = StepClock()
    now[0] = 30.0  # the first step compiles
    clock.tick(1)
    assert clock.lap_ms() is None
    for _ in range(4):
        now[0] += 0.25
        clock.tick(1)
    now[0] += 1.0
    clock.exclude(1.0)
    assert clock.lap_ms() == pytest.approx(250.0)
    assert clock.lap_ms() is None


def test_host_memory_is_that_of_this_process():
    assert 1 << 20 < host_memory_bytes() < 1 << 40

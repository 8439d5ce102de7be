"""The session against an agent that behaves, and against ones that do not."""

import json
import logging
import os
import signal
import time

import numpy as np
import pytest
from tests.hooks.conftest import SPECS

from mindeval.formats.errors import MindEvalError
from mindeval.hooks import session as session_module
from mindeval.hooks.journal import TABLE_HEADER
from mindeval.hooks.snapshot import read_snapshot
from mindeval.hooks.stopping import StoppingRule

RULE = StoppingRule("val/loss", mode="min", patience=2)


def messages(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_results_become_decisions_rows_and_a_stop(bench):
    b = bench(RULE, values=[3.0, 2.0, 2.5, 2.2])
    b.train([10, 20, 30, 40])
    assert b.session.wait_for_results(43, 10)
    summary = b.session.summary
    assert [r.decision.verdict for r in summary.evaluations] == ["improved", "improved", "not_improved", "stop"]
    assert (summary.best_step, summary.best_value) == (20, 2.0)
    assert summary.decision is summary.evaluations[-1].decision
    assert len(summary.stalls_ms) == 4
    rows = (b.folder / "logs" / "metrics.tsv").read_text().splitlines()
    assert rows[0] == TABLE_HEADER == "Epoch\tTrain_Loss\tVal_Loss\tPPL\tStep_Time(ms)"
    assert [row.split("\t")[2] for row in rows[1:]] == ["3.000000", "2.000000", "2.500000", "2.200000"]
    assert rows[1].split("\t") == ["1", "1.000000", "3.000000", f"{np.exp(3.0):.6f}", "5.00"]
    assert [event["step"] for event in b.events("decision")] == [10, 20, 30, 40]
    assert b.events("decision")[-1]["verdict"] == "stop"
    assert len(b.events("push")) == len(b.events("result")) == 4


def test_results_out_of_order_are_taken_in_step_order(bench):
    b = bench(RULE, values=[3.0, 2.0], reversed=2)
    b.train([10, 20])
    assert b.session.wait_for_results(25, 10)
    assert [event["step"] for event in b.events("result")] == [20, 10]
    assert [event["step"] for event in b.events("decision")] == [10, 20]
    rows = (b.folder / "logs" / "metrics.tsv").read_text().splitlines()
    assert [row.split("\t")[0] for row in rows[1:]] == ["1", "2"]


def test_a_failed_evaluation_counts_for_nothing(bench, caplog):
    b = bench(RULE, values=[3.0, 9.0, 9.0, 2.0], states=["SUCCEEDED", "FAILED", "SUPERSEDED", "SUCCEEDED"])
    b.train([10, 20, 30, 40])
    assert b.session.wait_for_results(40, 10)
    verdicts = [record.decision.verdict for record in b.session.summary.evaluations]
    assert verdicts == ["improved", "not_counted", "not_counted", "improved"]
    assert messages(caplog) == ["evaluation of step 20 failed: scripted failure"]


def test_both_buffers_in_use_skips_and_says_so_once(bench, caplog):
    b = bench(RULE, hold=True)
    assert b.push(10)
    assert b.push(20)
    assert not b.push(30)
    assert not b.push(40)
    assert b.session.summary.skipped == 2
    assert len(messages(caplog)) == 1
    assert "skipped" in messages(caplog)[0]
    assert [event["step"] for event in b.events("skip")] == [30, 40]
    began = time.monotonic()
    assert not b.session.wait_for_results(40, 0.3)
    assert time.monotonic() - began < 2
    b.session.give_up_outstanding(40, "over")
    b.until(lambda: [message["id"] for message in b.received("cancel")] == [1, 2])
    # The agent has not let go of the files, so nothing may overwrite them yet.
    assert not b.push(50)
    b.link.send({"type": "release", "id": 1})
    b.until(lambda: b.events("released") != [])
    assert b.push(60)
    lost = b.session.summary.evaluations[:2]
    assert [record.state for record in lost] == ["LOST", "LOST"]
    assert [record.decision.verdict for record in lost] == ["not_counted"] * 2


def test_an_agent_that_dies_is_restarted_and_gets_the_push_again(bench, caplog):
    b = bench(RULE, values=[3.0, 2.0, 1.0], die_at_push=2)
    b.train([10, 20, 30])
    assert b.session.wait_for_results(30, 20)
    assert [record.value("val/loss") for record in b.session.summary.evaluations] == [3.0, 2.0, 1.0]
    assert [message["id"] for message in b.received("push")].count(2) == 2
    assert sum("the agent ended" in text for text in messages(caplog)) == 1
    # The second agent read what the first had not: the file was kept for it.
    weight = read_snapshot(b.state / "step-20.safetensors", SPECS)["weight"]
    assert (weight.view(np.float32) == 20).all()


def test_a_result_is_asked_for_again_when_the_agent_dies_after_the_file_was_released(bench):
    b = bench(RULE, values=[3.0, 2.0], die_after_submit=1)
    b.train([10])
    assert b.session.wait_for_results(10, 20)
    assert b.session.summary.evaluations[0].state == "SUCCEEDED"
    assert b.session.summary.evaluations[0].evaluation.endswith("step-10")


def test_an_overwritten_push_is_watched_by_name_after_a_restart(bench):
    b = bench(RULE, values=[4.0, 3.0, 2.0, 1.0], reversed=4, die_after_submit=3)
    b.train([10, 20, 30])
    b.until(lambda: len(b.received("start")) == 2)
    b.train([40])
    assert b.session.wait_for_results(40, 20)
    assert [message["id"] for message in b.received("watch")] == [1]
    assert [record.value("val/loss") for record in b.session.summary.evaluations] == [4.0, 3.0, 2.0, 1.0]


def test_killed_with_signal_9(bench):
    b = bench(RULE, values=[3.0, 2.0], reversed=2)
    b.train([10])
    b.until(lambda: len(b.received("push")) == 1)
    os.kill(b.link.pid, signal.SIGKILL)
    b.until(lambda: len(b.received("start")) == 2)
    b.train([20])
    assert b.session.wait_for_results(20, 20)
    assert [record.state for record in b.session.summary.evaluations] == ["SUCCEEDED", "SUCCEEDED"]


def test_an_agent_that_always_dies_is_given_up(bench, caplog, monkeypatch):
    monkeypatch.setattr("mindeval.hooks.link._RESTART_DELAYS_S", (0.01, 0.01))
    b = bench(RULE, die_always=True)
    b.push(10)
    b.until(lambda: not b.push(20))
    b.until(lambda: b.session.summary.evaluations[0].state == "LOST")
    assert sum("Training goes on without evaluation" in text for text in messages(caplog)) == 1
    began = time.monotonic()
    assert "agent is gone" in b.session.fetch("projects/p/evaluations/e", b.folder / "best", 20, 30)
    assert time.monotonic() - began < 2


def test_in_strict_mode_giving_up_is_an_error(bench, monkeypatch):
    monkeypatch.setattr("mindeval.hooks.link._RESTART_DELAYS_S", (0.01,))
    b = bench(RULE, strict=True, die_always=True)
    with pytest.raises(MindEvalError, match="agent is gone"):
        b.until(lambda: False)


def test_garbage_is_said_once_and_otherwise_ignored(bench, caplog):
    b = bench(RULE, values=[3.0, 2.0], garbage=True)
    b.train([10, 20])
    assert b.session.wait_for_results(20, 10)
    assert len(b.events("garbage")) == 4
    assert len([text for text in messages(caplog) if "not a message" in text]) == 1


def test_a_service_that_is_away_is_said_once_and_results_come_when_it_is_back(bench, caplog):
    b = bench(RULE, values=[3.0, 2.0, 1.0], unavailable_for=2)
    assert b.push(10)
    assert b.push(20)
    b.until(lambda: len(b.received("push")) == 2)
    b.until(lambda: messages(caplog) != [])
    assert not b.push(30)
    # The agent takes one more push as the moment at which the service is back.
    b.link.send({"type": "push", "id": 3, "step": 30, "epoch": 3.0, "weights": str(b.buffers.buffers[0].path)})
    assert b.session.wait_for_results(30, 10)
    said = messages(caplog)
    assert sum("cannot be reached" in text for text in said) == 1
    assert sum("is back" in text for text in said) == 1


def test_waiting_for_a_service_that_stays_away_ends_early(bench, monkeypatch):
    monkeypatch.setattr(session_module, "UNAVAILABLE_GRACE_S", 0.2)
    b = bench(RULE, unavailable_for=99)
    b.push(10)
    began = time.monotonic()
    assert not b.session.wait_for_results(10, 60)
    assert time.monotonic() - began < 5


def test_a_known_outage_is_not_waited_for_again(bench, monkeypatch):
    monkeypatch.setattr(session_module, "UNAVAILABLE_GRACE_S", 0.2)
    b = bench(RULE, unavailable_for=99)
    b.push(10)
    assert not b.session.wait_for_results(10, 60, 0.0)
    monkeypatch.setattr(session_module, "UNAVAILABLE_GRACE_S", 60.0)
    b.push(20)
    began = time.monotonic()
    assert not b.session.wait_for_results(20, 60, 0.0)
    assert time.monotonic() - began < 5


def test_a_deaf_agent_never_blocks_the_trainer(bench):
    b = bench(RULE, deaf=True)
    began = time.monotonic()
    for _ in range(1500):
        b.link.send({"type": "train_metrics", "points": [{"step": 1, "filler": "x" * 1000}]})
    assert not b.link.send({"type": "train_metrics", "points": []})  # full, and says so at once
    assert b.push(10)
    assert b.push(20)
    assert not b.push(30)
    assert time.monotonic() - began < 1.0


def test_an_unknown_monitor_names_what_there_is(bench, caplog):
    b = bench(StoppingRule("val/perplexity", mode="min"), values=[3.0, 2.0])
    b.train([10, 20])
    assert b.session.wait_for_results(20, 10)
    said = [text for text in messages(caplog) if "val/perplexity" in text]
    assert len(said) == 1
    assert "it reports: val/loss" in said[0]
    assert [record.decision.verdict for record in b.session.summary.evaluations] == ["not_counted"] * 2


def test_an_unknown_monitor_is_an_error_in_strict_mode(bench):
    b = bench(StoppingRule("val/perplexity", mode="min"), strict=True)
    b.push(10)
    with pytest.raises(MindEvalError, match="it reports: val/loss") as caught:
        b.session.wait_for_results(10, 10)
    assert caught.value.reason == "UNKNOWN_METRIC"


def test_a_mode_against_the_metric_is_warned_about(bench, caplog):
    b = bench(StoppingRule("val/loss", mode="max"))
    b.push(10)
    assert b.session.wait_for_results(10, 10)
    assert any("lower is better" in text for text in messages(caplog))


def test_a_permanent_error_is_said_or_raised(bench, caplog):
    b = bench(RULE, error="SUITE_NOT_FOUND")
    b.push(10)
    assert b.session.wait_for_results(10, 10)
    assert "scripted error [SUITE_NOT_FOUND]" in messages(caplog)


def test_a_permanent_error_in_strict_mode(bench):
    b = bench(RULE, strict=True, error="SUITE_NOT_FOUND")
    b.push(10)
    with pytest.raises(MindEvalError) as caught:
        b.session.wait_for_results(10, 10)
    assert caught.value.reason == "SUITE_NOT_FOUND"


def test_nan_is_kept_apart_in_valid_json(bench):
    b = bench(RULE, values=["nan", 2.0])
    b.train([10, 20])
    assert b.session.wait_for_results(20, 10)
    for line in (b.folder / "logs" / "events.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert b.session.summary.best_step == 20


def test_fetch_writes_the_file_or_says_why_not(bench):
    b = bench(RULE, values=[3.0])
    b.train([10])
    assert b.session.wait_for_results(10, 10)
    evaluation = b.session.summary.evaluations[0].evaluation
    assert b.session.fetch(evaluation, b.folder / "best.safetensors", 10, 10) == ""
    weight = read_snapshot(b.folder / "best.safetensors", SPECS)["weight"]
    assert (weight.view(np.float32) == 10).all()


def test_a_fetch_that_fails_gives_the_reason(bench):
    b = bench(RULE, fetch_error="the blob is gone")
    assert b.session.fetch("projects/p/evaluations/e", b.folder / "best", 10, 10) == "the blob is gone"


def test_training_series_travel_in_batches(bench):
    b = bench(None)
    for step in range(120):
        b.session.report({"step": step, "loss": float("nan")})
    b.session.flush_report()
    b.until(lambda: sum(len(message["points"]) for message in b.received("train_metrics")) == 120)
    assert [len(message["points"]) for message in b.received("train_metrics")] == [50, 50, 20]
    assert b.events("train_metrics")[0]["points"][0] == {"step": 0, "loss": "nan"}

"""What the callback does to real MindSpore training; the jobs run in one process, see scenarios.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mindeval.formats.errors import MindEvalError

SCRIPT = Path(__file__).with_name("scenarios.py")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenarios")
    # In a folder of its own: MindSpore leaves files where a compilation fails.
    command = [sys.executable, str(SCRIPT), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads((folder / "results.json").read_text())
    results["console"] = done.stdout
    results["folder"] = folder
    return results


@pytest.fixture
def outcome(outcomes):
    def of(scenario):
        result = outcomes[scenario]
        assert "broken" not in result, result["broken"]
        return result

    return of


def evaluated(result):
    return [record["step"] for record in result["summary"]["evaluations"]]


def test_training_is_undisturbed_bit_by_bit(outcome):
    alone = outcome("plain")
    for scenario in ("watched", "service_absent", "agent_cannot_start", "export_fails", "many_errors"):
        watched = outcome(scenario)
        assert watched["error"] is None
        assert watched["losses"][: alone["steps"]] == alone["losses"], scenario
    assert outcome("watched")["weights"] == alone["weights"]
    assert outcome("service_absent")["weights"] == alone["weights"]


def test_a_snapshot_holds_the_weights_of_its_step_although_training_went_on(outcome):
    result = outcome("watched")
    assert result["pushed_equal"] == {str(step): True for step in range(2, 21, 2)}
    assert evaluated(result) == list(range(2, 21, 2))
    assert len(result["summary"]["stalls_ms"]) == 10


def test_early_stop_restores_the_best_weights(outcome):
    result = outcome("early_stop")
    summary = result["summary"]
    assert summary["stopped_early"]
    assert summary["best_step"] == summary["restored_step"] == result["final_is_step"] == 4
    assert result["restored_logits_equal"]
    # Decided by the evaluation of step 8, whose result came one or more steps later.
    assert summary["decision"]["step"] == 8
    assert summary["decision"]["stopped_at_step"] == summary["stopped_at_step"] == result["steps"]
    assert 8 <= result["steps"] < 20


def test_blocking_stops_at_the_very_step(outcome):
    result = outcome("blocking")
    assert result["steps"] == result["summary"]["stopped_at_step"] == result["summary"]["decision"]["step"] == 8
    assert result["final_is_step"] == 4


def test_the_best_weights_come_back_at_a_normal_end_too(outcome):
    result = outcome("normal_end")
    assert not result["summary"]["stopped_early"]
    assert result["steps"] == 20
    assert result["final_is_step"] == result["summary"]["restored_step"] == 8


def test_weights_that_cannot_be_restored_are_reported(outcome, outcomes):
    result = outcome("fetch_fails")
    assert result["summary"]["restored_step"] is None
    assert result["summary"]["not_restored"] == "step 2 is the best, but the blob is gone"
    assert result["final_is_step"] == result["steps"]
    assert "the best weights were not restored: step 2 is the best, but the blob is gone" in outcomes["console"]


def test_an_absent_service_is_said_once(outcome):
    result = outcome("service_absent")
    assert result["steps"] == 20
    assert sum("cannot be reached" in text for text in result["said"]) == 1
    assert result["summary"]["skipped"] == 8
    assert [record["state"] for record in result["summary"]["evaluations"]] == ["LOST", "LOST"]
    assert result["seconds"] < 10


def test_an_agent_that_cannot_start_is_said_and_training_goes_on(outcome):
    said = outcome("agent_cannot_start")["said"]
    assert len(said) == 2
    assert said[-1] == "training goes on without evaluation"


def test_errors_reach_the_loop_only_when_asked(outcome):
    assert outcome("strict_error")["error"] == "MindEvalError: scripted error [SUITE_NOT_FOUND]"
    assert outcome("strict_error")["steps"] < 20
    lenient = outcome("lenient_error")
    assert lenient["error"] is None
    assert lenient["said"] == ["scripted error [SUITE_NOT_FOUND]"]


def test_a_network_that_cannot_be_exported(outcome):
    strict = outcome("export_fails_strict")
    assert strict["error"].startswith("MindEvalError: the network cannot be exported as MindIR")
    assert "ExportGraph(network=...)" in strict["error"]
    assert strict["steps"] == 0
    assert outcome("export_fails")["steps"] == 20


def test_a_defect_of_ours_is_said_once_and_switches_evaluation_off(outcome):
    result = outcome("many_errors")
    assert result["steps"] == 30
    assert len(result["said"]) == 2
    assert "switched off after 10 errors" in result["said"][1]


def test_epochs_under_fit(outcome):
    result = outcome("epochs_in_fit")
    assert result["error"] is None
    assert evaluated(result) == [10, 20]
    assert [record["epoch"] for record in result["summary"]["evaluations"]] == [1.0, 2.0]


def test_a_resumed_run_counts_on(outcome):
    result = outcome("resumed")
    assert evaluated(result) == [24]
    assert result["summary"]["evaluations"][0]["epoch"] == 2.4


def test_an_error_of_the_script_ends_the_agent(outcome):
    result = outcome("script_fails")
    assert result["error"] == "RuntimeError: the training script's own error"
    assert result["agents_left"] == 0


def test_nothing_is_left_in_the_staging_folder(outcomes):
    for scenario, result in outcomes.items():
        if isinstance(result, dict) and "staging_left" in result:
            assert result["staging_left"] == [], scenario


def test_pynative(outcome):
    result = outcome("pynative")
    assert result["summary"]["stopped_early"]
    assert result["final_is_step"] == 4


def test_export_leaves_no_trace_in_the_network(outcome):
    result = outcome("export_leaves_no_trace")
    for outputs in ("logits", "tuple"):
        for what in ("modes", "names", "graph_names", "random_state", "syntax_level"):
            assert result[outputs][what], (outputs, what)
        assert result[outputs]["equal"] == [True, True]
    assert result["logits"]["description"] == {
        "mindeval_model": 1, "graph": "model.mindir", "outputs": "logits", "vocab_size": 32, "max_length": 8,
        "prefix_token_id": None, "tokenizer": {"type": "none"},
    }  # fmt: skip
    assert result["failure"]["reason"] == "MODEL_INVALID"
    assert result["failure"]["syntax_level"]


def test_every_dtype_survives_the_way_out_and_back(outcome):
    result = outcome("dtypes_round_trip")
    assert result["equal"]
    assert len(result["changed"]) == 6
    assert result["dtypes"]["bfloat16"] == "BF16"
    assert result["kept"]["bfloat16"] == "BFloat16"


def test_the_logs_tell_the_whole_story(outcomes):
    folder = outcomes["folder"] / "early_stop" / "logs"
    rows = (folder / "metrics.tsv").read_text().splitlines()
    assert rows[0] == "Epoch\tTrain_Loss\tVal_Loss\tPPL\tStep_Time(ms)"
    assert [row.split("\t")[0] for row in rows[1:]] == ["0.2", "0.4", "0.6", "0.8"]
    losses = outcomes["early_stop"]["losses"]
    assert [float(row.split("\t")[1]) for row in rows[1:]] == pytest.approx(losses[1:8:2], abs=1e-6)
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds[0] == "begin"
    assert kinds[-1] == "end"
    assert {"push", "result", "decision", "stop", "released", "submitted", "agent_started"} <= set(kinds)
    assert events[-1]["restored_step"] == 4


def test_the_series_of_the_run_is_sent(outcomes):
    lines = (outcomes["folder"] / "watched" / "agent" / "log.jsonl").read_text().splitlines()
    messages = [json.loads(line) for line in lines]
    assert messages[0]["type"] == "start"
    assert messages[0]["protocol"] == 1
    assert set(messages[0]["files"]) == {"model.mindir", "mindeval_model.json"}
    points = [point for message in messages if message["type"] == "train_metrics" for point in message["points"]]
    assert [point["step"] for point in points] == [10, 20]
    assert points[1]["loss"] == pytest.approx(outcomes["watched"]["losses"][19])
    assert points[1]["samples_per_second"] > 0
    assert points[1]["tokens_per_second"] == pytest.approx(8 * points[1]["samples_per_second"])
    assert messages[-1]["type"] == "stop"


@pytest.mark.slow
def test_the_compile_cache_of_the_job_is_left_alone(tmp_path, monkeypatch):
    """MindSpore's cache counts compilations: one more would get the training step's graph, and the other way round."""
    monkeypatch.setenv("MS_COMPILER_CACHE_ENABLE", "1")
    monkeypatch.setenv("MS_COMPILER_CACHE_PATH", str(tmp_path / "cache"))
    hits, results = [], []
    for scenario in ("plain", "watched", "watched", "plain"):
        folder = tmp_path / f"{scenario}-{len(hits)}"
        folder.mkdir()
        command = [sys.executable, str(SCRIPT), str(folder), scenario]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        hits.append((done.stdout + done.stderr).count("Use the compilation cache and execute"))
        results.append(json.loads((folder / "results.json").read_text())[scenario])
    assert hits == [0, 1, 1, 1]
    assert len({result["weights"] for result in results}) == 1
    assert [len(result.get("pushed_equal", ())) for result in results] == [0, 10, 10, 0]


class TestArguments:
    """Without MindSpore: what is checked is checked before training."""

    @staticmethod
    def settings(**changes):
        from mindeval.hooks.settings import HookSettings, choose_agent, choose_endpoint, choose_token

        fields = {
            "suite": "s",
            "run": "r",
            "project": "p",
            "endpoint": choose_endpoint(None),
            "token": choose_token(None),
            "tls": None,
            "every_n_steps": 1,
            "every_n_epochs": None,
            "blocking": False,
            "log_dir": None,
            "staging_dir": None,
            "on_error": "continue",
            "agent_command": choose_agent(None, None),
            "final_wait_s": 1.0,
            "samples_per_step": None,
            "tokens_per_step": None,
            "report_every_n_steps": 10,
        }
        return HookSettings(**{**fields, **changes})

    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"every_n_epochs": 1}, "every_n_steps"),
            ({"every_n_steps": None}, "every_n_steps"),
            ({"every_n_steps": 0}, "every_n_steps"),
            ({"every_n_steps": True}, "every_n_steps"),
            ({"on_error": "ignore"}, "on_error"),
            ({"final_wait_s": -1.0}, "final_wait_s"),
            ({"run": "a/b"}, "run"),
            ({"project": ""}, "project"),
            ({"suite": "no such name"}, "suite"),
            ({"suite": "projects/p/datasets/s"}, "suite"),
        ],
    )
    def test_what_cannot_be_meant_is_refused(self, changes, field):
        with pytest.raises(MindEvalError) as caught:
            self.settings(**changes)
        assert caught.value.reason == "INVALID_FIELD"
        assert caught.value.metadata["field"] == field

    def test_environment_gives_the_defaults(self, monkeypatch):
        monkeypatch.delenv("MINDEVAL_ENDPOINT", raising=False)
        monkeypatch.delenv("MINDEVAL_TOKEN", raising=False)
        assert self.settings().endpoint == "127.0.0.1:7860"
        assert self.settings().start_message({})["token"] is None
        monkeypatch.setenv("MINDEVAL_ENDPOINT", "eval:1")
        monkeypatch.setenv("MINDEVAL_TOKEN", "mde_1_x")
        assert self.settings().endpoint == "eval:1"
        assert self.settings().token == "mde_1_x"

    def test_the_agent_may_live_in_another_environment(self):
        from mindeval.hooks.settings import choose_agent

        assert choose_agent("/opt/env/bin/python", None) == ("/opt/env/bin/python", "-m", "mindeval.client.agent")
        assert choose_agent(None, None)[0] == sys.executable

    def test_model_files_need_a_configuration(self, tmp_path):
        from mindeval.hooks import ModelFiles

        with pytest.raises(MindEvalError, match=r"config\.json") as caught:
            ModelFiles(tmp_path).stage(None, tmp_path)
        assert caught.value.reason == "MODEL_INVALID"
        (tmp_path / "config.json").write_text("{}")
        (tmp_path / "tokenizer.json").write_text("{}")
        target = tmp_path / "staged"
        target.mkdir()
        assert set(ModelFiles(tmp_path).stage(None, target)) == {"config.json", "tokenizer.json"}

    def test_export_graph_is_checked_when_it_is_made(self, tmp_path):
        from mindeval.hooks import ExportGraph

        with pytest.raises(MindEvalError, match="vocab_size"):
            ExportGraph(100, 8, tokenizer="bytes")
        with pytest.raises(MindEvalError, match="neither 'bytes' nor 'none' nor a file"):
            ExportGraph(300, 8, tokenizer=str(tmp_path / "absent.json"))

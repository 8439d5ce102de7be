import json
import math

import pytest

from mindeval.hooks.journal import TABLE_HEADER, Journal
from mindeval.hooks.summary import EvaluationRecord


def record(step=10, train_loss=1.25, **metrics):
    entries = {name.replace("__", "/"): {"value": value} for name, value in metrics.items()}
    return EvaluationRecord(step, step / 4, train_loss, 12.5, state="SUCCEEDED", metrics=entries)


def rows(folder):
    return (folder / "metrics.tsv").read_text().splitlines()


def test_columns_are_exactly_these(tmp_path):
    journal = Journal(tmp_path, "val/loss")
    journal.row(record(val__loss=2.0, val__token_ppl=7.389))
    assert (tmp_path / "metrics.tsv").read_bytes() == (
        b"Epoch\tTrain_Loss\tVal_Loss\tPPL\tStep_Time(ms)\n2.5\t1.250000\t2.000000\t7.389000\t12.50\n"
    )
    journal.close()


def test_the_monitored_task_fills_the_table(tmp_path):
    journal = Journal(tmp_path, "b/token_accuracy")
    journal.row(record(a__loss=1.0, b__loss=2.0, b__ppl=3.0))
    assert rows(tmp_path)[1].split("\t")[2:4] == ["2.000000", "3.000000"]
    journal.close()


def test_perplexity_is_derived_from_the_loss_when_it_is_not_reported(tmp_path):
    journal = Journal(tmp_path)
    journal.row(record(a__loss=2.0))
    journal.row(record(a__loss=1e4))
    assert float(rows(tmp_path)[1].split("\t")[3]) == pytest.approx(math.exp(2.0), abs=1e-6)
    assert rows(tmp_path)[2].split("\t")[3] == "inf"
    journal.close()


def test_what_is_not_known_is_nan(tmp_path):
    journal = Journal(tmp_path)
    journal.row(EvaluationRecord(1, 0.5, None, None, state="SUCCEEDED"))
    assert rows(tmp_path)[1] == "0.5\tnan\tnan\tnan\tnan"
    journal.close()


def test_a_resumed_run_appends_under_one_header(tmp_path):
    for step in (10, 20):
        journal = Journal(tmp_path)
        journal.row(record(step, val__loss=1.0))
        journal.event("push", step=step)
        journal.close()
    assert rows(tmp_path)[0] == TABLE_HEADER
    assert len(rows(tmp_path)) == 3
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events] == [10, 20]


def test_a_line_that_was_cut_off_stays_alone(tmp_path):
    (tmp_path / "metrics.tsv").write_text(TABLE_HEADER + "\n2.5\t1.2")
    journal = Journal(tmp_path)
    journal.row(record(val__loss=1.0))
    assert rows(tmp_path)[1] == "2.5\t1.2"
    assert len(rows(tmp_path)) == 3
    journal.close()


def test_another_table_of_that_name_is_kept(tmp_path):
    (tmp_path / "metrics.tsv").write_text("mine\n")
    Journal(tmp_path).close()
    assert rows(tmp_path) == [TABLE_HEADER]
    assert [path.read_text() for path in tmp_path.glob("metrics.tsv.*")] == ["mine\n"]


def test_a_full_disk_ends_the_log_with_one_warning(tmp_path, caplog):
    journal = Journal(tmp_path)
    (tmp_path / "events.jsonl").unlink()
    journal._events.close()
    journal._events = open("/dev/full", "w")  # noqa: SIM115
    journal.event("push", step=1)
    journal.event("push", step=2)
    assert len([r for r in caplog.records if "cannot be written any more" in r.getMessage()]) == 1
    journal.close()


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    journal = Journal(None)
    journal.row(record())
    journal.event("push")
    journal.close()
    assert list(tmp_path.iterdir()) == []

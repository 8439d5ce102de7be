import json
import os
import subprocess
import sys
import time

import pytest

from mindeval.hooks.link import AgentLink

ECHO = "import sys\nfor line in sys.stdin:\n    sys.stdout.write(line)\n    sys.stdout.flush()\n"
START = {"type": "start"}


@pytest.fixture
def link(tmp_path):
    made = []

    def make(code):
        made.append(AgentLink([sys.executable, "-c", code], START, tmp_path / "agent.log"))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.close(0.2)


def receive(link, kind, timeout_s=10.0):
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        message = link.receive(0.2)
        if message is not None and message["type"] == kind:
            return message
    raise AssertionError(f"no {kind}")


def test_the_first_line_is_the_start_message(link):
    echo = link(ECHO)
    assert receive(echo, "start") == START
    echo.send({"type": "train_metrics", "points": [1]})
    assert receive(echo, "train_metrics")["points"] == [1]


def test_receive_never_waits_unless_asked(link):
    echo = link(ECHO)
    receive(echo, "start")
    began = time.perf_counter()
    assert echo.receive() is None
    assert time.perf_counter() - began < 0.05


def test_messages_for_a_dead_agent_are_not_given_to_the_next(link):
    echo = link(ECHO)
    receive(echo, "start")
    os.kill(echo.pid, 9)
    started = receive(echo, "agent_started")
    assert started["generation"] == 2
    echo.send({"type": "push", "id": 1}, generation=1)
    echo.send({"type": "push", "id": 2}, generation=2)
    assert receive(echo, "push")["id"] == 2


def test_standard_error_goes_to_the_log(link, tmp_path):
    link("import sys; sys.stderr.write('hello\\n'); sys.stderr.flush(); sys.stdin.read()")
    deadline = time.monotonic() + 10
    while "hello" not in (tmp_path / "agent.log").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_program_that_does_not_exist_is_an_error_at_the_start(tmp_path):
    with pytest.raises(FileNotFoundError):
        AgentLink([str(tmp_path / "nothing")], START, tmp_path / "agent.log").start()


def test_close_ends_an_agent_that_ignores_it(link):
    stubborn = link("import time\nwhile True: time.sleep(1)")
    began = time.monotonic()
    stubborn.close(0.2)
    assert time.monotonic() - began < 5
    with pytest.raises(ProcessLookupError):
        os.kill(stubborn.pid, 0)


def test_the_agent_sees_the_end_although_a_forked_child_lives(tmp_path):
    """A dataset worker forked by the trainer must not keep the agent alive after the trainer has died."""
    mark = tmp_path / "agent-ended"
    agent = f"import sys, pathlib\nfor _ in sys.stdin: pass\npathlib.Path({str(mark)!r}).touch()"
    trainer = f"""
import os, sys, time, pathlib
from mindeval.hooks.link import AgentLink
link = AgentLink([sys.executable, "-c", {agent!r}], {{"type": "start"}}, pathlib.Path({str(tmp_path / "log")!r}))
link.start()
child = os.fork()
if child == 0:
    os.close(1)
    time.sleep(30)
    os._exit(0)
print(child, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", trainer], stdout=subprocess.PIPE, text=True, timeout=20, check=False)
    child = int(json.loads(done.stdout.split()[0]))
    try:
        deadline = time.monotonic() + 10
        while not mark.exists():
            assert time.monotonic() < deadline, "the agent did not see the end of its input"
            time.sleep(0.01)
    finally:
        os.kill(child, 9)


def test_the_agent_does_not_inherit_the_slow_protobuf_setting(link, monkeypatch):
    monkeypatch.setenv("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")
    monkeypatch.setenv("MINDEVAL_TEST", "kept")
    code = (
        "import os, json, sys\n"
        "names = ['PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION', 'MINDEVAL_TEST']\n"
        "print(json.dumps({'type': 'environment', **{n: os.environ.get(n) for n in names}}), flush=True)\n"
        "sys.stdin.read()\n"
    )
    seen = receive(link(code), "environment")
    assert seen["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] is None
    assert seen["MINDEVAL_TEST"] == "kept"

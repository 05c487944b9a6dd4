"""The client: says what to do when nobody answers, and why the worker went away when it did."""

import json
import socket
import threading
import time

import numpy as np
import pytest

from fedge.worker import frames
from fedge.worker.worker_client import WorkerClient, WorkerError

LIMIT_S = 10.0
DIED = {"cause": "oom-killed", "text": "the kernel killed the trainer for want of memory"}


OPEN = []


@pytest.fixture(autouse=True)
def _closed_afterwards():
    yield
    while OPEN:
        OPEN.pop().close()


class Script:
    """A worker that plays a given list: for each connection in turn, a function of the connection."""

    def __init__(self, folder, *parts):
        self.path = str(folder / "worker.sock")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(8)
        self._held = []
        threading.Thread(target=self._play, args=(parts,), daemon=True).start()
        OPEN.append(self)

    def close(self):
        for one in [self._listener, *self._held]:
            one.close()

    def _play(self, parts):
        for part in parts:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed: the test is over
                return
            connection.settimeout(LIMIT_S)
            self._held.append(connection)
            part(connection)


def answer(**fields):
    def part(connection):
        frames.read(connection)
        frames.write(connection, dict(fields, ok=True))

    return part


def vanish(connection):
    frames.read(connection)
    connection.close()


def vanish_unread(connection):
    connection.recv(1)
    connection.close()


def vanish_in_the_answer(connection):
    frames.read(connection)
    connection.sendall(frames.PREFIX.pack(frames.MAGIC, 100, 0) + b"{")
    connection.close()


def silent(connection):
    pass


def garbage(connection):
    frames.read(connection)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def error_of(call, *arguments, **fields):
    with pytest.raises(WorkerError) as caught:
        call(*arguments, **fields)
    return caught.value


def test_without_a_socket_it_says_how_to_start_the_worker(tmp_path):
    error = error_of(WorkerClient(str(tmp_path / "none.sock")).status)
    assert error.kind == "unreachable"
    assert "python3 -m fedge.worker --socket" in error.text


def test_a_socket_that_nobody_listens_on_is_told(tmp_path):
    path = str(tmp_path / "left.sock")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    error = error_of(WorkerClient(path).load, {"builtin": "a"}, {})
    assert error.kind == "unreachable"
    assert "start the worker again" in error.text


@pytest.mark.parametrize("ending", [vanish, vanish_unread, vanish_in_the_answer])
def test_when_the_connection_ends_in_a_request_the_next_trainer_tells_the_cause(tmp_path, ending):
    script = Script(tmp_path, ending, answer(last_exit=DIED, up_s=0.0))
    error = error_of(WorkerClient(script.path, LIMIT_S).train, steps=1, arrays={"w": np.zeros(1000000)})
    assert error.kind == "died"
    assert "for want of memory" in error.text
    assert "oom-killed" in error.text


def test_a_request_that_a_death_cuts_off_tells_the_cause_too(tmp_path):
    script = Script(tmp_path, vanish, answer(last_exit=DIED, up_s=0.0))
    error = error_of(WorkerClient(script.path, LIMIT_S).request, "s", np.zeros((1, 1, 2, 2), np.uint8))
    assert error.kind == "died"
    assert "serve again" in error.text


@pytest.mark.parametrize("status", [{"last_exit": None, "up_s": 9.0}, {"last_exit": DIED, "up_s": 3600.0}])
def test_a_death_of_long_ago_is_not_taken_for_this_one(tmp_path, status):
    script = Script(tmp_path, vanish, answer(**status))
    error = error_of(WorkerClient(script.path, LIMIT_S).infer, 1, 1)
    assert error.kind == "failed"
    assert "lives on" in error.text


@pytest.mark.slow
def test_when_no_new_trainer_answers_it_gives_up_within_two_seconds(tmp_path):
    script = Script(tmp_path, vanish)
    asked_s = time.monotonic()
    error = error_of(WorkerClient(script.path, LIMIT_S).infer, 1, 1)
    assert error.kind == "died"
    assert "has not come back" in error.text
    assert 1.5 < time.monotonic() - asked_s < 3.0


def test_an_answer_that_takes_too_long_is_told_with_the_limit(tmp_path):
    script = Script(tmp_path, silent)
    error = error_of(WorkerClient(script.path, 0.1).infer, 1, 1)
    assert error.kind == "unreachable"
    assert "within 0.1 s" in error.text


def test_a_status_cut_off_by_a_death_is_asked_of_the_next_trainer(tmp_path):
    script = Script(tmp_path, vanish, answer(state="idle"))
    assert WorkerClient(script.path).status()["state"] == "idle"


def test_an_answer_that_is_no_frame_is_told(tmp_path):
    script = Script(tmp_path, garbage)
    error = error_of(WorkerClient(script.path, LIMIT_S).infer, 1, 1)
    assert "a frame begins with" in error.text


def test_a_refusal_has_the_wires_kind_and_text(tmp_path):
    def refuse(connection):
        frames.read(connection)
        frames.write(connection, {"ok": False, "error": {"kind": "busy", "text": "busy with train"}})

    script = Script(tmp_path, refuse)
    error = error_of(WorkerClient(script.path, LIMIT_S).infer, 1, 1)
    assert (error.kind, error.text, str(error)) == ("busy", "busy with train", "busy: busy with train")


def test_jobs_share_a_connection_and_a_closed_one_is_replaced(tmp_path):
    asked = []

    def two_answers(connection):
        for _ in range(2):
            asked.append(frames.read(connection)[0]["verb"])
            frames.write(connection, {"ok": True})
        connection.close()

    def one_answer(connection):
        asked.append(frames.read(connection)[0]["verb"])
        frames.write(connection, {"ok": True})

    script = Script(tmp_path, two_answers, one_answer)
    client = WorkerClient(script.path, LIMIT_S)
    OPEN.append(client)
    client.infer(1, 1)
    client.profile(1, 1)
    ends_s = time.monotonic() + LIMIT_S
    while client._connection.recv(1, socket.MSG_PEEK):
        assert time.monotonic() < ends_s
    client.infer(1, 1)
    assert asked == ["infer", "profile", "infer"]


def test_a_request_is_the_wires_own_form(tmp_path):
    got = []

    def keep(connection):
        got.extend(frames.read(connection))
        frames.write(connection, {"ok": True}, {"w": np.ones(2)})

    script = Script(tmp_path, keep)
    client = WorkerClient(script.path, LIMIT_S)
    OPEN.append(client)
    options = {"steps": 3, "batch_size": 2, "learning_rate": 0.1}
    _, arrays = client.train(
        {"seed": 1, "options": options}, {"w": np.zeros(2)}, np.array([0, 1]), 3, limit_s=2.5, finish=True
    )
    header, sent = got
    assert json.loads(json.dumps(header)) == {
        "v": 1,
        "verb": "train",
        "begin": {"seed": 1, "options": options},
        "steps": 3,
        "limit_s": 2.5,
        "finish": True,
    }
    assert sorted(sent) == ["share", "w"]
    assert arrays["w"].tolist() == [1.0, 1.0]

"""The client: says what to do when nobody answers, and why the worker went away when it did."""

import json
import socket
import threading
import time

import numpy as np
import pytest
from fake_worker import until
from threaded_worker import error_of

from fedge.worker import frames
from fedge.worker.worker_client import WorkerClient

LIMIT_S = 10.0
DIED = {"cause": "oom-killed", "text": "the kernel killed the trainer for want of memory"}


@pytest.fixture
def scripted(tmp_path):
    """Makes the client of a worker that plays a list: for each connection in turn, a function of the connection."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "worker.sock"))
    listener.listen(8)
    held = [listener]

    def play(parts):
        for part in parts:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed: the test is over
                return
            connection.settimeout(LIMIT_S)
            held.append(connection)
            part(connection)

    def client(*parts, limit_s=LIMIT_S):
        threading.Thread(target=play, args=(parts,), daemon=True).start()
        held.append(WorkerClient(str(tmp_path / "worker.sock"), limit_s))
        return held[-1]

    yield client
    for one in held:
        one.close()


def answer(*asked, **fields):
    """Reads one request after the other into each of these lists, and answers it."""

    def part(connection):
        for into in asked or [[]]:
            into.extend(frames.read(connection))
            frames.write(connection, dict({"ok": True}, **fields), {"w": np.ones(2)})

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


def garbage(connection):
    frames.read(connection)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


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
def test_when_the_connection_ends_in_a_request_the_next_trainer_tells_the_cause(scripted, ending):
    client = scripted(ending, answer(last_exit=DIED, up_s=0.0))
    error = error_of(client.train, steps=1, arrays={"w": np.zeros(1000000)})
    assert error.kind == "died"
    assert "for want of memory" in error.text
    assert "oom-killed" in error.text


def test_a_request_that_a_death_cuts_off_tells_the_cause_too(scripted):
    client = scripted(vanish, answer(last_exit=DIED, up_s=0.0))
    error = error_of(client.request, "s", np.zeros((1, 1, 2, 2), np.uint8))
    assert error.kind == "died"
    assert "serve again" in error.text


def test_a_worker_that_was_started_anew_as_a_whole_does_not_live_on(scripted):
    error = error_of(scripted(vanish, answer(last_exit=None, up_s=0.0)).train, steps=1)
    assert error.kind == "died"
    assert "started anew with its supervisor [killed]; load and serve again" in error.text


@pytest.mark.parametrize("status", [{"last_exit": None, "up_s": 9.0}, {"last_exit": DIED, "up_s": 3600.0}])
def test_a_death_of_long_ago_is_not_taken_for_this_one(scripted, status):
    error = error_of(scripted(vanish, answer(**status)).profile, 1, 1)
    assert error.kind == "failed"
    assert "lives on" in error.text


@pytest.mark.slow
def test_when_no_new_trainer_answers_it_gives_up_within_two_seconds(scripted):
    asked_s = time.monotonic()
    error = error_of(scripted(vanish).profile, 1, 1)
    assert error.kind == "died"
    assert "has not come back" in error.text
    assert 1.5 < time.monotonic() - asked_s < 3.0


def test_an_answer_that_takes_too_long_is_told_with_the_limit(scripted):
    error = error_of(scripted(lambda connection: None, limit_s=0.1).profile, 1, 1)
    assert error.kind == "unreachable"
    assert "within 0.1 s" in error.text


def test_a_status_cut_off_by_a_death_is_asked_of_the_next_trainer(scripted):
    assert scripted(vanish, answer(state="idle")).status()["state"] == "idle"


def test_a_status_that_two_deaths_cut_off_is_asked_no_third_time(scripted):
    assert error_of(scripted(vanish, vanish, answer(state="idle")).status).kind == "unreachable"


def test_an_answer_that_is_no_frame_is_told(scripted):
    assert "a frame begins with" in error_of(scripted(garbage).profile, 1, 1).text


def test_a_refusal_has_the_wires_kind_and_text(scripted):
    error = error_of(scripted(answer(ok=False, error={"kind": "busy", "text": "busy with train"})).profile, 1, 1)
    assert (error.kind, error.text, str(error)) == ("busy", "busy with train", "busy: busy with train")


def test_jobs_share_a_connection_and_a_closed_one_is_replaced(scripted):
    first, second, third = asked = [], [], []

    def two_answers(connection):
        answer(first, second)(connection)
        connection.close()

    client = scripted(two_answers, answer(third))
    client.profile(1, 1)
    client.profile(2, 1)
    until(lambda: not client._connection.recv(1, socket.MSG_PEEK))
    client.profile(3, 1)
    assert [header["steps"] for header, _ in asked] == [1, 2, 3]


def test_a_request_is_the_wires_own_form(scripted):
    got = []
    options = {"steps": 3, "batch_size": 2, "learning_rate": 0.1}
    _, arrays = scripted(answer(got)).train(
        {"seed": 1, "options": options}, {"w": np.zeros(2)}, np.array([0, 1]), 3, limit_s=2.5, finish=True
    )
    header, sent = got
    expected = {"v": 1, "verb": "train", "begin": {"seed": 1, "options": options}, "steps": 3, "limit_s": 2.5}
    assert json.loads(json.dumps(header)) == dict(expected, finish=True)
    assert sorted(sent) == ["share", "w"]
    assert arrays["w"].tolist() == [1.0, 1.0]

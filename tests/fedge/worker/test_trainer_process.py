"""The service: one job at a time, status and cancel at once, and usable again after whatever a job does."""

import contextlib
import hashlib
import socket
import threading
import time
from pathlib import Path

import fake_worker
import numpy as np
import pytest
from fake_worker import LIMIT_S, LONG, NOISE, begin, until
from threaded_worker import PLAIN, Background, ThreadedWorker, W, error_of, kind_of, training

import fedge
from fedge.worker import frames, trainer_process
from fedge.worker.worker_client import WorkerClient, WorkerError

OPTIONS = begin()["options"]


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def still_open(connection):
    try:
        return bool(connection.recv(1))
    except ConnectionResetError:  # closed with something of ours unread
        return False


def test_the_version_is_the_packages_own():
    assert fedge.__version__ == trainer_process.VERSION


def test_status_says_what_it_is(client):
    until(lambda: client.status()["torch"] == "fake")
    status = client.status()
    assert (status["protocol"], status["state"], status["job"], status["task"]) == (1, "idle", None, None)
    assert status["python"].startswith("3.")
    assert status["numpy"] == np.__version__
    assert status["cuda"] is None
    assert status["restarts"] == 0
    assert status["last_exit"] is None
    assert 1 < status["rss_mb"] < 100000


def test_load_then_train_then_evaluate(client):
    loaded = client.load(*PLAIN)
    assert (loaded["samples"], loaded["test"], loaded["classes"], loaded["warm"]) == (8, 4, 3, False)
    np.testing.assert_array_equal(loaded["labels"], np.arange(8))
    reply, arrays = client.train(begin(4), W, steps=3)
    assert (reply["done"], reply["of"], len(reply["seconds"]), reply["stopped"], arrays) == (3, 4, 3, None, {})
    assert 0 < reply["first_step_after_s"] < LIMIT_S
    reply, arrays = client.train(steps=1, finish=True)
    assert (reply["done"], reply["loss"], reply["accuracy"]) == (4, 1.0, 0.25)
    np.testing.assert_array_equal(arrays["w"], [4.0, 4.0, 4.0])
    assert client.evaluate(arrays) == {"ok": True, "loss": 4.0, "accuracy": 0.5, "samples": 4}
    assert client.profile(2, 4)["step_s"] == [0.002, 0.002]


def test_a_training_can_be_finished_without_another_step_and_gives_its_memory_back_at_once(loaded, worker):
    loaded.train(begin(2), W, steps=2)
    begun = worker.runner._training
    assert not begun.ended
    reply, arrays = loaded.train(steps=0, finish=True)
    assert begun.ended
    assert reply["done"] == 2
    assert arrays["w"][0] == 2.0
    assert kind_of(loaded.train, steps=1) == "bad-request"


def test_a_training_without_arrays_begins_with_the_tasks_own(loaded):
    _, arrays = loaded.train(begin(1, seed=5), steps=1, finish=True)
    assert arrays["w"][0] == 6.0


def test_a_limit_stops_after_at_least_one_minibatch(loaded):
    reply, _ = loaded.train(begin(), steps=LONG, limit_s=0.02)
    assert reply["stopped"] == "limit"
    assert 1 <= len(reply["seconds"]) < 20


def test_a_trainings_share_outlives_the_memory_of_its_request(loaded, worker):
    shares = []
    start = fake_worker.Trainer.start
    trainer = worker.runner.loaded.trainer
    trainer.start = lambda arrays, share, *rest: shares.append(share) or start(trainer, arrays, share, *rest)
    loaded.train(begin(3), W, np.arange(5), steps=1)
    loaded.evaluate({"w": np.full(1000, 9, np.float32)})
    loaded.evaluate({"w": np.full(16, 9, np.float32)})
    assert shares[0].tolist() == [0, 1, 2, 3, 4]


def test_what_larger_minibatches_held_is_given_back_before_smaller_ones_are_trained(loaded):
    recovered = fake_worker.Trainer.recovered
    for batch_size in (8, 8, 4, 4):
        options = dict(OPTIONS, steps=1, batch_size=batch_size)
        loaded.train({"seed": 0, "options": options}, steps=1, finish=True)
    assert fake_worker.Trainer.recovered == recovered + 1


def test_a_refused_load_leaves_the_training_under_way(loaded):
    loaded.train(begin(3), W, steps=2)
    assert kind_of(loaded.load, {"builtin": "fly"}, NOISE) == "bad-source"
    _, arrays = loaded.train(steps=1, finish=True)
    assert arrays["w"][0] == 3.0


def test_the_same_load_again_makes_nothing_new(loaded):
    made = fake_worker.Trainer.made
    again = loaded.load(*PLAIN)
    assert again["warm"]
    assert fake_worker.Trainer.made == made
    np.testing.assert_array_equal(again["labels"], np.arange(8))
    assert not loaded.load({"builtin": "mistake"}, NOISE)["warm"]
    assert loaded.status()["task"] == {"name": "mistake", "sha256": "", "samples": 8, "test": 4}


def test_status_answers_during_a_job_and_cancel_stops_it_at_the_next_minibatch(loaded):
    job = training(loaded)
    asked_s = time.monotonic()
    status = loaded.status()
    assert time.monotonic() - asked_s < 1.0
    assert status["state"] == "busy"
    assert status["job"]["verb"] == "train"
    assert status["job"]["of"] == LONG
    assert loaded.cancel() is True
    reply, _ = job.outcome()
    assert reply["stopped"] == "cancelled"
    assert 0 < reply["done"] < LONG
    assert loaded.cancel() is False
    _, arrays = loaded.train(steps=1, finish=True)
    assert arrays["w"][0] == reply["done"] + 1


def test_other_verbs_are_refused_as_busy_with_the_jobs_name(loaded, worker):
    job = training(loaded)
    with WorkerClient(worker.path, LIMIT_S) as other:
        for call in (
            lambda: other.load(*PLAIN),
            lambda: other.evaluate({"w": np.zeros(1000000, np.float32)}),
            lambda: other.profile(1, 1),
        ):
            error = error_of(call)
            assert error.kind == "busy"
            assert "busy with train (" in error.text
        other.cancel()
        job.outcome()
        assert other.profile(1, 1)["step_s"] == [0.002]


def test_a_client_that_vanishes_cancels_its_training(loaded, worker):
    connection = worker.raw()
    frames.write(connection, {"v": 1, "verb": "train", "begin": begin(), "steps": LONG})
    until(lambda: (loaded.status()["job"] or {}).get("done", 0) > 1)
    connection.close()
    until(lambda: loaded.status()["state"] == "idle")
    assert kind_of(loaded.train, steps=1) == "bad-request"  # nobody's training is given up


def test_a_client_that_is_closed_cancels_the_training_that_another_thread_waits_for(loaded, worker):
    job = training(loaded)
    loaded.close()
    with WorkerClient(worker.path, LIMIT_S) as other:
        until(lambda: other.status()["state"] == "idle")
    assert isinstance(job.outcome(), WorkerError)


def test_a_client_that_only_closes_its_sending_half_gets_its_answer(loaded, worker):
    with worker.raw() as connection:
        frames.write(connection, {"v": 1, "verb": "train", "begin": begin(5), "steps": 5})
        connection.shutdown(socket.SHUT_WR)
        reply, _ = frames.read(connection)
    assert reply["done"] == 5


def test_a_client_that_vanishes_while_it_sends_leaves_the_room_free(loaded, worker):
    header = b'{"v":1,"verb":"train","arrays":[["w","uint8",[1000]]]}'
    connection = worker.raw()
    connection.sendall(frames.PREFIX.pack(frames.MAGIC, len(header), 1000) + header + b"half")
    until(lambda: loaded.status()["state"] == "busy")
    connection.close()
    until(lambda: loaded.status()["state"] == "idle")
    assert loaded.profile(1, 1)["ok"]


def half_a_model(worker, verb="train"):
    """A connection on which half of a request's arrays has come, and the other half does not."""
    header = ('{"v":1,"verb":"%s","arrays":[["w","uint8",[1000]]]}' % verb).encode()
    connection = worker.raw()
    connection.sendall(frames.PREFIX.pack(frames.MAGIC, len(header), 1000) + header + bytes(500))
    return connection


@pytest.mark.parametrize("verb", ["train", "load"])
def test_a_job_whose_arrays_still_come_is_ended_by_a_cancel_and_its_connection_lives_on(loaded, worker, verb):
    with half_a_model(worker, verb) as connection:
        until(lambda: loaded.status()["state"] == "busy")
        assert loaded.cancel() is True
        until(lambda: loaded.status()["state"] == "idle")
        assert loaded.profile(1, 1)["ok"]  # before the other half has come
        connection.sendall(bytes(500))
        reply, _ = frames.read(connection)
        assert reply["error"]["kind"] == "failed"
        assert verb + " was cancelled" in reply["error"]["text"]
        frames.write(connection, {"v": 1, "verb": "profile"})
        assert frames.read(connection)[0]["ok"]


def test_arrays_that_trickle_in_are_given_up_for_their_rate_though_none_of_their_bytes_is_late(
    client, worker, monkeypatch
):
    monkeypatch.setattr(trainer_process, "STALL_S", 0.3)
    monkeypatch.setattr(trainer_process, "LEAST_BYTES_PER_S", 10000)
    with half_a_model(worker) as connection:
        begun_s = time.monotonic()
        until(lambda: client.status()["state"] == "busy")
        connection.settimeout(0.05)
        reply = None
        while reply is None and time.monotonic() < begun_s + LIMIT_S:
            with contextlib.suppress(socket.timeout):
                reply, _ = frames.read(connection)
            with contextlib.suppress(BrokenPipeError):  # it may have been given up just now
                connection.send(b".")
        assert 0.3 < time.monotonic() - begun_s < LIMIT_S
        assert "the body was not whole after 0 s" in reply["error"]["text"]
        until(lambda: client.status()["state"] == "idle")


def test_arrays_that_stop_coming_are_given_up(client, worker, monkeypatch):
    monkeypatch.setattr(trainer_process, "STALL_S", 0.2)
    monkeypatch.setattr(trainer_process, "LEAST_BYTES_PER_S", 10)
    with half_a_model(worker) as connection:
        reply, _ = frames.read(connection)
        assert "no byte of the body for 0 s" in reply["error"]["text"]
        until(lambda: client.status()["state"] == "idle")


def test_a_load_that_is_cancelled_says_so_and_loads_nothing(tmp_path):
    reading, go_on = threading.Event(), threading.Event()
    parts = fake_worker.parts()

    def read(source):
        reading.set()
        assert go_on.wait(LIMIT_S)
        return parts.read(source)

    with WorkerClient(ThreadedWorker(tmp_path, parts=parts._replace(read=read)).path, LIMIT_S) as client:
        job = Background(client.load, *PLAIN)
        assert reading.wait(LIMIT_S)
        assert client.cancel() is True
        go_on.set()
        assert "load was cancelled" in job.outcome().text
        status = client.status()
        assert (status["task"], status["refused"]) == (None, None)
        assert kind_of(client.profile, 1, 1) == "no-task"
        assert client.load(*PLAIN)["samples"] == 8


def test_a_file_is_read_again_once_it_has_changed_unless_its_hash_was_promised(client, tmp_path):
    path = tmp_path / "data.npz"
    path.write_bytes(b"one")
    loose, promised = {"file": str(path)}, {"file": str(path), "sha256": "0" * 64}
    client.load({"builtin": "plain"}, loose)
    assert client.load({"builtin": "plain"}, loose)["warm"]
    path.write_bytes(b"another")
    assert not client.load({"builtin": "plain"}, loose)["warm"]
    client.load({"builtin": "plain"}, promised)
    path.write_bytes(b"a third one")
    assert client.load({"builtin": "plain"}, promised)["warm"]


@pytest.mark.parametrize(
    ("task", "kind", "says"),
    [
        ("cuda-memory", "oom", "NvMapMemAllocInternalTagged"),
        ("mistake", "failed", "ValueError: seven is no batch (fake_worker.py:"),
        ("quit", "failed", "SystemExit: 5"),
    ],
)
def test_after_a_failure_its_kind_is_told_and_the_worker_is_usable(tmp_path, task, kind, says):
    with WorkerClient(ThreadedWorker(tmp_path).path, LIMIT_S) as client:
        client.load({"builtin": task}, NOISE)
        recovered = fake_worker.Trainer.recovered
        error = error_of(client.train, begin(), steps=3)
        assert error.kind == kind
        assert says in error.text
        assert fake_worker.Trainer.recovered == recovered + 1
        assert client.profile(1, 1)["ok"]
        assert kind_of(client.train, steps=1) == "bad-request"
        client.load(*PLAIN)
        assert client.train(begin(2), steps=2, finish=True)[0]["done"] == 2


@pytest.mark.parametrize(
    "said", ["device-side assert triggered", "the launch timed out and was terminated", "hardware stack error"]
)
def test_after_an_error_that_breaks_cuda_the_answer_is_sent_and_the_process_ends(tmp_path, monkeypatch, said):
    def fail():
        raise RuntimeError(f"CUDA error: {said}")

    monkeypatch.setitem(fake_worker.HAPPENINGS, "broken", fail)
    worker = ThreadedWorker(tmp_path)
    with WorkerClient(worker.path, LIMIT_S) as client:
        client.load({"builtin": "broken"}, NOISE)
        error = error_of(client.train, begin(), steps=3)
    assert error.kind == "failed"
    assert said in error.text
    until(lambda: worker.ends == [trainer_process.BROKEN_EXIT])


def test_a_task_file_is_taken_with_its_own_hash_only(client):
    source = "def model(shape): ...\n"
    right = hashlib.sha256(source.encode()).hexdigest()
    error = error_of(client.load, {"name": "mine.py", "source": source + " ", "sha256": right}, NOISE)
    assert error.kind == "hash"
    assert right in error.text
    client.load({"name": "mine.py", "source": source, "sha256": right}, NOISE)
    assert client.status()["task"]["sha256"] == right


def test_data_lies_below_the_roots_only(client, worker, tmp_path):
    inside, outside = tmp_path / "data", tmp_path.parent / (tmp_path.name + "-elsewhere")
    inside.mkdir()
    outside.mkdir()
    (tmp_path / "way-out").symlink_to(outside)
    assert client.load({"builtin": "plain"}, {"folder": str(inside)})["ok"]
    for path in (outside, tmp_path / "way-out", inside / ".." / ".." / outside.name, "/"):
        error = error_of(client.load, {"builtin": "plain"}, {"folder": str(path)})
        assert error.kind == "bad-source"
        assert str(tmp_path) in error.text
    assert kind_of(client.load, {"builtin": "plain"}, {"file": "/etc/passwd", "sha256": ""}) == "bad-source"
    assert client.profile(1, 1)["ok"]  # what was loaded before stays


def test_without_a_root_no_file_is_read(tmp_path):
    with WorkerClient(ThreadedWorker(tmp_path).path, LIMIT_S) as client:
        assert "--data-root" in error_of(client.load, {"builtin": "plain"}, {"folder": str(tmp_path)}).text


@pytest.mark.parametrize("verb", ["train", "evaluate", "profile"])
def test_without_a_task_work_is_refused(worker, verb):
    with worker.raw() as connection:
        frames.write(connection, {"v": 1, "verb": verb})
        reply, _ = frames.read(connection)
    assert reply["error"]["kind"] == "no-task"
    assert "load" in reply["error"]["text"]


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        ({"v": 1, "verb": "fly"}, "unknown-verb"),
        ({"v": 1}, "unknown-verb"),
        ({"v": 1, "verb": ["load"]}, "unknown-verb"),
        ({"v": 2, "verb": "status"}, "bad-request"),
        ({"verb": "status"}, "bad-request"),
        ({"v": 1, "verb": "load"}, "bad-request"),
        ({"v": 1, "verb": "load", "task": {"builtin": 3}, "data": NOISE}, "bad-request"),
        ({"v": 1, "verb": "load", "task": {"builtin": "plain"}, "data": {"folder": 7}}, "bad-request"),
        ({"v": 1, "verb": "load", "task": {"builtin": "plain"}, "data": NOISE, "device": "tpu"}, "bad-request"),
        ({"v": 1, "verb": "load", "task": {"builtin": "fly"}, "data": NOISE}, "bad-source"),
        ({"v": 1, "verb": "train", "steps": -1}, "bad-request"),
        ({"v": 1, "verb": "train", "steps": 1.5}, "bad-request"),
        ({"v": 1, "verb": "train", "steps": 1, "limit_s": "soon"}, "bad-request"),
        ({"v": 1, "verb": "train", "steps": 1, "limit_s": float("nan")}, "bad-request"),
        ({"v": 1, "verb": "train", "begin": {"seed": 0, "options": {"steps": 1}}, "steps": 1}, "bad-request"),
        ({"v": 1, "verb": "train", "begin": {"seed": 0, "options": [1]}, "steps": 1}, "bad-request"),
        ({"v": 1, "verb": "train", "begin": {"seed": 0, "options": dict(OPTIONS, batch_size=2.5)}}, "bad-request"),
        ({"v": 1, "verb": "train", "begin": {"seed": 0, "options": dict(OPTIONS, steps=1 << 70)}}, "bad-request"),
        ({"v": 1, "verb": "train", "begin": 3, "steps": 1}, "bad-request"),
        ({"v": 1, "verb": "evaluate"}, "bad-request"),
        ({"v": 1, "verb": "profile", "steps": 0, "batch_size": 1}, "bad-request"),
        ({"v": 1, "verb": "profile", "steps": 1, "batch_size": 1, "kind": "guess"}, "bad-request"),
    ],
)
def test_a_wrong_request_is_refused_and_the_connection_lives_on(loaded, worker, request_, kind):
    with worker.raw() as connection:
        for _ in range(2):
            frames.write(connection, request_, {"w": np.zeros(3)} if "begin" in request_ else None)
            reply, _ = frames.read(connection)
            assert reply["error"]["kind"] == kind, reply
        frames.write(connection, {"v": 1, "verb": "profile"})
        assert frames.read(connection)[0]["ok"]


def test_garbage_is_answered_and_ends_only_its_own_connection(client, worker):
    for data in (
        b"GET / HTTP/1.1\r\n\r\n" * 1000,
        frames.PREFIX.pack(frames.MAGIC, 2, 1 << 63) + b"{}",
        frames.PREFIX.pack(frames.MAGIC, 0xFFFFFFFF, 0),
    ):
        with worker.raw() as connection:
            connection.sendall(data)
            reply, _ = frames.read(connection)
            assert reply["error"]["kind"] == "bad-request"
            assert not still_open(connection)
    assert client.status()["state"] == "idle"


def test_more_connections_than_the_limit_are_turned_away_and_room_comes_back(client, worker):
    held = [worker.raw() for _ in range(trainer_process.MOST_CONNECTIONS)]
    for connection in held:
        frames.write(connection, {"v": 1, "verb": "status"})
    answered = [frames.read(connection) for connection in held]
    assert all(reply["ok"] for reply, _ in answered)
    with worker.raw() as extra:
        reply, _ = frames.read(extra)
        assert reply["error"]["kind"] == "busy"
        assert "connections" in reply["error"]["text"]
    for connection in held:
        connection.close()

    def room():
        try:
            return client.status()["ok"]
        except WorkerError:
            return False

    until(room)


def test_a_thousand_requests_leak_no_file_descriptor(loaded):
    loaded.profile(1, 1)
    loaded.status()
    before = open_files()
    for _ in range(500):
        loaded.profile(1, 1)
        loaded.status()
    until(lambda: open_files() <= before + 2)


def test_requests_of_clients_that_vanish_while_they_are_turned_away_leak_none_either(client, worker, monkeypatch):
    monkeypatch.setattr(trainer_process, "MOST_REQUEST", 100)
    client.status()
    before = open_files()
    for _ in range(20):
        half_a_model(worker, "request").close()
    until(lambda: client.status()["state"] == "idle" and open_files() <= before + 2)

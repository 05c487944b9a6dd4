"""Standing services in the worker: served beside every job, told in replies and status, and no failure spreads."""

import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_worker import LIMIT_S, LONG, NOISE, begin, until
from test_trainer_process import Background, Worker, kind_of

from fedge.worker import frames, trainer_process
from fedge.worker.inference_services import parse_service, parse_training_share, warm_sizes
from fedge.worker.request_fields import BadField
from fedge.worker.worker_client import WorkerClient, WorkerError

PLAIN = {"builtin": "plain"}
W = {"w": np.zeros(3, np.float32)}


@pytest.fixture
def worker(tmp_path):
    return Worker(tmp_path, [tmp_path])


@pytest.fixture
def client(worker):
    with WorkerClient(worker.path, LIMIT_S) as client:
        yield client
        if not worker.runner.broken:
            client.unserve()  # its thread lives on


def images(*values):
    return np.asarray([np.full((1, 2, 2), value) for value in values], np.uint8)


def told(client, name="s"):
    return client.status()["services"][name]


def serving(client, name="s", task="plain", batch_size=4, latency_s=0.2, **more):
    return client.serve(name, {"builtin": task}, batch_size, latency_s, data=NOISE, **more)


def often(rate_hz=200.0, kind="constant"):
    return {"kind": kind, "rate_hz": rate_hz}


def test_serve_warms_every_batch_size_up(client, worker):
    reply = serving(client)
    assert (reply["name"], reply["sizes"], reply["classes"], reply["device"]) == ("s", [1, 2, 3, 4], 2, "cpu")
    assert len(reply["seconds"]) == 4
    assert worker.runner.serving._standing["s"].net.sizes == [1, 1, 2, 2, 3, 3, 4, 4]
    assert told(client)["requests"] == 0


def test_large_batches_are_warmed_up_in_powers_of_two():
    assert warm_sizes(1) == [1]
    assert warm_sizes(64) == list(range(1, 65))
    assert warm_sizes(100) == [1, 2, 4, 8, 16, 32, 64, 100]
    assert warm_sizes(128)[-2:] == [64, 128]


def test_a_request_gets_its_scores_and_its_latency(client):
    serving(client)
    scores, latency_s = client.request("s", images(7, 9))
    np.testing.assert_array_equal(scores, [[7, 8], [9, 10]])
    assert all(0 < one < LIMIT_S for one in latency_s)
    until(lambda: told(client)["served"] == 2)  # a batch is counted once those who asked have their answers


def test_a_request_larger_than_a_batch_is_answered_in_parts(client):
    serving(client, latency_s=0.05)
    scores, _ = client.request("s", images(*range(11)))
    assert scores[:, 0].tolist() == list(range(11))
    until(lambda: told(client)["batches"] == 3)


def test_requests_are_answered_while_a_training_runs(client, worker):
    client.load(PLAIN, NOISE)
    serving(client, latency_s=0.05)
    job = Background(client.train, begin(), W, steps=LONG)
    until(lambda: (client.status()["job"] or {}).get("done", 0) > 1)
    for value in range(5):
        with WorkerClient(worker.path, LIMIT_S) as other:
            assert other.request("s", images(value))[0].tolist() == [[value, value + 1]]
    assert client.cancel()
    reply, _ = job.outcome()
    assert reply["stopped"] == "cancelled"
    assert reply["service"]["s"]["served"] == 5


def test_generated_requests_are_served_between_jobs_and_beside_them(client):
    client.load(PLAIN, NOISE)
    serving(client, arrivals=often())
    until(lambda: told(client)["served"] > 20)
    before = told(client)["served"]
    reply, _ = client.train(begin(60), W, steps=60, finish=True)
    during = reply["service"]["s"]
    # 60 steps of 5 ms and more each, and 200 requests a second.
    assert 30 < during["requests"] <= told(client)["requests"] - before + during["waiting"]
    assert during["batches"] > 5
    assert during["histogram"]["count"] == during["served"]
    spent = reply["spent"]
    assert spent["working_s"] > 0.3
    assert spent["serving_s"] == pytest.approx(during["busy_s"])
    after = told(client)["served"]
    until(lambda: told(client)["served"] > after + 20)


def test_without_services_a_reply_is_what_it_was(client):
    client.load(PLAIN, NOISE)
    reply, _ = client.train(begin(2), W, steps=2)
    assert "service" not in reply
    assert "spent" not in reply
    assert client.status()["services"] == {}


def test_serving_does_not_hide_a_cancel(client):
    client.load(PLAIN, NOISE)
    serving(client, latency_s=0.01, batch_size=1, arrivals=often(5000.0))
    job = Background(client.train, begin(), W, steps=LONG)
    until(lambda: (client.status()["job"] or {}).get("done", 0) > 1)
    begin_s = time.monotonic()
    assert client.cancel()
    assert job.outcome()[0]["stopped"] == "cancelled"
    assert time.monotonic() - begin_s < 2.0


def test_unserve_ends_one_or_all_and_says_what_they_did(client):
    for name in "abc":
        serving(client, name)
    client.request("a", images(1))
    assert client.unserve("a")["a"]["served"] == 1
    assert kind_of(client.request, "a", images(1)) == "no-task"
    assert kind_of(client.unserve, "a") == "bad-request"
    assert sorted(client.unserve()) == ["b", "c"]
    assert client.unserve() == {}


def test_a_service_that_makes_its_own_requests_goes_with_others_waiting(client, worker):
    serving(client, latency_s=60.0, batch_size=1000, arrivals=often(20.0))
    stands_s = time.monotonic()
    with WorkerClient(worker.path, LIMIT_S) as other:
        asked = Background(other.request, "s", images(1))
        until(lambda: told(client)["waiting"] >= 1 and time.monotonic() > stands_s + 0.2)
        done = client.unserve("s")["s"]
        assert asked.outcome().kind == "busy"
    assert done["requests"] == done["dropped"] > 2
    assert client.unserve() == {}


def test_a_service_of_the_same_name_takes_over(client):
    serving(client, arrivals=often())
    until(lambda: told(client)["served"] > 5)
    serving(client, batch_size=2)
    assert told(client)["batch_size"] == 2
    assert client.request("s", images(3))[0].tolist() == [[3, 4]]
    assert told(client)["requests"] == 1


def test_services_go_on_over_a_load_and_the_training_over_a_serve(client):
    client.load(PLAIN, NOISE)
    client.train(begin(3), W, steps=2)
    serving(client)
    _, arrays = client.train(steps=1, finish=True)
    assert arrays["w"][0] == 3.0
    client.load({"builtin": "mistake"}, NOISE)
    assert client.request("s", images(1))[0].tolist() == [[1, 2]]


def test_a_refused_serve_leaves_the_training_and_the_service_under_way(client):
    client.load(PLAIN, NOISE)
    serving(client)
    client.train(begin(3), W, steps=2)
    assert kind_of(serving, client, task="fly") == "bad-source"
    _, arrays = client.train(steps=1, finish=True)
    assert arrays["w"][0] == 3.0
    assert client.request("s", images(1))[0].tolist() == [[1, 2]]


@pytest.mark.parametrize(("task", "kind", "said"), [("mistake", "failed", "seven"), ("cuda-memory", "oom", "NvMapMem")])
def test_a_failing_service_is_told_by_name_and_training_goes_on(client, task, kind, said):
    client.load(PLAIN, NOISE)
    serving(client, "good", arrivals=often())
    serving(client, "bad", task=task)
    with pytest.raises(WorkerError, match=said) as caught:
        client.request("bad", images(1))
    assert caught.value.kind == kind
    reply, arrays = client.train(begin(3), W, steps=3, finish=True)
    assert said in reply["service"]["bad"]["failed"]
    assert reply["service"]["good"]["failed"] == ""
    assert arrays["w"][0] == 3.0
    assert said in told(client, "bad")["failed"]
    assert kind_of(client.request, "bad", images(1)) == kind
    before = told(client, "good")["served"]
    until(lambda: told(client, "good")["served"] > before)
    serving(client, "bad")
    assert told(client, "bad")["failed"] == ""


def test_a_service_that_fails_beside_a_training_ends_alone(client):
    client.load(PLAIN, NOISE)
    serving(client, "bad", task="mistake", latency_s=0.3, arrivals=often(20.0))
    reply, arrays = client.train(begin(200), W, steps=200, finish=True)
    assert arrays["w"][0] == 200.0
    assert "seven" in reply["service"]["bad"]["failed"]


def test_a_service_that_breaks_the_device_ends_the_process_once_it_was_told(client, worker):
    serving(client, "bad", task="broken")
    assert kind_of(client.request, "bad", images(1)) == "failed"
    until(lambda: worker.ends == [trainer_process.BROKEN_EXIT])


def test_a_client_that_goes_away_while_its_request_waits_spoils_nothing(client, worker):
    serving(client, latency_s=0.5)
    for _ in range(3):
        connection = worker.raw()
        frames.write(connection, {"v": 1, "verb": "request", "name": "s"}, {"x": images(1)})
        connection.close()
    until(lambda: told(client)["served"] == 3)
    assert client.request("s", images(4))[0].tolist() == [[4, 5]]


def test_an_answer_that_comes_too_late_for_its_client_spoils_nothing(client, worker):
    serving(client, latency_s=0.5)
    with WorkerClient(worker.path, 0.05) as hasty:
        assert kind_of(hasty.request, "s", images(1)) == "unreachable"
    until(lambda: told(client)["served"] == 1)
    assert client.request("s", images(4))[0].tolist() == [[4, 5]]


def test_many_clients_get_each_their_own_answer(client, worker):
    serving(client, latency_s=0.1)

    def ask(value):
        with WorkerClient(worker.path, LIMIT_S) as one:
            return [one.request("s", images(value))[0].tolist() for _ in range(10)]

    asked = [Background(ask, value) for value in range(8)]
    for value, one in enumerate(asked):
        assert one.outcome() == [[[value, value + 1]]] * 10
    until(lambda: told(client)["served"] == 80)


def test_places_are_left_for_jobs_however_many_wait_for_an_answer(client, worker):
    serving(client, latency_s=60.0, batch_size=100)
    waiting = []
    for _ in range(trainer_process.MOST_ASKING):
        waiting.append(worker.raw())
        frames.write(waiting[-1], {"v": 1, "verb": "request", "name": "s"}, {"x": images(1)})
    until(lambda: told(client)["waiting"] == trainer_process.MOST_ASKING)
    assert kind_of(client.request, "s", images(1)) == "busy"
    client.unserve("s")
    for one in waiting:
        assert frames.read(one)[0]["error"]["kind"] == "busy"
        one.close()


def test_requests_for_which_there_is_no_room_are_refused(client):
    serving(client, latency_s=0.1, most_waiting=4)
    assert kind_of(client.request, "s", images(*range(5))) == "busy"
    assert client.request("s", images(*range(4)))[0].shape == (4, 2)


@pytest.mark.parametrize(
    "sent",
    [None, {"y": images(1)}, {"x": images(1).astype(np.float32)}, {"x": images(1)[:, :, :1]}, {"x": images(1)[:0]}],
)
def test_a_request_that_brings_no_fitting_images_is_refused(client, worker, sent):
    serving(client)
    connection = worker.raw()
    frames.write(connection, {"v": 1, "verb": "request", "name": "s"}, sent)
    assert frames.read(connection)[0]["error"]["kind"] == "bad-request"
    connection.close()


def test_a_request_that_is_too_large_is_refused_and_the_connection_goes_on(worker, client, monkeypatch):
    monkeypatch.setattr(trainer_process, "MOST_REQUEST", 100)
    serving(client)
    connection = worker.raw()
    for count, expected in ((40, "bad-request"), (1, None)):
        frames.write(connection, {"v": 1, "verb": "request", "name": "s"}, {"x": images(*range(count))})
        assert frames.read(connection)[0].get("error", {}).get("kind") == expected
    connection.close()


@pytest.mark.parametrize(
    "fields",
    [
        {"latency_s": None},
        {"latency_s": 0},
        {"batch_size": 0},
        {"batch_size": 10**6},
        {"name": ""},
        {"max_wait_s": -1},
        {"when_late": "perhaps"},
        {"most_waiting": 0},
    ],
)
def test_fields_that_cannot_be_meant_so_are_refused(fields):
    good = {"name": "s", "batch_size": 4, "latency_s": 0.5}
    assert parse_service(good).when_late == "serve"
    with pytest.raises(BadField, match=next(iter(fields)) + ": got"):
        parse_service(dict(good, **fields))


def test_training_keeps_some_of_its_time_always():
    assert parse_training_share({}) is None
    assert parse_training_share({"training_share": 0.3}) == 0.3
    for share in (0, 0.001, 1, "much"):
        with pytest.raises(BadField, match="training_share: got"):
            parse_training_share({"training_share": share})


def test_a_serve_is_checked_before_anything_is_made(client):
    assert kind_of(serving, client, arrivals={"kind": "often"}) == "bad-request"
    assert kind_of(serving, client, device="moon") == "bad-request"
    assert kind_of(serving, client, training_share=1.0) == "bad-request"
    assert client.status()["services"] == {}


def test_data_outside_the_roots_is_refused(client):
    with pytest.raises(WorkerError) as caught:
        client.serve("s", PLAIN, 4, 0.5, data={"file": "/etc/hostname"})
    assert caught.value.kind == "bad-source"


def test_status_is_json_while_requests_rush_in(client):
    serving(client, latency_s=0.02, batch_size=2, arrivals=often(2000.0, "poisson"))
    for _ in range(50):
        json.dumps(client.status())
    assert told(client)["served"] > 0

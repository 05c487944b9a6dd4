"""Standing services in the worker: served beside every job, told in replies and status, and no failure spreads."""

import json
import time

import numpy as np
import pytest
from fake_worker import LIMIT_S, NOISE, begin, until
from threaded_worker import PLAIN, Background, W, error_of, kind_of, training

from fedge.worker import frames, trainer_process
from fedge.worker.inference_services import parse_service, parse_training_share, warm_sizes
from fedge.worker.refusal import BadField
from fedge.worker.worker_client import WorkerClient

ASK = {"v": 1, "verb": "request", "name": "s"}


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


def test_requests_are_answered_while_a_training_runs(loaded, worker):
    serving(loaded, latency_s=0.05)
    job = training(loaded)
    for value in range(5):
        with WorkerClient(worker.path, LIMIT_S) as other:
            assert other.request("s", images(value))[0].tolist() == [[value, value + 1]]
    assert loaded.cancel()
    reply, _ = job.outcome()
    assert reply["stopped"] == "cancelled"
    assert reply["service"]["s"]["served"] == 5


def test_generated_requests_are_served_between_jobs_and_beside_them(loaded):
    serving(loaded, arrivals=often())
    until(lambda: told(loaded)["served"] > 20)
    before = told(loaded)["served"]
    reply, _ = loaded.train(begin(60), W, steps=60, finish=True)
    during = reply["service"]["s"]
    # 60 steps of 5 ms and more each, and 200 requests a second.
    assert 30 < during["requests"] <= told(loaded)["requests"] - before + during["waiting"]
    assert during["batches"] > 5
    assert during["histogram"]["count"] == during["served"]
    spent = reply["spent"]
    assert spent["working_s"] > 0.3
    assert spent["serving_s"] == pytest.approx(during["busy_s"])
    after = told(loaded)["served"]
    until(lambda: told(loaded)["served"] > after + 20)


def test_serving_does_not_hide_a_cancel(loaded):
    serving(loaded, latency_s=0.01, batch_size=1, arrivals=often(5000.0))
    job = training(loaded)
    begin_s = time.monotonic()
    assert loaded.cancel()
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


def test_services_go_on_over_a_load_and_the_training_over_a_serve_also_one_that_is_refused(loaded):
    loaded.train(begin(3), W, steps=2)
    serving(loaded)
    assert kind_of(serving, loaded, task="fly") == "bad-source"
    _, arrays = loaded.train(steps=1, finish=True)
    assert arrays["w"][0] == 3.0
    loaded.load({"builtin": "mistake"}, NOISE)
    assert loaded.request("s", images(1))[0].tolist() == [[1, 2]]


@pytest.mark.parametrize(("task", "kind", "said"), [("mistake", "failed", "seven"), ("cuda-memory", "oom", "NvMapMem")])
def test_a_failing_service_is_told_by_name_and_training_goes_on(loaded, task, kind, said):
    serving(loaded, "good", arrivals=often())
    serving(loaded, "bad", task=task)
    error = error_of(loaded.request, "bad", images(1))
    assert error.kind == kind
    assert said in error.text
    reply, arrays = loaded.train(begin(3), W, steps=3, finish=True)
    assert said in reply["service"]["bad"]["failed"]
    assert reply["service"]["good"]["failed"] == ""
    assert arrays["w"][0] == 3.0
    assert said in told(loaded, "bad")["failed"]
    assert kind_of(loaded.request, "bad", images(1)) == kind
    before = told(loaded, "good")["served"]
    until(lambda: told(loaded, "good")["served"] > before)
    serving(loaded, "bad")
    assert told(loaded, "bad")["failed"] == ""


def test_a_service_that_breaks_the_device_ends_the_process_once_it_was_told(client, worker):
    serving(client, "bad", task="broken")
    assert kind_of(client.request, "bad", images(1)) == "failed"
    until(lambda: worker.ends == [trainer_process.BROKEN_EXIT])


def test_a_client_that_goes_away_or_gives_up_while_its_request_waits_spoils_nothing(client, worker):
    serving(client, latency_s=0.5, batch_size=8)
    for _ in range(3):
        connection = worker.raw()
        frames.write(connection, ASK, {"x": images(1)})
        connection.close()
    with WorkerClient(worker.path, 0.05) as hasty:
        assert kind_of(hasty.request, "s", images(1)) == "unreachable"
    until(lambda: told(client)["served"] == 4)
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
        frames.write(waiting[-1], ASK, {"x": images(1)})
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


def test_a_request_without_fitting_images_or_too_large_is_refused_and_the_connection_goes_on(
    worker, client, monkeypatch
):
    monkeypatch.setattr(trainer_process, "MOST_REQUEST", 100)
    serving(client)
    fit = images(1)
    with worker.raw() as connection:
        for sent in (
            None,
            {"y": fit},
            *({"x": x} for x in (fit.astype("f4"), fit[:, :, :1], fit[:0], images(*range(40)))),
        ):
            frames.write(connection, ASK, sent)
            assert frames.read(connection)[0]["error"]["kind"] == "bad-request"
        frames.write(connection, ASK, {"x": fit})
        assert frames.read(connection)[0]["ok"]


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
    assert kind_of(client.serve, "s", PLAIN[0], 4, 0.5, data={"file": "/etc/hostname"}) == "bad-source"


def test_status_is_json_while_requests_rush_in(client):
    serving(client, latency_s=0.02, batch_size=2, arrivals=often(2000.0, "poisson"))
    for _ in range(50):
        json.dumps(client.status())
    assert told(client)["served"] > 0

"""A real board that serves, with the real daemon and worker: the service stands for the run, rounds tell of it."""

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the worker trains with torch")

from contracts.desk import Desk, desk

from fedge.client import real
from fedge.client.tracing_device import SERVICE_PREFIX
from fedge.devices.jetson_board import IdlePowerStore
from fedge.devices.local_board import name_meter, open_local_board
from fedge.experiment import Experiment
from fedge.modes import build_grid
from fedge.serving.standing_service import latency_percentile_s
from fedge.types import RoundGoal
from fedge.wire import ReplyMessage, RequestMessage, from_json, to_json
from fedge.worker.worker_client import WorkerClient as Worker
from fedge.workloads import load_task

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("desk")]

SERVING = {"cost": "mobilenetv3l-gld23k", "rate_hz": 20, "latency_s": 3.0, "batch_sizes": [1, 4]}
EXPERIMENT = Experiment.model_validate(
    {
        "fleet": [{"device": "orin-nano", "name": "board", "serving": SERVING}],
        "workload": {"task": "digits-cnn", "local_epochs": 6},
        "exploration": {"share": 0.0},
        "seed": 3,
    }
)
IDLE_W = 3.0
LIMIT_S = 30.0


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with desk("orin-nano-jp6", tmp_path_factory.mktemp("desk")) as found:
        with open_local_board(found.settings.place) as here:
            book = IdlePowerStore(
                found.settings.state_dir / "idle.json", name_meter(here.sensor, found.settings.sensor)
            )
            for mode in (here.board.spec.maxn, *build_grid(here.board.spec)):
                book._watts[str(mode)] = IDLE_W
            book.record(here.board.spec.maxn, IDLE_W)
        yield found


def services(found: Desk) -> dict[str, Any]:
    with closing(Worker(found.settings.worker_socket)) as worker:
        return dict(worker.status().get("services") or {})


def round_of(found: Desk, number: int, earlier: ReplyMessage | None = None) -> ReplyMessage:
    arrays = load_task("digits-cnn").initial_arrays(3)
    state = {} if earlier is None or earlier.state is None else {"state": earlier.state}
    ask = RequestMessage(
        "train", round=number, policy="maxn", goal=RoundGoal("maxn", 50), model_bytes=24_000, run="a", **state
    )
    answer, _ = real.answer_request(EXPERIMENT, found.settings, ask, arrays)
    assert answer.error is None, answer.error
    return answer


@pytest.fixture(scope="module")
def played(board: Desk) -> tuple[ReplyMessage, ReplyMessage, ReplyMessage]:
    """A front, and two rounds one after the other."""
    front = real.answer_request(EXPERIMENT, board.settings, RequestMessage("front", policy="maxn", run="a"), None)[0]
    assert front.error is None, front.error
    first = round_of(board, 1)
    return front, first, round_of(board, 2, first)


def test_a_round_tells_what_the_service_did_during_its_minibatches(played):
    for answer in played[1:]:
        part = answer.report.measured
        use = part.service
        assert 0.3 * SERVING["rate_hz"] <= use.requests / part.work_s <= 3 * SERVING["rate_hz"]
        assert use.batches >= use.requests / 4
        assert 0.0 < use.share < 1.0
        worst_s = latency_percentile_s(use, 99.0)
        assert worst_s <= 3.0
        assert use.late == 0
        assert from_json(ReplyMessage, to_json(answer)) == answer


def test_waiting_and_the_front_account_for_the_service(played):
    front, _, second = played
    assert front.front.idle_w > IDLE_W
    # Of a crowded machine: the order of magnitude, no more.
    assert 0.2 < second.front.maxn.work_s / second.report.work_s < 5.0


def test_the_service_goes_on_between_rounds_and_ends_with_the_run(board, played):
    (name, told), *others = services(board).items()
    assert name.startswith(SERVICE_PREFIX)
    assert not others
    until_s = time.monotonic() + LIMIT_S
    while services(board)[name]["served"] < told["served"] + 5:
        assert time.monotonic() < until_s, "it does not serve while nobody trains"
        time.sleep(0.05)

    real.answer_request(EXPERIMENT, board.settings, RequestMessage("bye", run="a"), None)

    assert services(board) == {}
    np.testing.assert_equal(len(played), 3)


def test_another_service_takes_the_place_of_the_one_before(board, tmp_path):
    round_of(board, 1)
    (before,) = services(board)
    faster = EXPERIMENT.model_copy(
        update={
            "fleet": tuple(
                entry.model_copy(update={"serving": entry.serving.model_copy(update={"rate_hz": 40.0})})
                for entry in EXPERIMENT.fleet
                if entry.serving
            )
        }
    )
    ask = RequestMessage("train", round=1, policy="maxn", goal=RoundGoal("maxn", 50), model_bytes=24_000, run="b")
    real.answer_request(EXPERIMENT, board.settings, RequestMessage("bye", run="a"), None)

    answer, _ = real.answer_request(faster, board.settings, ask, load_task("digits-cnn").initial_arrays(3))

    assert answer.error is None, answer.error
    (after,) = services(board)
    assert after != before
    real.answer_request(faster, board.settings, RequestMessage("bye", run="b"), None)

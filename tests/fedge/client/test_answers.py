"""A real board that runs out of memory, with the real daemon and worker: smaller tries at once, learnt for later."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the worker trains with torch")

from contracts.desk import Desk, desk

from fedge.client import board_session, emulated, real
from fedge.client.answers import Answer, run_attempts
from fedge.client.client_setup import ClientSetup
from fedge.client.memory_scaling import ScaleAttempt
from fedge.client.prediction_requests import Asking, run_alone
from fedge.devices.jetson_board import IdlePowerStore
from fedge.devices.local_board import name_meter, open_local_board
from fedge.errors import NarrowingRefused, OutOfMemory
from fedge.experiment import Experiment, PolicySpec
from fedge.modes import build_grid
from fedge.types import RoundGoal, TrainingScale, TrainResult
from fedge.wire import ClientState, ReplyMessage, RequestMessage, from_json, to_json
from fedge.worker.worker_client import WorkerClient
from fedge.workloads import load_experiment_task

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("desk")]

MOST = 6
OWN = '''
import numpy as np
import torch
from torch import nn
from fedge.worker.sources import Data


class Hungry(nn.Module):
    """Stands in for a GPU with room for {most} samples at full width, and for twice as many at half of it."""

    def forward(self, x):
        if x.shape[0] * x.shape[1] > {most} * 16:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return x


def model(shape):
    parts = [nn.Conv2d(1, 16, 3), Hungry(), nn.ReLU(), {norm}, nn.Flatten(), nn.Linear(16 * 36, shape.classes)]
    return nn.Sequential(*parts)


def data(source):
    rng = np.random.RandomState(3)
    x, y = rng.randint(0, 256, (64, 1, 8, 8)).astype(np.uint8), np.arange(64) % 4
    return Data(x, y, x[:8], y[:8], (128.0,), (64.0,), 4)
'''
IDLE_W = 3.0
CANCEL_S = 4.0


def experiment(folder: Path, norm: str = "nn.Identity()", memory_mb: float = 50_000.0, **memory: object) -> Experiment:
    """One board whose network needs what its text says; predictions are far too low for it."""
    task = folder / f"own{abs(hash(norm)) % 1000}.py"
    task.write_text(OWN.format(most=MOST, norm=norm), encoding="utf-8")
    return Experiment.model_validate(
        {
            "fleet": [{"device": "orin-nano", "name": "board", "memory_mb": memory_mb}],
            "workload": {
                "task": str(task), "cost": "resnet18-imagenet", "batch_size": 16, "local_epochs": 1, "memory": memory,
                "optimizer_state": 1.0,
            },
            "exploration": {"share": 0.0},
            "seed": 3,
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with desk("orin-nano-jp6", tmp_path_factory.mktemp("desk")) as found:
        with open_local_board(found.settings.place) as here:
            meter = name_meter(here.sensor, found.settings.sensor)
            book = IdlePowerStore(found.settings.state_dir / "idle.json", meter)
            for mode in (here.board.spec.maxn, *build_grid(here.board.spec)):
                book._watts[str(mode)] = IDLE_W
            book.record(here.board.spec.maxn, IDLE_W)
        yield found


def round_of(
    found: Desk,
    what: Experiment,
    number: int = 1,
    state: ClientState | None = None,
    cancel_s: float | None = None,
) -> tuple[ReplyMessage, TrainResult | None]:
    arrays = load_experiment_task(what).initial_arrays(3)
    ask = RequestMessage("train", number, 0.0, "maxn", state or ClientState(), RoundGoal("maxn", 50), 24_000, run="a")
    ask = replace(ask, cancel_s=cancel_s)
    samples = found.settings.state_dir / "samples"
    samples.mkdir(exist_ok=True)
    settings = found.settings
    if what.workload.task.endswith(".py"):
        settings = settings.model_copy(update={"data_folder": str(samples)})
    answer, trained = real.answer_request(what, settings, ask, arrays)
    assert from_json(ReplyMessage, to_json(answer)) == answer
    return answer, trained


def test_a_batch_that_does_not_fit_is_halved_until_it_does_and_the_next_round_knows(board, tmp_path):
    what = experiment(tmp_path)

    answer, trained = round_of(board, what)

    assert answer.error is None
    use = answer.report.memory
    assert use.failures >= 1
    assert use.used.batch_size <= MOST
    assert use.used.width == 1.0
    assert 0 < use.lost_s < answer.report.work_s
    ends_s = answer.trace.start_s[-1] + answer.trace.span_s[-1]
    assert ends_s == pytest.approx(answer.report.busy_s, abs=0.1)
    assert answer.report.steps == 64 // use.used.batch_size
    assert {part.scale for part in answer.report.parts} == {use.used}
    assert {n: v.shape for n, v in trained.arrays.items()} == {
        n: v.shape for n, v in load_experiment_task(what).initial_arrays(1).items()
    }
    again, _ = round_of(board, what, 2, answer.state)
    assert again.report.memory.failures < use.failures or again.report.memory.used <= use.used


def test_width_first_a_narrow_network_is_trained_as_the_emulated_board_trains_it(board, tmp_path):
    what = experiment(tmp_path, lower="width-first", min_batch=8)

    answer, trained = round_of(board, what)

    used = answer.report.memory.used
    assert used.width < 1.0
    shapes = load_experiment_task(what).narrow_shapes(used.width)
    assert {name: value.shape for name, value in trained.arrays.items()} == shapes
    assert all(np.isfinite(value).all() for value in trained.arrays.values())


def test_a_network_that_cannot_be_narrow_has_its_batch_lowered_alone(board, tmp_path):
    what = experiment(tmp_path, norm="nn.LayerNorm([16, 6, 6])", lower="width-first")

    answer, _ = round_of(board, what)

    assert answer.error is None
    assert answer.report.memory.used.width == 1.0
    assert answer.report.memory.used.batch_size <= MOST


def test_where_nothing_fits_the_board_fails_says_why_and_remembers(board, tmp_path):
    what = experiment(tmp_path, min_batch=16, widths=[1.0])

    answer, trained = round_of(board, what)

    assert trained is None
    assert answer.error.startswith("out of memory at batch 16 (")
    assert "memory_mb of the fleet entry" in answer.error
    assert "CUDA out of memory" in answer.error
    assert answer.unfit
    assert [seen.peak_mb for seen in answer.state.memory] == [None]


def test_a_client_that_is_cancelled_after_a_smaller_attempt_still_knows_what_did_not_fit(board, tmp_path, monkeypatch):
    class EndlessWorker(WorkerClient):
        def train(self, begin: Any = None, arrays: Any = None, share: Any = None, steps: int = 0, **more: Any) -> Any:
            return super().train(begin, arrays, share, 10**6 if steps else 0, **more)

    monkeypatch.setattr(board_session, "WorkerClient", EndlessWorker)
    what = experiment(tmp_path, widths=[1.0])
    long = what.model_copy(update={"workload": what.workload.model_copy(update={"local_epochs": 3000.0})})
    answer, trained = round_of(board, long, cancel_s=CANCEL_S)

    assert trained is None
    assert (answer.cut, answer.report) == (True, None)
    assert answer.state.memory
    assert {seen.peak_mb for seen in answer.state.memory} == {None}


def attempts_of(
    what: Experiment,
    answer: Callable[[ScaleAttempt], Answer],
    goal: RoundGoal | None = None,
    state: ClientState | None = None,
) -> tuple[ReplyMessage, TrainResult | None]:
    """Run a round's attempts on the client of an emulated board with the same network."""
    client = emulated.load_client(what, 0)
    ask = RequestMessage("train", 1, 0.0, "maxn", state or ClientState(), model_bytes=24_000, goal=goal)

    def run_attempt(_: ClientSetup, attempt: ScaleAttempt | None) -> Asking[Answer]:
        yield from ()
        assert attempt is not None
        return answer(attempt)

    return run_alone(run_attempts(client.setup, ask, run_attempt, partial(emulated.open_board, client, 3)))


def built_in(memory_mb: float = 50_000.0, **memory: object) -> Experiment:
    workload = {"task": "digits-cnn", "cost": "resnet18-imagenet", "batch_size": 16, "memory": memory}
    fleet = [{"device": "orin-nano", "name": "board", "memory_mb": memory_mb}]
    return Experiment.model_validate({"fleet": fleet, "workload": workload, "seed": 3})


def test_a_network_that_cannot_be_narrowed_is_tried_at_full_width_from_then_on():
    tried = list[TrainingScale]()

    def refuse_narrow(attempt: ScaleAttempt) -> Answer:
        tried.append(attempt.scale)
        if attempt.scale.width < 1.0:
            raise NarrowingRefused("not this network")
        if attempt.scale.batch_size > 4:
            raise OutOfMemory("too large", 2.0, "CUDA out of memory")
        return ReplyMessage("board"), None

    answer, _ = attempts_of(built_in(lower="width-first"), refuse_narrow)

    assert answer.error is None
    assert tried[0] == TrainingScale(16)
    assert sum(scale.width < 1.0 for scale in tried) == 1
    assert tried[-1] == TrainingScale(4)


@pytest.mark.parametrize("guard", [True, False])
@pytest.mark.parametrize("planned", [True, False])
def test_a_width_that_the_worker_refuses_fails_one_round_and_the_next_trains_the_whole_network(*, guard, planned):
    """The whole network, which could be trained instead, was not sent."""
    tried = list[TrainingScale]()

    def refuse_narrow(attempt: ScaleAttempt) -> Answer:
        tried.append(attempt.scale)
        if attempt.scale.width < 1.0:
            raise NarrowingRefused("a layer it does not know")
        return ReplyMessage("board", state=ClientState()), None

    what = built_in(guard=guard)
    what = what.model_copy(update={"policy": PolicySpec(name="joint")})
    if not planned:
        what = what.model_copy(update={"fleet": (what.fleet[0].model_copy(update={"width": 0.5}),)})
    goal = RoundGoal("joint", 0, width=0.5 if planned else 1.0)
    failed, trained = attempts_of(what, refuse_narrow, goal)

    assert trained is None
    assert re.search(r"width 0\.5: got .*\(a layer it does not know\); right: fleet.width 1", failed.error)
    assert "from now on it trains the whole network" in failed.error
    assert failed.state.whole_only
    assert failed.front.narrow == ()
    done, _ = attempts_of(what, refuse_narrow, goal, failed.state)
    assert done.error is None
    assert done.state.whole_only
    assert tried == [TrainingScale(16, 0.5), TrainingScale(16)]


def test_a_worker_that_died_is_not_tried_again_in_the_same_round():
    tried = list[TrainingScale]()

    def die(attempt: ScaleAttempt) -> Answer:
        tried.append(attempt.scale)
        raise OutOfMemory("killed", 2.0, "the trainer was killed", can_retry=False)

    answer, trained = attempts_of(built_in(), die)

    assert (len(tried), trained) == (1, None)
    assert answer.error.endswith("; the trainer was killed")
    assert not answer.unfit, "the next round tries something smaller"
    assert answer.state.rested_at_s == 2.0
    assert [seen.peak_mb for seen in answer.state.memory] == [None]


def test_a_round_that_fits_tells_the_peak_of_the_worker(board, tmp_path):
    built_in = experiment(tmp_path).model_copy(update={
        "workload": Experiment.model_validate({"fleet": [{"device": "nano"}]}).workload
    })  # fmt: skip
    answer, _ = round_of(board, built_in)
    use = answer.report.memory
    assert use.used == TrainingScale(16)
    assert use.peak_mb is None or 20.0 < use.peak_mb < 20_000.0
    assert [seen.peak_mb for seen in answer.state.memory] == ([] if use.peak_mb is None else [use.peak_mb])


def test_a_board_with_little_memory_lowers_its_batch_before_it_tries(board, tmp_path):
    from fedge.client.memory_scaling import build_scaling_context
    from fedge.devices import catalogue

    what = experiment(tmp_path)
    means = build_scaling_context(what, what.fleet[0], catalogue.find("orin-nano"), lambda: True)
    limit_mb = 1.06 * means.estimate_need(TrainingScale(4)).memory_mb
    answer, _ = round_of(board, experiment(tmp_path, memory_mb=limit_mb))
    assert answer.report.memory.failures == 0
    assert answer.report.memory.why.startswith("batch 16 -> 4: ")

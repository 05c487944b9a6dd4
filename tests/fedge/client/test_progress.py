"""Emulated boards tell how far they are, seldom, and what they do does not depend on it."""

import itertools

import pytest

from fedge import workloads
from fedge.client import emulated
from fedge.client.progress import open_emulated_reporter
from fedge.experiment import Experiment
from fedge.telemetry.live_records import BoardProgress
from fedge.telemetry.progress_files import read_progress
from fedge.telemetry.run_folder import LIVE
from fedge.types import RoundGoal
from fedge.wire import RequestMessage, to_json

pytest.importorskip("torch", reason="a client trains")

T0 = 1_790_000_000.0
EXPERIMENT = Experiment.model_validate(
    {
        "fleet": [{"device": "orin-nano", "name": "nano", "count": 2}],
        "workload": {"task": "digits-cnn", "local_epochs": 1},
        "seed": 3,
    }
)


def asked() -> RequestMessage:
    return RequestMessage(
        "train", round=2, policy="balanced", goal=RoundGoal("balanced", 50, deadline_s=60.0), model_bytes=1000
    )


def test_a_round_is_told_and_gives_the_same_answer_to_the_last_bit(tmp_path):
    arrays = workloads.load_experiment_task(EXPERIMENT).initial_arrays(3)
    silent, trained = emulated.answer_request(EXPERIMENT, 0, asked(), arrays)
    ticking = (T0 + i for i in itertools.count())
    telling_one, same = emulated.answer_request(
        EXPERIMENT, 0, asked(), arrays, tmp_path / "my-run", lambda: next(ticking)
    )

    said = read_progress(tmp_path / "my-run" / LIVE)["nano-1"]
    assert (said.state, said.run, said.round, said.device) == ("done", "my-run", 2, "orin-nano")
    assert said.steps_done == said.steps > 0
    assert said.mode
    assert said.power_w
    assert silent.error is None
    assert to_json(silent) == to_json(telling_one)
    assert all((trained.arrays[name] == same.arrays[name]).all() for name in trained.arrays)


def test_a_round_that_fails_is_told(tmp_path):
    def work() -> None:
        with open_emulated_reporter(tmp_path, BoardProgress("a", 0.0, "fetching"), lambda: T0) as teller:
            teller.report("training")
            raise RuntimeError("worn out")

    with pytest.raises(RuntimeError):
        work()
    said = read_progress(tmp_path / LIVE)["a"]
    assert (said.state, said.error) == ("failed", "worn out")


def test_many_short_rounds_write_seldom(tmp_path):
    now_s, states = [T0], []
    for number in range(100):
        with open_emulated_reporter(
            tmp_path, BoardProgress("b", 0.0, "fetching", round=number), lambda: now_s[0]
        ) as teller:
            teller.report("training")
            now_s[0] += 0.01
        states.append((tmp_path / LIVE / "b.json").read_bytes())
    assert len(set(states)) <= 6

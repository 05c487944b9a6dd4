"""What a server may expect of a client, real or emulated."""

from collections.abc import Callable

import numpy as np
import pytest
import yaml

pytest.importorskip("torch", reason="a client trains with torch")

from contracts.variants import write_variant

from experiments.spec.experiment_loader import load_experiment
from fedge.experiment import EvaluationSpec, Experiment
from fedge.seeds import derive_seed, make_generator
from fedge.types import NamedArrays, RoundGoal, TrainOptions, TrainResult
from fedge.wire import ReplyMessage, RequestMessage
from fedge.workloads import load_experiment_task, load_task
from fedge.workloads.partitions import split_samples, split_test

Ask = Callable[[Experiment, RequestMessage, NamedArrays | None], tuple[ReplyMessage, TrainResult | None]]
"""Answers a request as the first board of an experiment."""
EXPERIMENT = Experiment.model_validate(
    {
        "fleet": [{"device": "orin-nano", "name": "board", "count": 2}],
        "workload": {"task": "digits-cnn", "local_epochs": 1},
        "exploration": {"share": 0.2, "probe_s": 0.1},
        "seed": 3,
    }
)
TASK = load_task("digits-cnn")
MODEL_BYTES = 24_000
SHARES = split_samples(EXPERIMENT.data, TASK.labels, 2, make_generator(EXPERIMENT.seed, "partition"))
STEPS = -(-len(SHARES[0]) // 16)


def ask_of(kind: str, policy: str = "balanced", goal: RoundGoal | None = None, number: int = 1) -> RequestMessage:
    return RequestMessage(kind, round=number, start_s=5.0, policy=policy, goal=goal, model_bytes=MODEL_BYTES)


class ClientContract:
    """Inherit it with a fixture ``ask``."""

    def test_it_says_its_own_name(self, ask):
        assert ask(EXPERIMENT, RequestMessage("hello"), None)[0] == ReplyMessage("board-1")

    def test_a_front_and_a_round_are_of_its_whole_share(self, ask):
        offered, nothing = ask(EXPERIMENT, ask_of("front"), None)
        asked = ask_of("train", goal=RoundGoal("balanced", 50, deadline_s=60.0))
        answer, trained = ask(EXPERIMENT, asked, TASK.initial_arrays(3))

        assert (offered.error, answer.error, nothing) == (None, None, None)
        assert offered.front is not None
        assert offered.samples == len(SHARES[0])
        assert trained is not None
        assert answer.report.steps == answer.report.asked_steps == STEPS
        assert answer.report.measured.power_w > 0
        assert answer.front == answer.report.front
        assert answer.state.measurements == answer.report.parts
        assert answer.state.rested_at_s == pytest.approx(5.0 + answer.report.busy_s)

    @pytest.mark.parametrize("pruned", [False, True])
    def test_it_trains_the_samples_of_its_share_to_the_same_bits(self, ask, pruned, tmp_path):
        experiment = EXPERIMENT
        if pruned:
            work = {**EXPERIMENT.workload.model_dump(mode="json"), "network": str(write_variant(tmp_path / "variant"))}
            content = {**EXPERIMENT.model_dump(mode="json"), "workload": {**work, "cost": "variant"}}
            (tmp_path / "exp.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
            experiment = load_experiment(tmp_path / "exp.yaml")
        task = load_experiment_task(experiment)
        start = task.initial_arrays(3)
        asked = ask_of("train", goal=RoundGoal("balanced", 50, deadline_s=60.0), number=2)
        answer, trained = ask(experiment, asked, start)

        seed = derive_seed(EXPERIMENT.seed, "board-1", 2, "train")
        training = task.start(start, SHARES[0], seed, TrainOptions(STEPS, 16, 0.05, 0.9))
        training.advance(STEPS)
        assert trained is not None, answer.error
        for name, array in training.result().arrays.items():
            np.testing.assert_array_equal(trained.arrays[name], array)

    def test_it_evaluates_the_model_on_its_own_test_samples_and_measures_that(self, ask):
        evaluating = EXPERIMENT.model_copy(update={"evaluation": EvaluationSpec(by="clients")})
        arrays, own = TASK.initial_arrays(3), split_test(SHARES, TASK.labels, TASK.test_labels)[0]
        answer, trained = ask(evaluating, ask_of("evaluate"), arrays)

        assert answer.error is None
        assert answer.evaluation is not None
        assert trained is None
        told = answer.evaluation
        assert told.samples == len(own)
        assert (told.loss, told.accuracy) == pytest.approx(TASK.evaluate(arrays, own), rel=1e-5)
        assert min(told.measured.work_s, told.measured.power_w) > 0
        assert answer.state.rested_at_s == 5.0 + told.busy_s

    def test_without_test_samples_of_its_own_it_trains_and_only_its_evaluation_fails(self, ask):
        crowd = {"fleet": [{"device": "orin-nano", "name": "board", "count": 400}], "evaluation": {"by": "clients"}}
        crowded = Experiment.model_validate(EXPERIMENT.model_dump() | crowd)
        arrays = TASK.initial_arrays(3)

        assert ask(crowded, ask_of("train", "maxn", RoundGoal("maxn", 1)), arrays)[1] is not None
        answer, _ = ask(crowded, ask_of("evaluate"), arrays)
        assert answer.evaluation is None
        assert "evaluate: got no test samples; at least one: fewer clients" in str(answer.error)

    def test_a_policy_without_its_number_is_an_answer_that_names_the_field(self, ask):
        answer, trained = ask(EXPERIMENT, ask_of("train", "fastest-within-power"), TASK.initial_arrays(3))

        assert trained is None
        assert str(answer.error).startswith("policy.power_w: got nothing")

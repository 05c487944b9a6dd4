"""A GPU workstation is a board of a real fleet; what only a catalogue knows is not asked about it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="the checks load the task")

from experiments.spec.experiment_checks import boards_over_power_limit, build_labels, check_experiment
from fedge.devices import catalogue
from fedge.errors import BadInput
from fedge.experiment import Experiment
from fedge.knowledge.evidence_files import find_kinds


def build(*, backend: str = "fleet", fleet: Any = ({"device": "gpu-workstation"},), **more: Any) -> Experiment:
    values = {"backend": backend, "rounds": 1, "fleet": fleet, "workload": {"task": "digits-cnn"}, **more}
    return Experiment.model_validate(values)


@pytest.mark.parametrize("backend", ["local", "sim"])
def test_it_cannot_be_emulated(backend: str) -> None:
    with pytest.raises(BadInput, match=r"fleet\[0\].device: got 'gpu-workstation'.*backend: fleet.*cannot be emulated"):
        check_experiment(build(backend=backend))


@pytest.mark.parametrize("policy", [{"name": "preset:250W"}, {"name": "balanced", "deadline_s": 0.001}])
def test_a_real_one_is_accepted_with_limits_that_only_it_can_judge(policy: dict[str, Any]) -> None:
    check_experiment(build(policy=policy))


def test_beside_boards_of_the_catalogue_these_are_checked_as_ever() -> None:
    fleet = [{"device": "gpu-workstation"}, {"device": "orin-nano"}]
    check_experiment(build(fleet=fleet))
    with pytest.raises(BadInput, match="preset of orin-nano"):
        check_experiment(build(fleet=fleet, policy={"name": "preset:250W"}))


def test_what_needs_the_catalogue_is_refused() -> None:
    serving = {"cost": "resnet50-imagenet", "rate_hz": 1, "latency_s": 1}
    with pytest.raises(BadInput, match=r"fleet\[0\].serving"):
        check_experiment(build(fleet=[{"device": "gpu-workstation", "serving": serving}]))
    with pytest.raises(BadInput, match=r"evaluation\.by"):
        check_experiment(build(evaluation={"by": "both"}))


def test_it_is_a_kind_of_its_own_and_nothing_is_said_of_its_power_beforehand() -> None:
    fleet = [{"device": "gpu-workstation"}, {"device": "orin-nano"}]
    experiment = build(fleet=fleet, policy={"name": "fastest-within-power", "power_w": 1})
    kinds = find_kinds(experiment)
    assert kinds["gpu-workstation-1"] != kinds["orin-nano-1"]
    assert [board.name for board in boards_over_power_limit(experiment)] == ["orin-nano-1"]
    assert build_labels(experiment)["gpu-workstation"]["truth"]["label"] == "measured"
    assert not catalogue.is_catalogued("gpu-workstation")

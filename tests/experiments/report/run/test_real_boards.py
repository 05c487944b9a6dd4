"""The report of a fleet of real boards never calls their time and power emulated."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from experiments.report.run.run_emulation import describe_emulation
from experiments.spec import experiment_checks
from fedge.experiment import Experiment


@dataclass(frozen=True)
class Told:
    """What the sentence is made from."""

    experiment: Experiment
    labels: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("backend", "begins"), [("fleet", "<b>Measured by the boards"), ("sim", "<b>Emulated:</b> time, power")]
)
def test_the_page_says_what_is_measured(backend: str, begins: str) -> None:
    experiment = Experiment.model_validate({"fleet": [{"device": "nano"}], "backend": backend})

    assert describe_emulation(Told(experiment)).startswith(begins)


def test_a_recorded_folder_in_place_of_a_board_is_told() -> None:
    experiment = Experiment.model_validate({"fleet": [{"device": "nano"}], "backend": "fleet"})
    labels = experiment_checks.build_labels(experiment, {"nano-1"})

    assert labels["nano"]["truth"]["label"] == "estimated"
    assert "measure nothing" in describe_emulation(Told(experiment, labels))

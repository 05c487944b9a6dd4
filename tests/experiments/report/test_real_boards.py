"""The report of a fleet of real boards never calls their time and power emulated."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from experiments.report.page import _emulated
from fedge.experiment import Experiment


@dataclass(frozen=True)
class Told:
    """What the sentence is made from."""

    experiment: Experiment


@pytest.mark.parametrize(
    ("backend", "begins"), [("fleet", "<b>Measured by the boards"), ("sim", "<b>Emulated:</b> the boards")]
)
def test_the_page_says_what_is_measured(backend: str, begins: str) -> None:
    experiment = Experiment.model_validate({"fleet": [{"device": "nano"}], "backend": backend})

    assert _emulated(Told(experiment)).startswith(begins)

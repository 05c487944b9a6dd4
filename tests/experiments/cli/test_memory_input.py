"""Memory in the YAML: what cannot be is refused in one line that says what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="checks load the data")

from experiments.spec import experiment_checks
from experiments.spec.experiment_loader import load_experiment
from experiments.spec.resource_checks import check_memory
from fedge.errors import BadInput
from fedge.experiment import Experiment, MemorySpec

HEAD = "fleet:\n  - {{device: nano{entry}}}\nworkload:\n  cost: resnet18-imagenet\n  memory: {{{memory}}}\n{more}"


def written(tmp_path: Path, memory: str = "", entry: str = "", more: str = "") -> Experiment:
    path = tmp_path / "run.yaml"
    path.write_text(HEAD.format(memory=memory, entry=entry, more=more), encoding="utf-8")
    return load_experiment(path)


def refusal(tmp_path: Path, memory: str = "", entry: str = "", more: str = "") -> str:
    with pytest.raises(BadInput) as caught:
        check_memory(written(tmp_path, memory, entry, more))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_nothing_needs_to_be_said(tmp_path: Path) -> None:
    experiment = written(tmp_path)
    assert experiment.workload.memory == MemorySpec()
    experiment_checks.check_experiment(experiment)


def test_all_of_it_can_be_said(tmp_path: Path) -> None:
    memory = "guard: true, margin: 0.1, min_batch: 4, widths: [1.0, 0.5], lower: width-first"
    experiment = written(tmp_path, memory, ", memory_mb: 2500")
    experiment_checks.check_experiment(experiment)
    assert experiment.workload.memory.widths == (1.0, 0.5)
    assert experiment.fleet[0].memory_mb == 2500


@pytest.mark.parametrize(
    ("memory", "field"),
    [
        ("margin: -1", "margin"),
        ("min_batch: 0", "min_batch"),
        ("widths: [1.5]", "widths"),
        ("widths: []", "widths"),
        ("lower: sideways", "lower"),
        ("gard: true", "gard"),
    ],
)
def test_what_is_out_of_range_names_its_field(tmp_path: Path, memory: str, field: str) -> None:
    with pytest.raises(BadInput, match=f"workload.memory.*{field}"):
        written(tmp_path, memory)


def test_a_smallest_batch_above_the_batch_is_refused(tmp_path: Path) -> None:
    assert "min_batch: got 32; at most 16" in refusal(tmp_path, "min_batch: 32")


def test_a_board_in_which_nothing_fits_is_refused_with_what_would(tmp_path: Path) -> None:
    told = refusal(tmp_path, entry=", memory_mb: 200")
    assert told.startswith("fleet[0].memory_mb: got 200; at least ")
    assert "resnet18-imagenet is predicted to need on nano" in told


@pytest.mark.parametrize(("memory", "safety"), [("", "allows"), ("margin: 0.25", "allows, with 25% to spare")])
def test_a_board_whose_smallest_step_is_predicted_to_fit_is_not_refused(
    tmp_path: Path, memory: str, safety: str
) -> None:
    told = refusal(tmp_path, memory, entry=", memory_mb: 200")
    enough = int(told.partition("at least ")[2].partition(":")[0])

    assert told.endswith(safety)
    assert f"got {enough - 1}; at least {enough}:" in refusal(tmp_path, memory, entry=f", memory_mb: {enough - 1}")
    check_memory(written(tmp_path, memory, entry=f", memory_mb: {enough}"))


def test_a_board_that_is_to_fail_may(tmp_path: Path) -> None:
    check_memory(written(tmp_path, "guard: false", ", memory_mb: 200"))


@pytest.mark.parametrize("strategy", ["Krum", "FedMedian", "FedTrimmedAvg", "QFedAvg"])
def test_widths_with_a_strategy_that_does_not_average_are_refused(tmp_path: Path, strategy: str) -> None:
    told = refusal(tmp_path, "widths: [1.0, 0.5]", more=f"strategy: {strategy}\n")
    assert f"because {strategy} compares or clips whole updates" in told
    check_memory(written(tmp_path, more=f"strategy: {strategy}\n"))


def test_widths_of_a_network_that_cannot_be_narrow_are_refused(tmp_path: Path) -> None:
    task = tmp_path / "own.py"
    task.write_text(OWN, encoding="utf-8")
    path = tmp_path / "run.yaml"
    path.write_text("fleet: [nano]\nworkload: {task: own.py, memory: {widths: [0.5]}}\n", encoding="utf-8")
    with pytest.raises(BadInput, match=r"\[1\], because the network of .*own.py cannot be narrowed .*LayerNorm"):
        check_memory(load_experiment(path))


OWN = """
import numpy as np
from torch import nn
from fedge.worker.sources import Data


def model(shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.LayerNorm(8), nn.Linear(8, 2))


def data(source):
    x, y = np.zeros((8, 1, 8, 8), np.uint8), np.arange(8) % 2
    return Data(x, y, x, y, (0.0,), (1.0,), 2)
"""

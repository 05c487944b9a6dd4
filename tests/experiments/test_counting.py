"""An experiment's own network is counted once, when the file is read, and stands in the run's YAML."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from experiments.schema import load_experiment
from fedge.errors import BadInput
from fedge.experiment import boards
from fedge.fleetsim.boards import kind_of
from fedge.rounds.networks import network_for

SMALL = {"fleet": ["nano"], "rounds": 1, "backend": "local", "workload": {"network": "resnet18", "batch_size": 4}}


def _written(folder: Path, **workload: object) -> Path:
    path = folder / "exp.yaml"
    content = SMALL | {"workload": {**SMALL["workload"], **workload}}  # type: ignore[dict-item]
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def test_a_bare_name_becomes_a_counted_network_that_names_the_cost(tmp_path: Path) -> None:
    experiment = load_experiment(_written(tmp_path))
    network = experiment.workload.network
    assert network is not None
    assert (network.model, network.input, experiment.workload.cost) == ("resnet18", (3, 224, 224), "resnet18")
    found = network_for(experiment, "resnet18")
    assert found is not None
    assert len(found.convolutions) == 20


def test_a_board_s_truth_and_first_prior_come_from_the_layers_and_say_so(tmp_path: Path) -> None:
    experiment = load_experiment(_written(tmp_path))
    kind = kind_of(boards(experiment)[0], experiment.workload)
    assert kind.truth_label == "estimated"
    assert "layers of resnet18 on nano" in kind.truth_source
    assert "layers of resnet18 on nano" in kind.priors[0].source


def test_what_was_counted_is_not_counted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_experiment(_written(tmp_path))
    saved = tmp_path / "run.yaml"
    saved.write_text(yaml.safe_dump(first.model_dump(mode="json"), sort_keys=False), encoding="utf-8")
    monkeypatch.setattr("experiments.counting.network_of", lambda *_: pytest.fail("counted again"))
    assert load_experiment(saved) == first


def test_another_batch_size_of_a_measured_workload_is_an_estimate(tmp_path: Path) -> None:
    path = tmp_path / "exp.yaml"
    for batch_size, label in ((16, "calibrated"), (4, "estimated")):
        content = SMALL | {"fleet": ["agx-orin"], "workload": {"batch_size": batch_size}}
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        experiment = load_experiment(path)
        assert kind_of(boards(experiment)[0], experiment.workload).truth_label == label


def test_a_file_of_layers_is_found_beside_the_experiment(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"workload\.network\.model"):
        load_experiment(_written(tmp_path, network="nothing.json"))

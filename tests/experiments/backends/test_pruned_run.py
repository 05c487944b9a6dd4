"""A run whose network is a pruned variant of the task's own trains it pruned; another network's is only priced."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

pytest.importorskip("torch", reason="boards really train")

from contracts.variants import FIRST, SHAPES, write_variant
from safetensors.numpy import load_file

from experiments.backends.local_backend import run_local
from experiments.report.run.run_tables import describe_links
from experiments.spec import experiment_checks
from experiments.spec.experiment_loader import load_experiment
from fedge.costs.layered_work import find_priced_network
from fedge.errors import BadInput
from fedge.experiment import Experiment
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import MEMORY, ClientRow, EventRow
from fedge.workloads import load_experiment_task, load_task

BASE = {"rounds": 2, "backend": "local", "jobs": 1, "seed": 4, "knowledge": "none"}


def load(folder: Path, fleet: list[object], *overrides: str, **workload: object) -> Experiment:
    path = folder / "exp.yaml"
    path.write_text(yaml.safe_dump(BASE | {"fleet": fleet, "workload": workload}), encoding="utf-8")
    return load_experiment(path, overrides)


def run(folder: Path, experiment: Experiment) -> list[ClientRow]:
    folder.mkdir()
    experiment_checks.check_experiment(experiment)
    run_local(experiment, folder, lambda: None)
    return read_rows(folder, ClientRow)


def test_a_variant_of_the_tasks_network_is_priced_trained_and_moved(tmp_path):
    record = write_variant(tmp_path / "variant")
    experiment = load(tmp_path, ["nano"], network=str(record))

    rows = run(tmp_path / "run", experiment)

    arrays = load_file(tmp_path / "run/model.safetensors")
    assert {name: arrays[name].shape for name in SHAPES} == SHAPES
    priced = find_priced_network(experiment.fleet[0], experiment.workload)
    assert sum(array.size for array in arrays.values()) == priced.parameters
    task = load_experiment_task(experiment)
    assert task.evaluate(arrays)[1] > task.evaluate(task.initial_arrays(BASE["seed"]))[1] + 0.2
    assert {row.status for row in rows} == {"done"}
    told = describe_links(experiment_checks.build_link_labels(experiment))
    assert told.endswith(f"; the trained model, pruned as it is priced, has {4 * priced.parameters / 1e3:.3g} kB")


def test_it_starts_from_the_kept_channels_of_the_whole_network(tmp_path):
    experiment = load(tmp_path, ["nano"], network=str(write_variant(tmp_path / "variant")))
    whole, pruned = (
        task.initial_arrays(3)["0.weight"] for task in (load_task("digits-cnn"), load_experiment_task(experiment))
    )
    assert (pruned == whole[list(FIRST)]).all()


def test_a_saved_run_keeps_the_plan_and_another_task_drops_it(tmp_path):
    first = load(tmp_path, ["nano"], network=str(write_variant(tmp_path / "variant")))
    saved = tmp_path / "run.yaml"
    saved.write_text(yaml.safe_dump(first.model_dump(mode="json")), encoding="utf-8")

    assert load_experiment(saved) == first
    other = load_experiment(saved, ["workload.task=mnist-cnn"]).workload.network
    assert (other.channels, other.layers) == (None, first.workload.network.layers)  # type: ignore[union-attr]


def test_a_variant_of_another_network_is_priced_only(tmp_path):
    experiment = load(tmp_path, ["nano"], network=str(write_variant(tmp_path / "variant", "resnet18")))
    assert experiment.workload.network.channels is None
    told = describe_links(experiment_checks.build_link_labels(experiment))
    assert told.endswith("; the trained model has 24.7 kB")


OWN = """
import numpy as np
from torch import nn
from fedge.worker.sources import Data
from fedge.worker.tasks import make_builtin_task

def model(shape):
    return {network}

def data(source):
    x, y = np.zeros((20, 1, 8, 8), np.uint8), np.arange(20) % 10
    return Data(x, y, x, y, (128.0,), (64.0,), 10)
"""


@pytest.mark.parametrize(
    ("network", "trained"),
    [
        ("make_builtin_task('digits-cnn').build(shape)", "the trained model, pruned as it is priced, has "),
        ("nn.Sequential(nn.Flatten(), nn.Linear(64, shape.classes))", "the trained model has "),
    ],
)
def test_a_function_of_the_task_files_name_counts_as_its_network_only_if_the_plan_cuts_that(network, trained, tmp_path):
    task = tmp_path / "mine.py"
    task.write_text(OWN.format(network=network), encoding="utf-8")
    experiment = load(tmp_path, ["nano"], task=str(task), network=str(write_variant(tmp_path / "variant", "mine:net")))
    assert trained in describe_links(experiment_checks.build_link_labels(experiment))


def test_a_plan_of_another_network_under_the_tasks_name_is_refused_by_its_layer(tmp_path):
    record = write_variant(tmp_path / "variant", "synthetic-cnn")
    experiment = load(tmp_path, ["nano"], task="synthetic-cnn", network=str(record))
    with pytest.raises(
        BadInput, match=r"layer '0' of \(3, 16\) inputs and outputs; one of \(1, 16\), which the plan cuts"
    ):
        experiment_checks.check_experiment(experiment)


def test_boards_with_a_width_train_a_narrow_network_and_the_others_the_whole(tmp_path):
    fleet = [{"device": "agx-orin", "name": "wide"}, {"device": "nano", "name": "thin", "width": 0.5}]
    rows = run(tmp_path / "run", load(tmp_path, fleet))

    assert {(row.board, row.width, row.lowered) for row in rows} == {("wide-1", 1.0, None), ("thin-1", 0.5, None)}
    assert not [event for event in read_rows(tmp_path / "run", EventRow) if event.kind == MEMORY]
    full = run(
        tmp_path / "full", load(tmp_path, [{"device": "agx-orin", "name": "wide"}, {"device": "nano", "name": "thin"}])
    )
    thin, wide = (row for row in rows if row.round == 1), (row for row in full if row.round == 1)
    sent = {row.board: row.up_s for row in thin}, {row.board: row.up_s for row in wide}
    assert sent[0]["thin-1"] < 0.5 * sent[1]["thin-1"]
    assert load_file(tmp_path / "run/model.safetensors")["0.weight"].shape == (16, 1, 3, 3)


def test_a_width_needs_the_layers_of_what_is_priced(tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.spec.resource_checks.find_priced_network", lambda *_: None)
    with pytest.raises(BadInput, match=r"fleet\[0\]\.width: got 0\.5; .*layers of resnet18-imagenet are not known"):
        experiment_checks.check_experiment(load(tmp_path, [{"device": "nano", "width": 0.5}]))

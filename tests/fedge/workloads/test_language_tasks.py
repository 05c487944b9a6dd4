"""Federated fine-tuning of a tiny language model: adapters alone travel, are priced and trained, in unequal ranks."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="tasks train with torch")
if not all(importlib.util.find_spec(name) for name in ("transformers", "peft")):
    pytest.skip("needs the extra llm", allow_module_level=True)

from contracts.free_tasks import LANGUAGE_MODEL, write_texts

from experiments.backends.local_backend import run_local
from experiments.report.run.comparison_page import client_table
from experiments.report.run.loaded_runs import load_run
from experiments.spec.experiment_checks import check_experiment
from experiments.spec.experiment_loader import load_experiment
from fedge.costs.layered_work import count_priced_bytes, find_priced_network
from fedge.costs.layers.network_cost import sum_layers
from fedge.costs.layers.network_record import format_layers, parse_layers
from fedge.costs.memory.step_need import predict_step_need
from fedge.devices.catalogue import load_catalogue
from fedge.errors import BadInput
from fedge.experiment import Experiment
from fedge.telemetry import run_folder
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, RoundRow
from fedge.worker.subnetwork_arrays import array_shapes
from fedge.workloads import load_experiment_task

EXPERIMENT = """
name: NAME
rounds: 2
backend: local
fleet: [{device: orin-nano}, {device: agx-orin-64gb}, {device: agx-orin-64gb, name: small, width: 0.25}]
workload: {task: NAME.py, batch_size: 4, local_epochs: 1, learning_rate: 0.01}
data: {partition: natural, dir: texts}
"""
FULL = LANGUAGE_MODEL.replace("rank=8, alpha=16", "rank=0")


def write_task(folder: Path, name: str, text: str) -> Experiment:
    write_texts(folder / "texts")
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    lines = EXPERIMENT.replace("NAME", name)
    if text == FULL:
        lines = lines.replace(", width: 0.25", "")
    (folder / f"{name}.yaml").write_text(lines, encoding="utf-8")
    return load_experiment(folder / f"{name}.yaml")


def run(experiment: Experiment, folder: Path) -> None:
    folder.mkdir()
    run_local(experiment, folder, lambda: None)
    (folder / run_folder.RUN_YAML).write_text(experiment.model_dump_json(), encoding="utf-8")


def test_adapters_of_unequal_ranks_learn_for_fewer_bytes_and_joules_than_all_weights(tmp_path):
    for name, text in (("lora", LANGUAGE_MODEL), ("full", FULL)):
        experiment = write_task(tmp_path, name, text)
        check_experiment(experiment)
        run(experiment, tmp_path / f"run-{name}")

    lora, full = (read_rows(tmp_path / f"run-{name}", ClientRow) for name in ("lora", "full"))
    rounds = read_rows(tmp_path / "run-lora", RoundRow)
    assert rounds[-1].loss < rounds[0].loss
    assert {row.board: row.width for row in lora} == {"orin-nano-1": 1.0, "agx-orin-64gb-1": 1.0, "small-1": 0.25}
    assert {row.lowered for row in lora} == {None}
    whole = {row.moved_mb for row in lora if row.width == 1.0}
    assert len(whole) == 1
    assert {row.moved_mb for row in full} == {2e-6 * count_priced_bytes(experiment.fleet[0], experiment.workload)}
    assert [row.moved_mb for row in lora if row.width < 1.0] == [pytest.approx(0.25 * whole.pop())] * 2
    table = client_table([load_run(tmp_path / f"run-{name}") for name in ("lora", "full")])
    moved, predicted = (table.heads.index(name) for name in ("moved", "predicted memory"))
    (small, large) = table.rows
    assert small[moved].value < large[moved].value
    assert small[predicted].value <= large[predicted].value * (1.0 + 1e-6)


def test_what_is_priced_is_what_is_exchanged_and_frozen_weights_cost_no_gradient(tmp_path):
    lora, full = write_task(tmp_path, "lora", LANGUAGE_MODEL), write_task(tmp_path, "full", FULL)
    networks = [find_priced_network(one.fleet[0], one.workload) for one in (lora, full)]
    assert networks[0] is not None
    assert networks[1] is not None
    exchanged = sum(array.size for array in load_experiment_task(lora).initial_arrays(1).values())
    adapters, whole = networks

    assert adapters.trained_parameters == exchanged
    assert adapters.parameters == whole.parameters + exchanged
    assert whole.trained_parameters == whole.parameters
    base = [layer for layer in adapters.layers if layer.name.endswith("base_layer")]
    assert {layer.training_passes for layer in base[3:]} == {2.0}
    assert {layer.training_passes for layer in base[:3]} == {1.0}  # nothing before them is trained
    assert parse_layers(format_layers(adapters)) == adapters.layers
    work, forward = adapters.batch_work(4, "train"), adapters.batch_work(4, "infer")
    assert 2.0 < work.flop / forward.flop < 3.0
    step, pass_ = sum_layers(adapters, training=True), sum_layers(adapters)
    assert 2 / 3 < step.pointwise_flop / pass_.pointwise_flop < 1
    assert step.weight_bytes < pass_.weight_bytes
    assert sum_layers(whole, training=True) == sum_layers(whole)


def test_frozen_weights_need_less_memory_than_trained_ones():
    from fedge.costs.layers.network_cost import LayerCost, NetworkCost

    big = LayerCost("all", "linear", 1e9, 4e6, 4e6, 4e9, parameters=10**9, activations=1000, output=(1, 1000))
    frozen = NetworkCost("net", (10,), (LayerCost(**{**_fields(big), "frozen": 10**9, "training_passes": 2.0}),), "")
    board = load_catalogue()["agx-orin-64gb"]

    need, less = (predict_step_need(net, board, 1) for net in (NetworkCost("net", (10,), (big,), ""), frozen))

    assert less.memory_mb < 0.6 * need.memory_mb
    assert less.memory_mb > 4000.0


def _fields(layer: object) -> dict:
    import dataclasses

    return {field.name: getattr(layer, field.name) for field in dataclasses.fields(layer)}


def test_a_lower_rank_of_the_trained_task_has_the_leading_ranks(tmp_path):
    task = load_experiment_task(write_task(tmp_path, "lora", LANGUAGE_MODEL))

    full, half = array_shapes(task.initial_arrays(1)), task.narrow_shapes(0.5)

    assert {np.prod(half[name]) / np.prod(full[name]) for name in full} == {0.5}


def test_a_width_needs_a_network_that_can_have_it(tmp_path):
    experiment = write_task(tmp_path, "full", FULL)
    narrow = experiment.fleet[2].model_copy(update={"width": 0.5})

    with pytest.raises(BadInput, match=r"fleet\[0\].width: got 0.5; 1, because the network of .* cannot"):
        check_experiment(experiment.model_copy(update={"fleet": (narrow,)}))

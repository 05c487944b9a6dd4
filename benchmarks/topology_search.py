"""Pruned networks of a given size, compared with measured ones; the networks that can be pruned.

    FEDGE_PROFILES=folder/of/tables python benchmarks/topology_search.py [tables|zoo]...

tables  four networks that others pruned and measured on a TX2 (memory and time of a training step, by share of the
        parameters and batch size), compared with fedge's variants with the same share of the parameters: work,
        activations and predicted needs of both sides' convolutions, and fedge's predictions against the measurements
zoo     the torchvision classifiers that can be pruned, and the smallest share of the parameters; takes 20 minutes

Predictions for a measured network were calibrated on it too; the figures of ``report_tables`` say how much the way of
pruning matters, not how well an unknown network is predicted. Set OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import csv
import json
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from figures import build_table, compute_mape, profiles_folder, run_parts
from rich.console import Console

from fedge.analysis.topology.channel_plan import NetworkVariant
from fedge.analysis.topology.pruning import MIN_CHANNEL_SHARE, PrunableNetwork, build_prunable
from fedge.costs.layers.network_cost import Convolution, LayerCost, NetworkCost
from fedge.costs.layers.network_source import build_module
from fedge.costs.memory.step_need import predict_step_need
from fedge.devices import catalogue
from fedge.errors import BadInput
from fedge.types import DeviceSpec

CONSOLE = Console(width=170)
NETWORKS = {
    "resnet18": "resnet18",
    "resnet50": "resnet50",
    "mobilenetv2": "mobilenet_v2",
    "squeezenet": "squeezenet1_0",
}
"""Names in the tables, and torchvision's names."""
COLUMNS = ("in_channels", "out_channels", "kernel", "padding", "stride", "groups", "input_size")


@dataclass(frozen=True, slots=True)
class MeasuredNetwork:
    """A network's table: convolutions by percent pruned, and (percent, batch size) -> seconds, megabytes."""

    levels: dict[int, tuple[Convolution, ...]]
    steps: dict[tuple[int, int], tuple[float, float]]


def prepare_network(model: str) -> PrunableNetwork:
    module, shape = build_module(model)
    return build_prunable(module, model, shape)


# Tables ---------------------------------------------------------------------------------------------------------------


def report_tables() -> None:
    folder, device = profiles_folder() / "perf4sight-tx2", catalogue.find("tx2")
    title = "Ours over theirs at the same share of the parameters (medians); ours beside what was measured, %"
    headings = ("network", "levels", "work", "activations", "MB", "s", "n", "MB: bias", "MAPE", "s: bias", "MAPE")
    table = build_table(title, *headings)
    for name, model in NETWORKS.items():
        table.add_row(name, *compare_network(read_measured_network(folder, name), prepare_network(model), device))
    CONSOLE.print(table)


def compare_network(table: MeasuredNetwork, network: PrunableNetwork, device: DeviceSpec) -> list[str]:
    whole = count_weights(table.levels[0])
    work, activations, like_mb, like_s, memory_ratios, time_ratios = ([] for _ in range(6))
    levels = [level for level in table.levels if level]
    for level in levels:
        theirs = table.levels[level]
        ours = find_nearest_variant(network, count_weights(theirs) / whole)
        work.append(count_multiplications(ours.cost.convolutions) / count_multiplications(theirs))
        activations.append(count_outputs(ours.cost.convolutions) / count_outputs(theirs))
        for (one, batch_size), (step_s, memory_mb) in table.steps.items():
            if one == level:
                a, b = (
                    predict_step_need(build_convolution_network(one), device, batch_size)
                    for one in (ours.cost.convolutions, theirs)
                )
                predicted = predict_step_need(ours.cost, device, batch_size)
                like_mb.append(a.memory_mb / b.memory_mb)
                like_s.append(a.step_s / b.step_s)
                memory_ratios.append(predicted.memory_mb / memory_mb)
                time_ratios.append(predicted.step_s / step_s)
    figures = [f"{np.median(ratios):.3f}" for ratios in (work, activations, like_mb, like_s)]
    errors = [
        cell
        for ratios in (np.array(memory_ratios), np.array(time_ratios))
        for cell in (f"{100 * (np.median(ratios) - 1):+.1f}", f"{compute_mape(ratios, np.ones(len(ratios))):.1f}")
    ]
    return [str(len(levels)), *figures, str(len(memory_ratios)), *errors]


def build_convolution_network(convolutions: tuple[Convolution, ...]) -> NetworkCost:
    """Return a network of these convolutions only."""
    layers = []
    for i, one in enumerate(convolutions):
        inputs, outputs = one.in_channels * one.input_size**2, one.out_channels * one.output_size**2
        kernel = count_weights((one,))
        layers.append(
            LayerCost(
                name=f"conv{i}",
                kind="conv",
                flop=2 * count_multiplications((one,)),
                read_bytes=4 * inputs,
                written_bytes=4 * outputs,
                weight_bytes=4 * kernel,
                parameters=int(kernel),
                activations=int(outputs),
                convolution=one,
            )
        )
    return NetworkCost("convolutions", (3, 224, 224), tuple(layers), "geometry")


def read_measured_network(folder: Path, name: str) -> MeasuredNetwork:
    raw = json.loads((folder / f"{name}.layers.json").read_text(encoding="utf-8"))["levels"]
    levels = {
        int(level): tuple(Convolution(**dict(zip(COLUMNS, row, strict=True))) for row in rows)
        for level, rows in raw.items()
    }
    steps = {}
    with (folder / f"{name}.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["step_ms"] and row["memory_mb"]:
                key = int(row["pruned_pct"]), int(row["batch_size"])
                steps[key] = float(row["step_ms"]) / 1e3, float(row["memory_mb"])
    return MeasuredNetwork(levels, steps)


def find_nearest_variant(network: PrunableNetwork, share: float) -> NetworkVariant:
    """Return the variant whose convolutions keep this share of their parameters."""
    low, high = MIN_CHANNEL_SHARE, 1.0
    whole = count_weights(network.cost.convolutions)
    for _ in range(9):
        middle = (low + high) / 2
        small = count_weights(network.build_variant(middle).cost.convolutions) / whole
        low, high = (middle, high) if small <= share else (low, middle)
    return network.build_variant(low)


def count_weights(convolutions: tuple[Convolution, ...]) -> float:
    return sum(c.out_channels * c.in_channels / c.groups * c.kernel**2 for c in convolutions)


def count_multiplications(convolutions: tuple[Convolution, ...]) -> float:
    return sum(c.out_channels * c.in_channels / c.groups * c.kernel**2 * c.output_size**2 for c in convolutions)


def count_outputs(convolutions: tuple[Convolution, ...]) -> float:
    return sum(c.out_channels * c.output_size**2 for c in convolutions)


# Zoo ------------------------------------------------------------------------------------------------------------------


def report_zoo() -> None:
    from fedge.worker.torchvision_shim import models

    headings = ("network", "groups", "smallest share of the parameters, %", "not cut")
    table = build_table("torchvision's classifiers", *headings, left=headings)
    for model in models.list_models(module=models):
        try:
            network = prepare_network(model)
        except BadInput as error:
            table.add_row(model, "none", "", error.got)
            continue
        reasons = Counter(one.reason for one in network.coupling.kept)
        least = 100 * network.build_variant(MIN_CHANNEL_SHARE).parameter_share
        not_cut = "; ".join(f"{count} x {reason}" for reason, count in reasons.items())
        table.add_row(model, str(len(network.coupling.groups)), f"{least:.1f}", not_cut)
    CONSOLE.print(table)


PARTS = {"tables": report_tables, "zoo": report_zoo}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    run_parts(__doc__, PARTS, default=("tables",))

"""Smaller networks of a given size: beside pruned networks that were measured, beside brute force, and their time.

    FEDGE_PROFILES=folder/of/tables python benchmarks/topology_search.py [tables|search|zoo]...

tables  four networks that others pruned and measured on a TX2 (memory and time of a training step, by share of the
        parameters and batch size), beside variants of ours with the same share of the parameters: work, activations and
        predicted needs of our convolutions beside those of theirs, and our predictions beside what was measured
search  limits on memory over batch sizes: how many widths the search looks at, how often it finds what trying all 181
        widths finds, whether needs grow with width, and seconds
zoo     which of torchvision's classifiers can be pruned, and the smallest share of the parameters; takes 20 minutes

Predictions for a network that was measured were calibrated on it too; the figures of ``tables`` say how much the way of
pruning matters, not how well an unknown network is predicted. Set OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from fedge.devices import catalogue
from fedge.errors import BadInput
from fedge.layers.network import Convolution, LayerCost, NetworkCost
from fedge.layers.source import module_of
from fedge.memory.need import need
from fedge.topology.pruning import LEAST_CHANNELS, Prunable, prunable
from fedge.topology.search import Limits, Search, widths
from fedge.topology.variant import Variant
from fedge.types import DeviceSpec

CONSOLE = Console(width=170)
NETWORKS = {
    "resnet18": "resnet18",
    "resnet50": "resnet50",
    "mobilenetv2": "mobilenet_v2",
    "squeezenet": "squeezenet1_0",
}
"""The tables' names, and torchvision's."""
COLUMNS = ("in_channels", "out_channels", "kernel", "padding", "stride", "groups", "input_size")


@dataclass(frozen=True, slots=True)
class Measured:
    """A network's table: convolutions by percent pruned, and (percent, batch size) -> seconds, megabytes."""

    levels: dict[int, tuple[Convolution, ...]]
    steps: dict[tuple[int, int], tuple[float, float]]


def main() -> None:
    """Print what was asked for; everything but the zoo by default."""
    parts = {"tables": tables, "search": search, "zoo": zoo}
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(parts)}; tables and search by default")
    asked = parser.parse_args()
    if unknown := [name for name in asked.parts if name not in parts]:
        parser.error(f"{unknown[0]!r} is none of {', '.join(parts)}")
    warnings.simplefilter("ignore")
    for name in asked.parts or ("tables", "search"):
        parts[name]()


def made(model: str) -> Prunable:
    module, shape = module_of(model)
    return prunable(module, model, shape)


# Tables ---------------------------------------------------------------------------------------------------------------


def tables() -> None:
    if not os.environ.get("FEDGE_PROFILES"):
        sys.exit("FEDGE_PROFILES: got nothing; the folder of measured tables")
    folder, device = Path(os.environ["FEDGE_PROFILES"]) / "perf4sight-tx2", catalogue.find("tx2")
    table = Table(
        title="Ours over theirs at the same share of the parameters (medians); ours beside what was measured, %"
    )
    heads = ("network", "levels", "work", "activations", "MB", "s", "n", "MB: bias", "MAPE", "s: bias", "MAPE")
    for head in heads:
        table.add_column(head, justify="left" if head == "network" else "right")
    for name, model in NETWORKS.items():
        table.add_row(name, *compared(measured(folder, name), made(model), device))
    CONSOLE.print(table)


def compared(table: Measured, network: Prunable, device: DeviceSpec) -> list[str]:
    whole = weights(table.levels[0])
    work, activations, like_mb, like_s, seen_mb, seen_s = ([] for _ in range(6))
    levels = [level for level in table.levels if level]
    for level in levels:
        theirs = table.levels[level]
        ours = nearest(network, weights(theirs) / whole)
        work.append(arithmetic(ours.cost.convolutions) / arithmetic(theirs))
        activations.append(written(ours.cost.convolutions) / written(theirs))
        for (one, batch_size), (step_s, memory_mb) in table.steps.items():
            if one == level:
                a, b = (need(only(one), device, batch_size) for one in (ours.cost.convolutions, theirs))
                predicted = need(ours.cost, device, batch_size)
                like_mb.append(a.memory_mb / b.memory_mb)
                like_s.append(a.step_s / b.step_s)
                seen_mb.append(predicted.memory_mb / memory_mb)
                seen_s.append(predicted.step_s / step_s)
    figures = [f"{np.median(ratios):.3f}" for ratios in (work, activations, like_mb, like_s)]
    errors = [f(ratios) for ratios in (seen_mb, seen_s) for f in (bias, mape)]
    return [str(len(levels)), *figures, str(len(seen_mb)), *errors]


def only(convolutions: tuple[Convolution, ...]) -> NetworkCost:
    """A network of these convolutions and nothing else."""
    layers = []
    for i, one in enumerate(convolutions):
        inputs, outputs = one.in_channels * one.input_size**2, one.out_channels * one.output_size**2
        kernel = weights((one,))
        layers.append(
            LayerCost(
                name=f"conv{i}",
                kind="conv",
                flop=2 * arithmetic((one,)),
                read_bytes=4 * inputs,
                written_bytes=4 * outputs,
                weight_bytes=4 * kernel,
                parameters=int(kernel),
                activations=int(outputs),
                convolution=one,
            )
        )
    return NetworkCost("convolutions", (3, 224, 224), tuple(layers), "geometry")


def bias(ratios: list[float]) -> str:
    return f"{100 * (np.median(ratios) - 1):+.1f}"


def mape(ratios: list[float]) -> str:
    return f"{100 * np.mean(np.abs(np.array(ratios) - 1)):.1f}"


def measured(folder: Path, name: str) -> Measured:
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
    return Measured(levels, steps)


def nearest(network: Prunable, share: float) -> Variant:
    """The variant whose convolutions keep this share of their parameters."""
    low, high = LEAST_CHANNELS, 1.0
    whole = weights(network.cost.convolutions)
    for _ in range(9):
        middle = (low + high) / 2
        small = weights(network.by_channels(middle).cost.convolutions) / whole
        low, high = (middle, high) if small <= share else (low, middle)
    return network.by_channels(low)


def weights(convolutions: tuple[Convolution, ...]) -> float:
    return sum(c.out_channels * c.in_channels / c.groups * c.kernel**2 for c in convolutions)


def arithmetic(convolutions: tuple[Convolution, ...]) -> float:
    return sum(c.out_channels * c.in_channels / c.groups * c.kernel**2 * c.output_size**2 for c in convolutions)


def written(convolutions: tuple[Convolution, ...]) -> float:
    return sum(c.out_channels * c.output_size**2 for c in convolutions)


# Search ---------------------------------------------------------------------------------------------------------------


def search() -> None:
    device, shares = catalogue.find("tx2"), widths(LEAST_CHANNELS)
    table = Table(title=f"Limits of 2,000 to 5,500 MB at batch 8, 32, 128: the search beside all {len(shares)} widths")
    heads = ("network", "not rising", "cases", "same as brute force", "most widths looked at", "prepare s", "search s")
    for head in heads:
        table.add_column(head, justify="left" if head == "network" else "right")
    for model in ("resnet18", "resnet50", "mobilenet_v2", "squeezenet1_0", "vit_b_32"):
        start_s = time.perf_counter()
        network = made(model)
        prepare_s = time.perf_counter() - start_s
        table.add_row(
            model, *searched(network, device, shares), f"{prepare_s:.1f}", f"{one_search_s(model, device):.1f}"
        )
    CONSOLE.print(table)


def one_search_s(model: str, device: DeviceSpec) -> float:
    """Seconds of a search from nothing, the network being prepared."""
    network = made(model)
    start_s = time.perf_counter()
    Search(widths(LEAST_CHANNELS), network.by_channels, lambda v, b: need(v.cost, device, b), Limits(3500.0)).largest(
        32
    )
    return time.perf_counter() - start_s


def searched(network: Prunable, device: DeviceSpec, shares: tuple[float, ...]) -> list[str]:
    costs: dict[float, NetworkCost] = {share: network.by_channels(share).cost for share in shares}
    needs = {b: [need(costs[share], device, b) for share in shares] for b in (8, 32, 128)}
    rises = [np.diff([one.memory_mb for one in row]) for row in needs.values()]
    falls = sum(int((steps < 0).sum()) for steps in rises)
    same, cases, most = 0, 0, 0
    for limit_mb in range(2000, 5501, 500):
        for batch_size, row in needs.items():
            looked: set[float] = set()

            def variant_at(share: float, looked: set[float] = looked) -> Variant:
                looked.add(share)
                return network.by_channels(share)

            found = Search(shares, variant_at, lambda v, b: need(v.cost, device, b), Limits(limit_mb)).largest(
                batch_size
            )
            best = max(
                (share for share, one in zip(shares, row, strict=True) if one.memory_mb <= limit_mb), default=None
            )
            same += (found.variant.channel_share if found else None) == best
            cases, most = cases + 1, max(most, len(looked))
    return [f"{falls} of {3 * (len(shares) - 1)}", str(cases), str(same), str(most)]


# Zoo ------------------------------------------------------------------------------------------------------------------


def zoo() -> None:
    from fedge.worker.vision import models

    table = Table(title="torchvision's classifiers")
    for head in ("network", "groups", "smallest share of the parameters, %", "not cut", "seconds"):
        table.add_column(head)
    for model in models.list_models(module=models):
        start_s = time.perf_counter()
        try:
            network = made(model)
        except BadInput as error:
            table.add_row(model, "none", "", error.got, "")
            continue
        reasons = Counter(one.reason for one in network.coupling.kept)
        least = 100 * network.by_channels(LEAST_CHANNELS).parameter_share
        told = "; ".join(f"{count} x {reason}" for reason, count in reasons.items())
        seconds = f"{time.perf_counter() - start_s:.1f}"
        table.add_row(model, str(len(network.coupling.groups)), f"{least:.1f}", told, seconds)
    CONSOLE.print(table)


if __name__ == "__main__":
    main()

"""A pruned variant of the digits task's network, as ``fedge topology`` writes it, without torch-pruning."""

from dataclasses import replace
from pathlib import Path

from fedge.analysis.topology.channel_plan import NetworkVariant
from fedge.analysis.topology.variant_files import RECORD, save_variant
from fedge.costs.layers.network_source import build_module
from fedge.costs.layers.torch_trace import trace_module
from fedge.worker.channel_cuts import LayerCut, cut_module

FIRST, SECOND = ((0, 1, 4, 5, 8, 9, 12, 13), tuple(range(0, 32, 2)))
"""Channels that the two convolutions keep, as many of each group of their norms."""
FLAT = tuple(4 * channel + pixel for channel in SECOND for pixel in range(4))
PLAN = {
    "0": LayerCut(None, FIRST, (1, 16)),
    "2": LayerCut(None, FIRST, (16, 16)),
    "4": LayerCut(FIRST, SECOND, (16, 32)),
    "6": LayerCut(None, SECOND, (32, 32)),
    "9": LayerCut(FLAT, None, (128, 10)),
}
SHAPES = {"0.weight": (8, 1, 3, 3), "4.weight": (16, 8, 3, 3), "9.weight": (10, 64)}


def write_variant(folder: Path, model: str = "digits-cnn") -> Path:
    """Write the variant's folder under the name of ``model`` and return its record."""
    whole, shape = build_module("digits-cnn")
    module = cut_module(whole, PLAN)
    cost = replace(trace_module(module, shape, "digits-cnn"), name=model)
    save_variant(NetworkVariant(model, shape, "l1", 1, 0.5, 0.4, 0.3, PLAN, cost), module, folder)
    return folder / RECORD

"""The contents of networks, counted layer by layer, beside published constants and torch's own counter.

    python benchmarks/layer_costs.py [constants|zoo|onnx|known]...

constants  totals beside the constants printed with Pagoda (arXiv 2509.20189) and the workloads' own
zoo        every classifier of torchvision: totals, unknown operators, and FLOP of convolutions and matrix products
           beside torch's FlopCounterMode
onnx       a few networks exported with torch.onnx and read back, beside the traced ones (takes minutes)
known      print the text of ``fedge/costs/layers/known.yaml`` (what cannot be built here is taken from the
file itself)
"""

from __future__ import annotations

import io
import tempfile
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

from figures import build_table, run_parts
from rich.console import Console

from fedge.costs.cost_scaling import load_workload_sizes
from fedge.costs.layers.network_cost import NetworkCost
from fedge.costs.layers.network_record import find_known_network, format_entry, list_known_workloads
from fedge.costs.layers.network_source import build_module, load_network_cost

CONSOLE = Console(width=150)
PUBLISHED_TOTALS = {
    "mobilenet_v3_large": (0.4491, 21.81, 81.17),
    "resnet50": (8.2063, 102.01, 234.66),
    "yolov8n-coco": (8.8399, 12.58, 526.76),
}
"""GFLOP per image, MB of weights, MB of activations per image."""
MODEL_NAMES = {"resnet50-imagenet": "resnet50"}
"""Known networks with another name as MODEL."""
EXPORTED_NETWORKS = (
    "resnet18", "mobilenet_v3_large", "densenet121", "efficientnet_b0", "convnext_tiny", "vit_b_32", "swin_t",
    "swin_v2_t", "maxvit_t",
)  # fmt: skip


def format_difference(found: float, wanted: float) -> str:
    """Format the relative difference of two numbers in percent."""
    return f"{100 * (found / wanted - 1):+.2f} %"


def report_constants() -> None:
    """Report totals compared with published constants and the workloads' own."""
    shown = build_table("Beside printed constants", "network", "GFLOP", "", "weights MB", "", "activations MB", "")
    for name, wanted in PUBLISHED_TOTALS.items():
        network = load_network_cost(name)
        counted = (network.flop / 1e9, network.weight_bytes / 1e6, network.activation_bytes / 1e6)
        pairs = zip(counted, wanted, (".4f", ".2f", ".2f"), strict=True)
        shown.add_row(name, *(text for f, w, form in pairs for text in (f"{f:{form}}", format_difference(f, w))))
    CONSOLE.print(shown)
    yolo = load_network_cost("yolov8n-coco")
    apart = yolo.activation_bytes + 3 * 4 * sum(layer.activations for layer in yolo.layers if layer.kind == "silu")
    CONSOLE.print(f"yolov8n-coco with every SiLU as a sigmoid and a product: {apart / 1e6:.1f} MB of activations")
    shown = build_table("\nBeside the workloads' training steps", "workload", "GFLOP", "", "GB", "")
    for name, size in load_workload_sizes().items():
        work = find_known_network(name).batch_work(size.batch_size, "train")
        pairs = ((work.flop / 1e9, size.gflop_per_step), (work.bytes / 1e9, size.gbyte_per_step))
        shown.add_row(name, *(text for f, w in pairs for text in (f"{f:.3f}", format_difference(f, w))))
    CONSOLE.print(shown)


def count_product_flop(network: NetworkCost) -> float:
    """Return the FLOP of convolutions without their bias, and of matrix products."""
    bias = sum(layer.activations for layer in network.layers if layer.kind.startswith("conv"))
    kinds = ("conv", "conv_transpose", "linear", "matmul")
    return sum(layer.flop for layer in network.layers if layer.kind in kinds) - bias


def count_flop_by_torch(name: str) -> int:
    """Return the same by torch's own counter."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    module, shape = build_module(name)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), torch.device("meta"), counter:
        module.to("meta").eval()(torch.zeros(1, *shape))
    return counter.get_total_flops()


def report_zoo() -> None:
    """Report every classifier of torchvision."""
    from fedge.worker.torchvision_shim import models

    amount_headings = ("GFLOP", "weights MB", "activations MB", "layers")
    shown = build_table("torchvision", "network", *amount_headings, "products / torch's", "unknown")
    for name in models.list_models(module=models):
        network = load_network_cost(name)
        amounts = (network.flop / 1e9, network.weight_bytes / 1e6, network.activation_bytes / 1e6)
        agree = count_product_flop(network) / count_flop_by_torch(name)
        unknown = ", ".join(network.unknown) or "none"
        figures = (*(f"{amount:.4g}" for amount in amounts), str(len(network.layers)))
        shown.add_row(name, *figures, f"{agree:.9f}", unknown)
    CONSOLE.print(shown)


def report_onnx() -> None:
    """Report networks exported and read back."""
    shown = build_table("ONNX beside traced", "network", "GFLOP", "weights", "activations", "parameters", "unknown")
    for name in EXPORTED_NETWORKS:
        exported, traced = cost_from_onnx(name), load_network_cost(name)
        columns = ("flop", "weight_bytes", "activation_bytes", "parameters")
        ratios = (format_difference(getattr(exported, column), getattr(traced, column)) for column in columns)
        shown.add_row(name, *ratios, ", ".join(exported.unknown) or "none")
    CONSOLE.print(shown)


def cost_from_onnx(name: str) -> NetworkCost:
    """Return a network's costs by way of an ONNX file."""
    import torch

    module, shape = build_module(name)
    quiet: Any = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "network.onnx"
        with redirect_stdout(quiet), redirect_stderr(quiet):
            torch.onnx.export(module.eval(), (torch.zeros(1, *shape),), str(path), dynamo=True)
        return load_network_cost(str(path))


def print_known_layers() -> None:
    """Print the text of the shipped file, after its comment."""
    for workload in list_known_workloads():
        model = MODEL_NAMES.get(workload, workload)
        print(format_entry(replace(load_network_cost(model), name=workload)), end="")


PARTS = {
    "constants": report_constants,
    "zoo": report_zoo,
    "onnx": report_onnx,
    "known": print_known_layers,
}


if __name__ == "__main__":
    run_parts(__doc__, PARTS, default=("constants", "zoo"))

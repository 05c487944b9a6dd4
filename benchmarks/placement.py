"""Placement of inference: the time of the planner, and predicted combinations.

    python benchmarks/placement.py [planner|here]...

planner   time of large spaces, up to 4 accelerators, 8 batch sizes, 3 precisions, 3 instances each
here      this machine's processor with torch and ONNX Runtime, really run: singles and some pairs are measured and
          fitted, then pairs and triples outside the fit are measured too, and compared
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from figures import build_table, compute_mape, run_parts
from rich.console import Console

from fedge.analysis.placement.accelerator_fit import (
    fit_board,
    predict_images_per_s,
)
from fedge.analysis.placement.accelerators import Instance, Placement, PlacementBoard, build_placement_board
from fedge.analysis.placement.inference_jobs import (
    build_host_board,
    detect_libraries,
    list_runtimes,
    prepare_model_source,
)
from fedge.analysis.placement.placement_outcome import PlacementGoal
from fedge.analysis.placement.placement_planner import DEFAULT_BATCH_SIZES, plan_placement
from fedge.analysis.placement.placement_runs import measure_placement
from fedge.costs.layers.network_cost import NetworkCost
from fedge.costs.layers.network_record import find_known_network
from fedge.costs.layers.network_source import load_network_cost
from fedge.devices.catalogue import find

CONSOLE = Console(width=150)
HOST_MODEL, HOST_SECONDS = "resnet18", 2.0
TORCH, ORT = ("torch-cpu", "fp32"), ("ort-cpu", "fp32")


def resnet50() -> NetworkCost:
    network = find_known_network("resnet50-imagenet")
    assert network is not None
    return network


def build_placement(names: Sequence[tuple[str, str]], size: int) -> Placement:
    return Placement(tuple(Instance(name, size, precision) for name, precision in names))


def report_planner() -> None:
    """Time large spaces."""
    orin = build_placement_board(find("agx-orin"))
    for title, board, most in (
        ("AGX Orin", orin, 1),
        ("AGX Orin", orin, 2),
        ("3 precisions", add_precisions(orin), 2),
        ("3 precisions", add_precisions(orin), 3),
    ):
        for goal in (
            PlacementGoal(),
            PlacementGoal("energy", 200.0),
            PlacementGoal(max_power_w=40.0),
            PlacementGoal("latency", 200.0, 40.0),
        ):
            begin_s = time.process_time()
            plan = plan_placement(
                board, network=resnet50(), goal=goal, batch_sizes=DEFAULT_BATCH_SIZES, most_instances=most
            )
            took_s = time.process_time() - begin_s
            CONSOLE.print(
                f"{title}, up to {most} each, {goal.objective} {goal.rate_hz or ''} {goal.max_power_w or ''}: "
                f"{plan.considered:,} placements, {plan.computed:,} computed, {took_s:.2f} s of one core"
            )


def add_precisions(board: PlacementBoard) -> PlacementBoard:
    """Return the board with three different precisions on every accelerator."""
    places = []
    for place in board.accelerators:
        first = place.speeds[0]
        speeds = tuple(
            replace(
                first, precision=f"p{i}", flop_per_s=first.flop_per_s * 1.3**i, bytes_scale=first.bytes_scale / 1.5**i
            )
            for i in range(3)
        )
        places.append(replace(place, speeds=speeds))
    return replace(board, accelerators=tuple(places))


def report_host() -> None:
    """Report placements run on this machine."""
    network, can = load_network_cost(HOST_MODEL), list_runtimes(detect_libraries())
    fitted_to = [
        build_placement(names, size) for names in ((TORCH,), (ORT,), (TORCH, TORCH), (ORT, ORT)) for size in (1, 4)
    ]
    unseen = [build_placement((TORCH, ORT), size) for size in (1, 2, 4)]
    unseen += [
        build_placement(names, 2) for names in ((TORCH,), (ORT,), (ORT, ORT), (TORCH, TORCH, ORT), (TORCH, ORT, ORT))
    ]
    with tempfile.TemporaryDirectory() as folder:
        source = prepare_model_source(HOST_MODEL, network.input_shape, (1, 2, 4), Path(folder))
        # Three times in turn, so that other load affects all alike; the best run of each counts.
        runs = [
            [measure_placement(one, can, source, HOST_SECONDS).measurement for one in (*fitted_to, *unseen)]
            for _ in range(3)
        ]
    best = [max(same, key=lambda row: row.images_per_s) for same in zip(*runs, strict=True)]
    seen = np.array([[row.images_per_s for row in run] for run in runs])
    repeat = 100.0 * float(np.mean(seen.std(axis=0) / seen.mean(axis=0)))
    rows, judged = best[: len(fitted_to)], best[len(fitted_to) :]
    fit = fit_board(build_host_board(), network, rows)
    foreseen = predict_images_per_s(fit.board, network, unseen)
    title = f"{HOST_MODEL} on this machine's processor, images/s"
    table = build_table(title, "placement", "measured", "predicted", "error %")
    for row in rows:
        table.add_row(f"(fitted) {row.placement}", f"{row.images_per_s:.1f}", "", "")
    for row, guess in zip(judged, foreseen.tolist(), strict=True):
        off = 100 * (guess / row.images_per_s - 1)
        table.add_row(str(row.placement), f"{row.images_per_s:.1f}", f"{guess:.1f}", f"{off:+.1f}")
    CONSOLE.print(table)
    CONSOLE.print(
        f"error on the {len(rows)} fitted rows {fit.error:.1f} %, "
        f"each left out {fit.left_out_error or math.nan:.1f} %; "
        f"on {len(judged)} unseen placements "
        f"{compute_mape(foreseen, np.array([row.images_per_s for row in judged])):.1f} %; "
        f"runs of the same scatter by {repeat:.1f} % (one sd) here"
    )


PARTS = {"planner": report_planner, "here": report_host}

if __name__ == "__main__":
    run_parts(__doc__, PARTS)

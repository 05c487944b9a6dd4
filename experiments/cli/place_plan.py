"""``fedge place``: places inference on a board's accelerators, prints the choice, writes JSON and a page."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.cli.command_output import check_output, make_console, write_output
from fedge.analysis.placement.placement_advice import PlacementAdvice, PlacementOptions, advise_placement
from fedge.analysis.placement.placement_outcome import PlacementOutcome
from fedge.telemetry import run_folder

PLACEMENT_FORMAT = "fedge-placement-1"


def print_placement(asked: PlacementOptions, html: Path | None, json_file: Path | None) -> None:
    """Plan, print and write the results.

    Raises:
        BadInput: If the input is invalid, or no placement meets the limits.
    """
    check_output("--json", json_file, f'{{\n  "format": "{PLACEMENT_FORMAT}"')
    check_output("--html", html, "<!doctype html")
    advice = advise_placement(asked)
    from experiments.report.analysis.placement_terminal import render_placement

    make_console().print(render_placement(advice), soft_wrap=True)
    if json_file is not None:
        write_output("--json", json_file, lambda path: run_folder.write_json(path, as_data(advice)))
    if html is not None:
        from experiments.report.analysis.placement_page import write_placement_page

        write_output("--html", html, lambda path: write_placement_page(advice, path))


def as_data(advice: PlacementAdvice) -> dict[str, Any]:
    """Return the plan for JSON."""
    fitted, watts = advice.fitted, advice.knows_watts
    return {
        "format": PLACEMENT_FORMAT,
        "model": advice.network.name,
        "device": advice.board.name,
        "label": advice.label,
        "source": advice.board.source,
        "goal": asdict(advice.plan.goal),
        "chosen": outcome_data(advice.chosen, watts),
        "considered": advice.plan.considered,
        "computed": advice.plan.computed,
        "planned_s": advice.planning_s,
        "combinations": [
            {"combination": curve.combination, "label": advice.find_label(one), **outcome_data(one, watts)}
            for curve in advice.curves
            for one in curve.outcomes
        ],
        "fit": None
        if fitted is None
        else {
            "rows": fitted.rows,
            "error": fitted.error,
            "left_out_error": fitted.left_out_error,
            "power_error": fitted.power_error,
            "doubtful_rows": list(fitted.doubtful),
        },
        "notes": list(advice.notes),
        "figures": [{"name": name, **asdict(figure)} for name, figure in advice.board.figures],
    }


def outcome_data(outcome: PlacementOutcome, knows_watts: bool = True) -> dict[str, Any]:
    """Return an outcome for JSON; unknown power and energy are null."""
    return {
        "placement": [asdict(one) for one in outcome.placement.instances],
        "images_per_s": outcome.images_per_s,
        "latency_s": outcome.latency_s,
        "power_w": outcome.power_w if knows_watts else None,
        "joules_per_image": outcome.joules_per_image if knows_watts else None,
        "rate_hz": outcome.rate_hz,
        "instances": [
            {"images_per_s": one.images_per_s, "batch_s": one.batch_s, "alone_s": one.alone_s}
            for one in outcome.instances
        ],
    }

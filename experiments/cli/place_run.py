"""``fedge place-run``: runs instances of a network side by side on this machine and writes their performance."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.cli.command_output import check_output, make_console, show_progress, write_output
from experiments.report.text_tables import fit_to_content, make_text_table
from fedge.analysis.placement.accelerators import Instance, Placement
from fedge.analysis.placement.execution.host_runtimes import TORCH, AcceleratorRuntime, detect_libraries, list_runtimes
from fedge.analysis.placement.execution.model_source import prepare_model_source
from fedge.analysis.placement.execution.placement_sweep import (
    PlacementRun,
    check_runnable,
    find_usable_libraries,
    list_placements,
    measure_placement,
)
from fedge.analysis.placement.placement_advice import parse_batch_sizes
from fedge.analysis.placement.placement_measurements import MEASUREMENT_COLUMNS, measurements_to_csv, parse_batch_size
from fedge.costs.layers.network_source import load_network_cost, parse_input_shape
from fedge.errors import BadInput
from fedge.telemetry import run_folder

if TYPE_CHECKING:
    from rich.table import Table

MAX_PLACEMENTS = 200


@dataclass(frozen=True, slots=True)
class PlacementRunOptions:
    """Command-line options."""

    model: str | None
    instances: tuple[str, ...] = ()
    batches: str = "1,4,16"
    most: int = 2
    seconds: float = 5.0
    sensor: str | None = None
    input_shape: str | None = None


def measure_and_print(asked: PlacementRunOptions, out: Path | None) -> None:
    """Measure and print; without a model, list the available runtimes.

    Raises:
        BadInput: If the input is invalid.
        RunFailed: If an instance fails.
    """
    check_output("--out", out, ",".join(MEASUREMENT_COLUMNS[:4]))
    if not math.isfinite(asked.seconds):
        raise BadInput("--seconds", f"{asked.seconds:g}", "a number of seconds")
    here = list_runtimes(detect_libraries())
    if asked.model is None:
        make_console().print(_availability_table(here), crop=False)
        return
    chosen = _select_placements(asked, here)
    runs = _measure_placements(asked, asked.model, chosen, here)
    make_console().print(_measurements_table(runs), crop=False)
    if out is not None:
        more = [{"median_batch_s": "+".join(f"{one.median_s:.5f}" for one in each.instance_runs)} for each in runs]
        text = measurements_to_csv([each.measurement for each in runs], more)
        write_output("--out", out, lambda path: run_folder.write_text(path, text))


def _select_placements(asked: PlacementRunOptions, here: Sequence[AcceleratorRuntime]) -> list[Placement]:
    sizes = parse_batch_sizes(asked.batches)
    can = [
        key
        for key, library in find_usable_libraries(here).items()
        if not (library == TORCH and str(asked.model).endswith(".onnx"))
    ]
    chosen = [parse_placement(text) for text in asked.instances] or list_placements(can, sizes, asked.most)
    for one in chosen:
        check_runnable(one, here)
    if not 1 <= len(chosen) <= MAX_PLACEMENTS:
        raise BadInput(
            "--batches", f"{len(chosen)} placements", f"1 to {MAX_PLACEMENTS}: fewer sizes, or fewer --together"
        )
    return chosen


def parse_placement(text: str) -> Placement:
    """Parse ``--instances``, e.g. ``ort-cpu:8:fp32+torch-cpu:8:fp32``."""
    found = []
    for word in text.split("+"):
        cells = [cell.strip() for cell in word.split(":")]
        if len(cells) != 3 or not all(cells):
            raise BadInput("--instances", repr(text), "NAME:BATCH:PRECISION joined by +, e.g. ort-cpu:8:fp32")
        found.append(Instance(cells[0], parse_batch_size(cells[1], f"--instances {word}"), cells[2]))
    return Placement(tuple(found))


def _measure_placements(
    asked: PlacementRunOptions, model: str, chosen: Sequence[Placement], here: Sequence[AcceleratorRuntime]
) -> list[PlacementRun]:
    network = load_network_cost(model, parse_input_shape(asked.input_shape))
    libraries = find_usable_libraries(here)
    by_file = {
        one.batch_size
        for placement in chosen
        for one in placement.instances
        if libraries[one.accelerator, one.precision] != TORCH
    }
    runs = []
    with tempfile.TemporaryDirectory(prefix="fedge-place-") as folder, _open_power_reader(asked.sensor) as read_w:
        source = prepare_model_source(model, network.input_shape, sorted(by_file), Path(folder) if by_file else None)
        with show_progress(len(chosen)) as done:
            for placement in chosen:
                runs.append(measure_placement(placement, here, source, asked.seconds, read_w=read_w))
                done(str(placement))
    return runs


@contextmanager
def _open_power_reader(sensor: str | None) -> Iterator[Callable[[], float] | None]:
    """Yield a function that reads the board's power in watts, or None without a sensor."""
    if sensor is None:
        yield None
        return
    from fedge.clock import RealClock
    from fedge.devices.sensing import open_sensor
    from fedge.powerd.machine import Machine

    opened = open_sensor(sensor, machine=Machine("/"), clock=RealClock(), total_power=None, where="--sensor")
    try:
        yield lambda: opened.read().total_w
    finally:
        opened.close()


def _measurements_table(runs: Sequence[PlacementRun]) -> Table:
    table = make_text_table("Measured on this machine")
    table.add_column("placement")
    for head in ("  images/s", "  median batch, ms", "  W"):
        table.add_column(head, justify="right")
    for each in runs:
        watts = "-" if each.measurement.watts is None else f"{each.measurement.watts:.1f}"
        batches = " + ".join(f"{1e3 * one.median_s:.1f}" for one in each.instance_runs)
        table.add_row(str(each.measurement.placement), f"{each.measurement.images_per_s:.1f}", f"  {batches}", watts)
    return fit_to_content(table)


def _availability_table(here: Sequence[AcceleratorRuntime]) -> Table:
    table = make_text_table("What can run on this machine")
    for head in ("accelerator", "  precision", "  library", ""):
        table.add_column(head)
    for way in here:
        told = "yes" if way.reason is None else f"no: {way.reason}"
        table.add_row(way.accelerator, *(f"  {cell}" for cell in (way.precision, way.library, told)))
    return fit_to_content(table)

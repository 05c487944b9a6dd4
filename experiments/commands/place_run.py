"""``fedge place-run``: runs instances of a network side by side on this machine and writes what they did."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.commands.outputs import check_output
from experiments.commands.place import batch_sizes
from experiments.commands.study_output import console, progress, written
from experiments.report.concurrent.figures import figures, whole
from fedge.errors import BadInput
from fedge.layers.source import network_of, read_shape
from fedge.placement.accelerators import Instance, Placement
from fedge.placement.execution.available import TORCH, Way, installed, ways
from fedge.placement.execution.source import source_of
from fedge.placement.execution.sweep import Run, checked, measure, placements, usable
from fedge.placement.measurements import COLUMNS, as_csv, batch_size
from fedge.telemetry import run_folder

if TYPE_CHECKING:
    from rich.table import Table

MOST_PLACEMENTS = 200


@dataclass(frozen=True, slots=True)
class Asked:
    """The options as they were typed."""

    model: str | None
    instances: tuple[str, ...] = ()
    batches: str = "1,4,16"
    most: int = 2
    seconds: float = 5.0
    sensor: str | None = None
    input_shape: str | None = None


def run(asked: Asked, out: Path | None) -> None:
    """Measure and print; without a model, say what can run here. Raises ``BadInput`` and ``RunFailed``."""
    check_output("--out", out, ",".join(COLUMNS[:4]))
    if not math.isfinite(asked.seconds):
        raise BadInput("--seconds", f"{asked.seconds:g}", "a number of seconds")
    here = ways(installed())
    if asked.model is None:
        console().print(_ways_table(here), crop=False)
        return
    chosen = _chosen(asked, here)
    runs = _measured(asked, asked.model, chosen, here)
    console().print(_table(runs), crop=False)
    if out is not None:
        more = [{"median_batch_s": "+".join(f"{one.median_s:.5f}" for one in each.ran)} for each in runs]
        text = as_csv([each.measured for each in runs], more)
        written("--out", out, lambda path: run_folder.write_text(path, text))


def _chosen(asked: Asked, here: Sequence[Way]) -> list[Placement]:
    sizes = batch_sizes(asked.batches)
    can = [
        key for key, library in usable(here).items() if not (library == TORCH and str(asked.model).endswith(".onnx"))
    ]
    chosen = [placement_of(text) for text in asked.instances] or placements(can, sizes, asked.most)
    for one in chosen:
        checked(one, here)
    if not 1 <= len(chosen) <= MOST_PLACEMENTS:
        raise BadInput(
            "--batches", f"{len(chosen)} placements", f"1 to {MOST_PLACEMENTS}: fewer sizes, or fewer --together"
        )
    return chosen


def placement_of(text: str) -> Placement:
    """What ``--instances`` says: ``ort-cpu:8:fp32+torch-cpu:8:fp32``."""
    found = []
    for word in text.split("+"):
        cells = [cell.strip() for cell in word.split(":")]
        if len(cells) != 3 or not all(cells):
            raise BadInput("--instances", repr(text), "NAME:BATCH:PRECISION joined by +, e.g. ort-cpu:8:fp32")
        found.append(Instance(cells[0], batch_size(cells[1], f"--instances {word}"), cells[2]))
    return Placement(tuple(found))


def _measured(asked: Asked, model: str, chosen: Sequence[Placement], here: Sequence[Way]) -> list[Run]:
    network = network_of(model, read_shape(asked.input_shape))
    libraries = usable(here)
    by_file = {
        one.batch_size
        for placement in chosen
        for one in placement.instances
        if libraries[one.accelerator, one.precision] != TORCH
    }
    runs = []
    with tempfile.TemporaryDirectory(prefix="fedge-place-") as folder, _watts(asked.sensor) as read_w:
        source = source_of(model, network.input_shape, sorted(by_file), Path(folder) if by_file else None)
        with progress(len(chosen)) as done:
            for placement in chosen:
                runs.append(measure(placement, here, source, asked.seconds, read_w=read_w))
                done(str(placement))
    return runs


@contextmanager
def _watts(sensor: str | None) -> Iterator[Callable[[], float] | None]:
    """A function that reads the board's watts; None without a sensor."""
    if sensor is None:
        yield None
        return
    from fedge.clock import RealClock
    from fedge.devices.sensing import sensor_for
    from fedge.powerd.machine import Machine

    opened = sensor_for(sensor, Machine("/"), RealClock(), None, "--sensor")
    try:
        yield lambda: opened.read().total_w
    finally:
        opened.close()


def _table(runs: Sequence[Run]) -> Table:
    table = figures("Measured on this machine")
    table.add_column("placement")
    for head in ("  images/s", "  median batch, ms", "  W"):
        table.add_column(head, justify="right")
    for each in runs:
        watts = "-" if each.measured.watts is None else f"{each.measured.watts:.1f}"
        batches = " + ".join(f"{1e3 * one.median_s:.1f}" for one in each.ran)
        table.add_row(str(each.measured.placement), f"{each.measured.images_per_s:.1f}", f"  {batches}", watts)
    return whole(table)


def _ways_table(here: Sequence[Way]) -> Table:
    table = figures("What can run on this machine")
    for head in ("accelerator", "  precision", "  library", ""):
        table.add_column(head)
    for way in here:
        told = "yes" if way.reason is None else f"no: {way.reason}"
        table.add_row(way.accelerator, *(f"  {cell}" for cell in (way.precision, way.library, told)))
    return whole(table)

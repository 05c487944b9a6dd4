"""List the placements to measure so that the others can be predicted, and measure them one by one."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fedge.analysis.placement.accelerators import Instance, Placement
from fedge.analysis.placement.execution.host_runtimes import AcceleratorRuntime
from fedge.analysis.placement.execution.inference_jobs import InstanceTask, build_job
from fedge.analysis.placement.execution.instance_processes import InstanceRun, JobBuilder, run_instances
from fedge.analysis.placement.execution.model_source import ModelSource
from fedge.analysis.placement.placement_measurements import PlacementMeasurement
from fedge.errors import BadInput

POWER_SAMPLE_S = 0.1
"""Default period of power samples in seconds: short against a run, long against the cost of reading a sensor."""


@dataclass(frozen=True, slots=True)
class PlacementRun:
    """A measured placement with the runs of its instances."""

    measurement: PlacementMeasurement
    instance_runs: tuple[InstanceRun, ...]


def find_usable_libraries(ways: Sequence[AcceleratorRuntime]) -> dict[tuple[str, str], str]:
    """Return the library of each (accelerator, precision) that can run here."""
    return {(way.accelerator, way.precision): way.library for way in ways if way.reason is None}


def check_runnable(placement: Placement, ways: Sequence[AcceleratorRuntime]) -> None:
    """Raise ``BadInput`` with the reason for an instance that cannot run here."""
    can = find_usable_libraries(ways)
    for one in placement.instances:
        if (one.accelerator, one.precision) in can:
            continue
        known = [way for way in ways if (way.accelerator, way.precision) == (one.accelerator, one.precision)]
        why = known[0].reason if known else f"{one.precision} is no precision of it"
        here = ", ".join(f"{name} ({precision})" for name, precision in can) or "nothing"
        raise BadInput("placement", f"{one}: {why}", f"what runs here: {here}")


def list_placements(names: Sequence[tuple[str, str]], batch_sizes: Sequence[int], most: int) -> list[Placement]:
    """Return every accelerator alone at every batch size, and combinations of 2 to ``most``, repeats included.

    Instances of a combination share one of the batch sizes.
    """
    alone = [Placement((Instance(name, size, precision),)) for name, precision in names for size in batch_sizes]
    together = [
        Placement(tuple(Instance(name, size, precision) for name, precision in chosen))
        for count in range(2, most + 1)
        for chosen in itertools.combinations_with_replacement(names, count)
        for size in batch_sizes
    ]
    return alone + together


def measure_placement(
    placement: Placement,
    ways: Sequence[AcceleratorRuntime],
    source: ModelSource,
    seconds: float,
    *,
    read_w: Callable[[], float] | None = None,
    build: JobBuilder = build_job,
) -> PlacementRun:
    """Run a placement and measure its images per second and the board's mean power.

    Args:
        placement: The placement to run.
        ways: The runtimes of this machine.
        source: The model.
        seconds: Duration of the run in seconds.
        read_w: Reads the board's power in watts; None to skip power.
        build: Builds an instance's job inside its process.

    Raises:
        BadInput: If an instance cannot run here.
        RunFailed: If an instance fails.
    """
    check_runnable(placement, ways)
    can = find_usable_libraries(ways)
    tasks = [InstanceTask(one, can[one.accelerator, one.precision], source) for one in placement.instances]
    with _sample_power(read_w) as read:
        ran = run_instances(tasks, seconds, build)
    images = sum(one.batch_size * did.batches_per_s for one, did in zip(placement.instances, ran, strict=True))
    return PlacementRun(PlacementMeasurement(placement, images, _mean_run_power_w(read, seconds)), tuple(ran))


@contextmanager
def _sample_power(read_w: Callable[[], float] | None) -> Iterator[list[float]]:
    """Yield a list that collects the board's power in watts while something runs."""
    read: list[float] = []
    if read_w is None:
        yield read
        return
    over = threading.Event()

    def look() -> None:
        while not over.wait(POWER_SAMPLE_S):
            read.append(read_w())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield read
    finally:
        over.set()
        thread.join()


def _mean_run_power_w(read: Sequence[float], seconds: float) -> float | None:
    """Return the mean of the samples of the run itself, the last ones: before them the instances got ready."""
    last = read[-max(1, int(0.8 * seconds / POWER_SAMPLE_S)) :]
    return sum(last) / len(last) if last else None

"""Run instances concurrently, a process each: all get ready, start and stop together, and report their batches.

Measurement of a network's instances side by side on this machine: the request, its placements, and their runs.
"""

from __future__ import annotations

import itertools
import logging
import math
import multiprocessing
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from fedge.analysis.placement.accelerator_fit import PlacementMeasurement, measurements_to_csv, parse_batch_size
from fedge.analysis.placement.accelerators import Instance, Placement
from fedge.analysis.placement.inference_jobs import (
    TORCH,
    AcceleratorRuntime,
    BatchJob,
    InstanceTask,
    ModelSource,
    build_job,
    detect_libraries,
    list_runtimes,
    prepare_model_source,
)
from fedge.analysis.placement.placement_advice import parse_batch_sizes
from fedge.child_processes import exit_with_parent, limit_to_one_thread
from fedge.clock import RealClock
from fedge.costs.layers.network_source import load_network_cost, parse_input_shape
from fedge.devices.sensing import open_sensor
from fedge.errors import BadInput, FedgeError, RunFailed, SensorLost, describe_error
from fedge.import_path import start_children
from fedge.powerd.machine import Machine

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

logger = logging.getLogger(__name__)

READY_LIMIT_S = 600.0
"""Limit for an instance to get ready, in seconds: TensorRT may take minutes to build an engine."""
WARM_UP_BATCHES = 3
"""Default number of batches of every instance before timing starts."""
MAX_LATENCIES = 100_000


@dataclass(frozen=True, slots=True)
class InstanceRun:
    """The run of one instance."""

    batches: int
    seconds: float
    median_s: float

    @property
    def batches_per_s(self) -> float:
        return self.batches / self.seconds


@dataclass(frozen=True, slots=True)
class InstanceFailure:
    """Why an instance could not run; ``user`` if the user can correct it."""

    text: str
    user: bool


JobBuilder = Callable[[InstanceTask], BatchJob]


def run_instances(
    tasks: Sequence[InstanceTask],
    seconds: float,
    build: JobBuilder = build_job,
    during: AbstractContextManager[object] | None = None,
) -> list[InstanceRun]:
    """Run all instances at the same time; no process outlives the call.

    ``during`` is entered for the runs themselves, without the instances' start and end.

    Returns:
        One run per task, in their order.

    Raises:
        RunFailed: If an instance fails or does not answer.
        BadInput: If an instance cannot run for a reason that the user can correct.
    """
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in tasks]
    processes = [
        context.Process(target=run_instance_process, args=(task, seconds, build, there), daemon=True)
        for task, (_, there) in zip(tasks, pipes, strict=True)
    ]
    try:
        with limit_to_one_thread(), start_children():
            for process, (_, there) in zip(processes, pipes, strict=True):
                process.start()
                there.close()
        for task, process, (here, _) in zip(tasks, processes, pipes, strict=True):
            _receive_message(here, process, task, READY_LIMIT_S)
        limit_s = READY_LIMIT_S + 2 * seconds
        with during or nullcontext():
            for here, _ in pipes:
                here.send("go")
            heard = [
                _receive_message(here, process, task, limit_s)
                for task, process, (here, _) in zip(tasks, processes, pipes, strict=True)
            ]
        return [ran for ran in heard if isinstance(ran, InstanceRun)]
    finally:
        for process in processes:
            if process.is_alive():
                process.join(timeout=2.0)
            if process.is_alive():
                process.terminate()
                process.join(timeout=2.0)


def run_instance_process(task: InstanceTask, seconds: float, build: JobBuilder, pipe: Connection) -> None:
    """Run one instance's process: send ``ready``, wait for ``go``, run, and send the result."""
    exit_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ending instances is left to the process that started them
    try:
        job = build(task)
        for _ in range(WARM_UP_BATCHES):
            job()
        pipe.send("ready")
        pipe.recv()
        pipe.send(time_batches(job, seconds, time.perf_counter))
    except EOFError:
        return
    except FedgeError as error:
        pipe.send(InstanceFailure(str(error), isinstance(error, BadInput)))
    except Exception as error:  # noqa: BLE001 - any error of a library is reported to the waiting process
        pipe.send(InstanceFailure(f"{task.instance}: {describe_error(error)}", user=False))


def time_batches(job: BatchJob, seconds: float, clock: Callable[[], float]) -> InstanceRun:
    """Run batches one after the other for ``seconds``; the last one is finished and counted."""
    begin = before = clock()
    took: list[float] = []
    while before - begin < seconds and len(took) < MAX_LATENCIES:
        job()
        now = clock()
        took.append(now - before)
        before = now
    return InstanceRun(len(took), before - begin, statistics.median(took))


def _receive_message(here: Connection, process: SpawnProcess, task: InstanceTask, limit_s: float) -> InstanceRun | str:
    """Return the next message of a process; raise ``RunFailed`` if none comes in time, or the process ended."""
    try:
        if not here.poll(limit_s):
            raise RunFailed(f"{task.instance} said nothing for {limit_s:.0f} s")
        heard = here.recv()
    except EOFError as error:
        process.join(timeout=5.0)
        raise RunFailed(f"{task.instance}: its process ended with code {process.exitcode} (out of memory?)") from error
    if isinstance(heard, InstanceFailure):
        if heard.user:
            raise BadInput("placement", heard.text, "what the message asks for")
        raise RunFailed(heard.text)
    assert isinstance(heard, InstanceRun | str)
    return heard


POWER_SAMPLE_S = 0.1
"""Default period of power samples in seconds: short against a run, long against the cost of reading a sensor."""


@dataclass(frozen=True, slots=True)
class PlacementRun:
    """A measured placement with the runs of its instances."""

    measurement: PlacementMeasurement
    instance_runs: tuple[InstanceRun, ...]


def find_usable_libraries(runtimes: Sequence[AcceleratorRuntime]) -> dict[tuple[str, str], str]:
    """Return the library of each (accelerator, precision) that can run here."""
    return {(runtime.accelerator, runtime.precision): runtime.library for runtime in runtimes if runtime.reason is None}


def check_runnable(placement: Placement, runtimes: Sequence[AcceleratorRuntime]) -> None:
    """Raise ``BadInput`` with the reason for an instance that cannot run here."""
    can = find_usable_libraries(runtimes)
    for one in placement.instances:
        if (one.accelerator, one.precision) in can:
            continue
        reasons = {(runtime.accelerator, runtime.precision): runtime.reason for runtime in reversed(runtimes)}
        why = reasons.get((one.accelerator, one.precision), f"{one.precision} is no precision of it")
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
    runtimes: Sequence[AcceleratorRuntime],
    source: ModelSource,
    seconds: float,
    *,
    read_w: Callable[[], float] | None = None,
) -> PlacementRun:
    """Run a placement and measure its images per second and the board's mean power.

    Raises:
        BadInput: If an instance cannot run here.
        RunFailed: If an instance fails.
    """
    check_runnable(placement, runtimes)
    can = find_usable_libraries(runtimes)
    tasks = [InstanceTask(one, can[one.accelerator, one.precision], source) for one in placement.instances]
    read: list[float] = []
    ran = run_instances(tasks, seconds, during=_sample_power(read_w, read) if read_w else None)
    images = sum(one.batch_size * did.batches_per_s for one, did in zip(placement.instances, ran, strict=True))
    return PlacementRun(PlacementMeasurement(placement, images, statistics.fmean(read) if read else None), tuple(ran))


@contextmanager
def _sample_power(read_w: Callable[[], float], read: list[float]) -> Iterator[None]:
    """Append the board's power in watts to ``read`` while something runs, at least once; empty it if it is lost."""
    over, lost = threading.Event(), False

    def append() -> None:
        nonlocal lost
        try:
            read.append(read_w())
        except SensorLost as error:  # the rest of the run has no power, so neither has the whole
            logger.warning("the placement is measured without its power: %s", error)
            lost = True

    def look() -> None:
        while not lost and not over.wait(POWER_SAMPLE_S):
            append()

    append()
    read.clear()  # a sensor of counted energy gives the mean since its last reading, here over the instances' start
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        if not read and not lost:
            append()
        if lost:
            read.clear()


MAX_PLACEMENTS = 200
"""Largest number of placements of one request."""


@dataclass(frozen=True, slots=True)
class PlacementRunOptions:
    """The request of a measurement.

    Attributes:
        instances: Placements to run, as ``parse_placement`` reads them; by default a sweep.
        together: Largest number of instances in a placement of the sweep.
    """

    network: str
    instances: tuple[str, ...] = ()
    batch_sizes: str = "1,4,16"
    together: int = 2
    seconds: float = 5.0
    sensor: str | None = None
    input_shape: str | None = None


@dataclass(frozen=True, slots=True)
class PlacementRunPlan:
    """The placements that a request runs on this machine, all of them runnable."""

    options: PlacementRunOptions
    placements: tuple[Placement, ...]
    runtimes: tuple[AcceleratorRuntime, ...]


def list_host_runtimes() -> tuple[AcceleratorRuntime, ...]:
    """Return what can run on this machine, and the reason for what cannot."""
    return tuple(list_runtimes(detect_libraries()))


def plan_placement_runs(options: PlacementRunOptions) -> PlacementRunPlan:
    """Select the placements of a request.

    Raises:
        BadInput: If an option is invalid, or a placement cannot run here.
    """
    if not math.isfinite(options.seconds):
        raise BadInput("--seconds", f"{options.seconds:g}", "a number of seconds")
    runtimes, sizes = list_host_runtimes(), parse_batch_sizes(options.batch_sizes)
    runnable = [
        key
        for key, library in find_usable_libraries(runtimes).items()
        if not (library == TORCH and options.network.endswith(".onnx"))
    ]
    given = [parse_placement(text) for text in options.instances]
    placements = given or list_placements(runnable, sizes, options.together)
    for one in placements:
        check_runnable(one, runtimes)
    if not 1 <= len(placements) <= MAX_PLACEMENTS:
        raise BadInput(
            "--batch-sizes", f"{len(placements)} placements", f"1 to {MAX_PLACEMENTS}: fewer sizes, or fewer --together"
        )
    return PlacementRunPlan(options, tuple(placements), runtimes)


def run_placements(
    plan: PlacementRunPlan, report_placement: Callable[[str], None] = lambda _: None
) -> tuple[PlacementRun, ...]:
    """Run the placements of a plan one after the other.

    Raises:
        BadInput: If the network or sensor is invalid.
        RunFailed: If an instance fails.
    """
    options = plan.options
    network = load_network_cost(options.network, parse_input_shape(options.input_shape))
    sizes = _list_exported_sizes(plan)
    runs = []
    with tempfile.TemporaryDirectory(prefix="fedge-place-") as folder, _open_power_reader(options.sensor) as read_w:
        source = prepare_model_source(options.network, network.input_shape, sizes, Path(folder) if sizes else None)
        for placement in plan.placements:
            runs.append(measure_placement(placement, plan.runtimes, source, options.seconds, read_w=read_w))
            report_placement(str(placement))
    return tuple(runs)


def placement_runs_to_csv(runs: Sequence[PlacementRun]) -> str:
    """Return the measurements as CSV, in the form that ``read_measurements`` reads."""
    medians = [{"median_batch_s": "+".join(f"{one.median_s:.5f}" for one in each.instance_runs)} for each in runs]
    return measurements_to_csv([each.measurement for each in runs], medians)


def parse_placement(text: str) -> Placement:
    """Parse ``--instances``, e.g. ``ort-cpu:8:fp32+torch-cpu:8:fp32``.

    Raises:
        BadInput: If an instance is not NAME:BATCH:PRECISION.
    """
    instances = []
    for word in text.split("+"):
        cells = [cell.strip() for cell in word.split(":")]
        if len(cells) != 3 or not all(cells):
            raise BadInput("--instances", repr(text), "NAME:BATCH:PRECISION joined by +, e.g. ort-cpu:8:fp32")
        instances.append(Instance(cells[0], parse_batch_size(cells[1], f"--instances {word}"), cells[2]))
    return Placement(tuple(instances))


def _list_exported_sizes(plan: PlacementRunPlan) -> list[int]:
    """Return the batch sizes for which a library other than torch needs a file of the network, ascending."""
    libraries = find_usable_libraries(plan.runtimes)
    instances = [one for placement in plan.placements for one in placement.instances]
    return sorted({one.batch_size for one in instances if libraries[one.accelerator, one.precision] != TORCH})


@contextmanager
def _open_power_reader(sensor: str | None) -> Iterator[Callable[[], float] | None]:
    """Yield a function that reads the board's power in watts, or None without a sensor."""
    if sensor is None:
        yield None
        return
    opened = open_sensor(sensor, machine=Machine("/"), clock=RealClock(), total_power=None, where="--sensor")
    try:
        yield lambda: opened.read().total_w
    finally:
        opened.close()

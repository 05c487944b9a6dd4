"""The rig of this machine: runs the measuring program and builds measurements from its output and system samples."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedge import __version__
from fedge.characterisation import image_storage, machine_control, measurement_process
from fedge.characterisation.image_storage import ImageDataSet
from fedge.characterisation.machine_control import (
    CpuWork,
    HostMachine,
    JetsonMachine,
    LinuxMachine,
    MachineSession,
    SamplingThread,
    SystemSample,
    SystemSampler,
)
from fedge.characterisation.point_measurement import (
    DISTURBED_CORES,
    PART_FIELDS,
    EpochSummary,
    MeasurementRig,
    MinibatchTimes,
    PointMeasurement,
    ProgressCallback,
)
from fedge.characterisation.sweep_plan import HERE, CharacterisationPlan, MeasurementSchedule, SweepPoint, WorkloadPlan
from fedge.devices.local_board import BoardLocation
from fedge.devices.sensing.energy_counters import PackageEnergyCounter
from fedge.errors import BadInput, BoardError
from fedge.types import PowerMode

NpzArrays = Mapping[str, NDArray[Any]]


@dataclass(slots=True)
class ProgramRun:
    """A run of the measuring program: its output file, the system samples taken meanwhile, and its own messages.

    Attributes:
        samples: System samples, the first and last at the ends of the run.
        facts: Device, versions and thread count as reported by the program.
        other_cores: Mean number of cores that other programs kept busy; None if unknown.
    """

    out: Path
    samples: tuple[SystemSample, ...]
    facts: Mapping[str, Any]
    by_rapl: bool = False
    other_cores: float | None = None
    notes: tuple[str, ...] = field(default=())


def build_measurement(
    point: SweepPoint,
    run: ProgramRun,
    session: MachineSession,
    machine: HostMachine,
    images: ImageDataSet,
    begun_s: float,
) -> PointMeasurement:
    """Build the measurement of a finished point, whose times count from ``begun_s`` on the monotonic clock.

    Raises:
        BoardError: The program's output file cannot be read.
    """
    arrays = _read_arrays(run.out)
    epochs = tuple(_summarise_epoch(arrays, k, run, session) for k in range(len(arrays["begun_s"])))
    metered = epochs[0].energy_j is not None
    others = run.other_cores or 0.0
    disturbed = f"others kept {others:.2f} cores busy meanwhile: what shares cores with them took longer"
    times = {name: arrays[name] for name in ("epoch", "step", *PART_FIELDS, "step_s")}
    minibatches = MinibatchTimes(start_s=arrays["start_s"] - begun_s, **times)
    trace = session.complete_trace(machine_control.build_sensor_trace(run.samples, begun_s), begun_s)
    return PointMeasurement(
        point=point,
        read_minibatches=lambda: minibatches,
        epochs=epochs,
        read_sensor_trace=lambda: trace,
        label="measured",
        source=_describe_source(point, run=run, machine=machine, images=images, metered=metered),
        seconds=time.monotonic() - begun_s,
        notes=(*run.notes, *session.notes, *([disturbed] if others > DISTURBED_CORES else [])),
        power_label="measured" if metered else None,
        parameters=_model_parameters(arrays, run, images),
    )


def _read_arrays(path: Path) -> NpzArrays:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise BoardError(f"what the measuring program wrote cannot be read: {error}") from error


def _summarise_epoch(arrays: NpzArrays, k: int, run: ProgramRun, session: MachineSession) -> EpochSummary:
    start_s, end_s = float(arrays["begun_s"][k]), float(arrays["ended_s"][k])
    own = arrays["epoch"] == k
    samples = run.samples
    seen: dict[str, Any] = {
        **{name: float(arrays[name][own].sum()) for name in PART_FIELDS},
        "energy_j": machine_control.counter_growth(samples, "joules_so_far", start_s, end_s),
        "temperature_c": machine_control.peak_value(samples, "temperature_c", start_s, end_s),
        **session.summarise_sensors(start_s, end_s),
    }
    return EpochSummary(
        epoch=k,
        steps=int(own.sum()),
        e2e_s=end_s - start_s,
        **seen,
        power_w=None if seen["energy_j"] is None else seen["energy_j"] / (end_s - start_s),
        cpu_load=machine_control.mean_cpu_load(samples, start_s, end_s),
        memory_mb=machine_control.peak_value(samples, "memory_mb", start_s, end_s),
        disk_read_mb=_disk_read_mb(arrays, k, samples),
        resident_before=machine_control.none_if_nan(arrays["resident_before"][k]),
        resident_after=machine_control.none_if_nan(arrays["resident_after"][k]),
    )


def _disk_read_mb(arrays: NpzArrays, k: int, samples: tuple[SystemSample, ...]) -> float | None:
    """Return the MB read in an epoch, by the program's counters or, without a block device, those of its processes."""
    exact = float(arrays["read_bytes_after"][k] - arrays["read_bytes_before"][k])
    if not math.isnan(exact):
        return exact / 1e6
    grew = machine_control.counter_growth(
        samples, "read_bytes_so_far", float(arrays["begun_s"][k]), float(arrays["ended_s"][k])
    )
    return None if grew is None else grew / 1e6


def _describe_source(
    point: SweepPoint, run: ProgramRun, machine: HostMachine, images: ImageDataSet, metered: bool
) -> str:
    facts, count = run.facts, run.facts.get("threads")
    threads = "one thread" if count == 1 else f"{count} threads"
    own = machine.meter or (machine_control.RAPL_SOURCE if run.by_rapl else None)
    clock = "the monotonic clock" if facts.get("device") == "cpu" else "CUDA events and the monotonic clock"
    power = f"; power by {own}" if metered and own else ""
    return (
        f"measured on {machine.title}: {facts.get('device')}, torch {facts.get('torch')} with "
        f"{threads}, Python {facts.get('python')}, {point.runtime}, by {clock}; "
        f"images on {images.mount} at {images.folder}{power}"
    )


def _model_parameters(arrays: NpzArrays, run: ProgramRun, images: ImageDataSet) -> dict[str, float]:
    """Return further values for models, as means over the minibatches after the first epoch.

    Returns:
        ``collate_s``: seconds to stack a batch; ``taking_s``: the part of the overhead before a batch arrives
            (collating and the loader's own work without workers, the handover with workers); ``start_s``: seconds until
            all workers have started, in the last epoch; ``file_mb``: mean size of an image file; ``threads``: torch's
            threads; ``others_cores``: cores kept busy by other programs.
    """
    late: NDArray[np.bool_] = arrays["epoch"] > 0
    kept = late if late.any() else np.ones(len(late), bool)
    others = {} if run.other_cores is None else {"others_cores": run.other_cores}
    return others | {
        "collate_s": float(arrays["collate_s"][kept].mean()),
        "taking_s": float(arrays["taking_s"][kept].mean()),
        "start_s": float((arrays["started_s"] - arrays["begun_s"])[-1]),
        "file_mb": images.file_mb,
        "threads": float(run.facts.get("threads", 1)),
    }


WORK_FOLDER = ".measuring"
"""Subfolder of the sweep's folder for the files of a point's process; removed when the point is done."""
GPU_DEVICE_FILES = ("dev/nvidia[0-9]*", "dev/nvhost-gpu", "dev/nvgpu")
"""Patterns of device files, at least one of which exists where CUDA can be available."""


def build_local_rig(plan: CharacterisationPlan, folder: Path, place: BoardLocation | None = None) -> MeasurementRig:
    """Create the rig of this machine, a Jetson board if a power daemon listens at ``place``.

    ``folder`` is the sweep's; ``place`` names the daemon's socket and the system files, by default this machine's.

    Raises:
        BoardError: The daemon does not answer, or the board is unknown.
    """
    place = place or BoardLocation(holder="fedge characterise")
    if Path(place.power_socket).exists():
        return LocalRig(plan, folder, JetsonMachine(place), place)
    compares_clocks = any("dvfs" in knobs for knobs in plan.swept)
    return LocalRig(plan, folder, LinuxMachine(strict=compares_clocks, socket=place.power_socket), place)


class LocalRig:
    def __init__(self, plan: CharacterisationPlan, folder: Path, machine: HostMachine, place: BoardLocation) -> None:
        self._plan, self._folder, self._machine, self._place = plan, folder.resolve(), machine, place

    @property
    def maxn(self) -> PowerMode | None:
        return self._machine.maxn

    @cached_property
    def software(self) -> dict[str, str]:
        return {"fedge": __version__, **measurement_process.read_package_versions(), **self._machine.software}

    def refusal_reason(self, point: SweepPoint, workload: WorkloadPlan) -> str | None:
        return (
            self._loader_refusal(point, workload)
            or self._machine.refusal_reason(point)
            or image_storage.storage_refusal(self._plan, self._folder, point, workload)
            or measurement_process.runtime_refusal(point.runtime)
        )

    def measure(
        self, point: SweepPoint, workload: WorkloadPlan, course: MeasurementSchedule, report: ProgressCallback
    ) -> PointMeasurement:
        begun_s = time.monotonic()
        try:
            images = image_storage.prepare_data_set(
                self._plan, folder=self._folder, point=point, workload=workload, report=report
            )
        except BadInput as error:
            raise BoardError(str(error)) from error
        report("fills the page cache" if point.cache == "warm" else "drops the page cache")
        notes = image_storage.set_cache_state(
            images.cached_files, point.cache, drop_all=lambda: image_storage.drop_page_cache(self._place.power_socket)
        )
        with self._open_work_folder() as work, self._machine.hold(point) as session:
            spec = _make_program_spec(point, workload, course, images)
            run = self._run_measurement(point, spec=spec, work=work, images=images, course=course, report=report)
            run.notes = (*notes, *run.notes)
            return build_measurement(
                point, run=run, session=session, machine=self._machine, images=images, begun_s=begun_s
            )

    def idle(self, seconds: float) -> None:
        time.sleep(seconds)

    def _run_measurement(
        self,
        point: SweepPoint,
        spec: Mapping[str, Any],
        work: Path,
        images: ImageDataSet,
        course: MeasurementSchedule,
        report: ProgressCallback,
    ) -> ProgramRun:
        """Run the measuring program to its end while sampling the system."""
        runtime = measurement_process.parse_runtime(point.runtime)
        if isinstance(runtime, str):
            raise BoardError(runtime)
        name = f"fedge-{point.key}-{os.getpid()}"
        (work / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
        out = work / "minibatches.npz"
        folders = [images.folder, *(Path(folder) for folder in spec["modules"])]
        command = measurement_process.build_command(
            runtime, spec=work / "spec.json", out=out, folders=folders, name=name
        )
        sampler = SystemSampler(
            images.mount.disk, PackageEnergyCounter.try_open(self._place.root) if self._machine.meter is None else None
        )
        facts: dict[str, Any] = {}

        def apply_message(message: Mapping[str, Any]) -> None:
            if "torch" in message:
                facts.update(message)
                sampler.pid = measurement_process.find_container_pid(runtime, name) or sampler.pid
            elif "step" in message:
                place = f"minibatch {message['step']} of {message['steps']}"
                report(f"epoch {message['epoch'] + 1} of {course.epochs}, {place}")

        def set_pid(pid: int) -> None:
            sampler.pid = pid if runtime.engine is None else None

        before = CpuWork.read_now()
        try:
            with SamplingThread(sampler, course.sample_hz) as thread:
                measurement_process.run_program(
                    command, apply_message, environment=measurement_process.build_environment(), started=set_pid
                )
        finally:
            measurement_process.remove_container(runtime, name)
        others = CpuWork.read_now().other_cores_since(before) if runtime.engine is None else None
        return ProgramRun(
            out, samples=tuple(thread.samples), facts=facts, by_rapl=sampler.rapl is not None, other_cores=others
        )

    @contextmanager
    def _open_work_folder(self) -> Iterator[Path]:
        """Create a folder for a point's process; one left behind by a killed sweep is cleared."""
        work = self._folder / WORK_FOLDER
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _loader_refusal(self, point: SweepPoint, workload: WorkloadPlan) -> str | None:
        """Return why the loader or the workload cannot be as requested, or None if they can."""
        if point.board != HERE:
            return f"board {point.board} is not this machine, which is called here"
        root = Path(self._place.root)
        if point.pinned and not any(next(root.glob(pattern), None) for pattern in GPU_DEVICE_FILES):
            return "pinned: true needs a CUDA device; without one nothing is copied to a device"
        if workload.images.count < point.batch_size:
            return f"batch_size {point.batch_size} is more than the {workload.images.count} images of an epoch"
        if workload.input[0] not in (1, 3):
            return f"input of {workload.input[0]} channels; it must have 1 or 3"
        return None


def _make_program_spec(
    point: SweepPoint, workload: WorkloadPlan, course: MeasurementSchedule, images: ImageDataSet
) -> dict[str, Any]:
    loader = ("kind", "batch_size", "workers", "prefetch", "pinned")
    return {
        "model": workload.model,
        "shape": list(workload.input),
        "classes": workload.classes,
        "data": images.program_spec,
        "images": workload.images.count,
        **{name: getattr(point, name) for name in loader},
        "learning_rate": workload.learning_rate,
        "momentum": workload.momentum,
        "epochs": course.epochs,
        "minibatches": course.minibatches,
        "seed": point.repeat,
        "disk": images.mount.disk,
        "modules": [str(Path.cwd())] if ":" in workload.model else [],
        "leash": True,
    }

"""Looks at a made-up board, as a sweep would have brought them: its own computing, its own host, four storages."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from fedge.characterisation.observed_pipeline import PointObservation
from fedge.characterisation.sweep_plan import StoragePlan, SweepPoint
from fedge.client.loader_stalls import LoaderModel, compute_paces, waiting_power_w
from fedge.costs.cost_scaling import find_cost_profile
from fedge.costs.input_pipeline.emulated_pipeline import find_storage
from fedge.costs.input_pipeline.pipeline_fit import LoaderMeans
from fedge.costs.input_pipeline.pipeline_model import HostCores, InputPipeline, Loader, SampleCost, StepCost
from fedge.devices.catalogue import find, load_catalogue
from fedge.modes import stack_modes
from fedge.physics.time_power_model import compute_power_w, compute_time_parts, knob_shares
from fedge.types import PowerMode

SPEC = find("agx-xavier")
NAME = "resnet50-tinyimagenet224"
"""What the board computes; by this name nothing that was fitted to it is believed beforehand."""
STEPS = 500
FILE_MB = 0.16
PLANS = {name: StoragePlan(name=name, model=name) for name in ("ssd", "sd", "hdd")}
TRUTH = find_cost_profile(SPEC, NAME, load_catalogue()).coefficients
"""Of one cached batch: no loading is in it."""
TOP = SPEC.maxn
MODES = [
    PowerMode(cores, SPEC.cpu_mhz[cpu], SPEC.gpu_mhz[gpu], mem)
    for cores, cpu, gpu, mem in (
        (8, -1, -1, 2133.0),
        (8, 14, 7, 1331.2),
        (4, 14, 7, 1331.2),
        (2, -3, 7, 1600.0),
        (8, -3, 7, 1600.0),
        (8, -1, -1, 1331.2),
        (8, -1, 3, 2133.0),
        (4, 12, 3, 2133.0),
    )
]


def pipeline(batch_size: int = 16, workers: int = 0, name: str = "ssd", cached: float = 1.0) -> InputPipeline:
    """The board's own, at its top clocks."""
    more = batch_size / 16
    step = StepCost(0.0, 0.0, 0.002 * more, 0.003 * more, 0.004, 0.0005)
    return InputPipeline(
        batch_size,
        Loader(workers),
        find_storage(name),
        SampleCost(FILE_MB, 8e-5, 0.012),
        step,
        HostCores(8.0, 1.0, 0.65),
        cached,
        start_s=0.04,
    )


def look(
    mode: PowerMode = TOP, workers: int = 0, *, name: str = "ssd", cached: float = 1.0, batch_size: int = 16
) -> PointObservation:
    """What epochs in a mode show; a minibatch's computing grows with its samples beyond a fixed half."""
    modes = stack_modes([mode])
    x = knob_shares(TOP, modes)
    parts = compute_time_parts(TRUTH.time, x)
    compute_s = parts.total_s * (0.5 + 0.5 * batch_size / 16)
    loading = LoaderModel(pipeline(batch_size, workers, name, cached), TOP, TRUTH, SPEC.idle_w.value)
    paces = compute_paces(loading, modes, compute_s)
    factor = float((0.8 / x[:, 1] + 0.2 / x[:, 3])[0])
    inner, step = loading.pipeline, loading.pipeline.step
    slower = float(paces.slower_loading[0]) * factor
    around = float(paces.slower_training[0]) * factor
    reading_s = (1 - cached) * batch_size * (inner.storage.latency_s + FILE_MB / inner.storage.mb_per_s)
    fetch_s = batch_size * inner.samples.fetch_s * slower + reading_s
    preprocess_s = batch_size * inner.samples.preprocess_s * slower
    copy_s, overhead_s = step.copy_s * around, (step.overhead_s + (step.handover_s if workers else 0.0)) * around
    stall_s, step_s = float(paces.stall_s[0]), float(paces.step_s[0])
    means = LoaderMeans(
        workers,
        2,
        batch_size,
        fetch_s,
        preprocess_s,
        stall_s,
        copy_s,
        step_s - stall_s - copy_s - overhead_s,
        overhead_s,
    )
    waits = stall_s / step_s
    watts = (1 - waits) * float(compute_power_w(TRUTH, TOP, modes)[0]) + waits * float(
        waiting_power_w(loading, modes)[0]
    )
    first_s = fetch_s + preprocess_s + workers * inner.start_s * factor
    return PointObservation(
        point=SweepPoint("agx-xavier-1", NAME, mode, "train", batch_size, workers, storage=name),
        mode=mode,
        means=means,
        e2e_s=STEPS * step_s + (max(0.0, first_s - stall_s) if workers else 0.0),
        stall_s=STEPS * stall_s + (max(0.0, first_s - stall_s) if workers else 0.0),
        steps=STEPS,
        first_s=first_s,
        power_w=watts,
        cached=cached,
        file_mb=FILE_MB,
        is_counted=True,
        label="measured",
    )


def sweep() -> list[PointObservation]:
    """Modes at four workers, loaders at the top mode, storages with an empty page cache."""
    modes = [look(mode, 4) for mode in MODES]
    loaders = [look(workers=workers) for workers in (0, 1, 2)]
    storages = [look(name=name, cached=0.0) for name in ("ssd", "sd")]
    return [*modes, *loaders, *storages]


def without(looks: Sequence[PointObservation], gone: PointObservation) -> list[PointObservation]:
    """All but one."""
    return [one for one in looks if one.point != gone.point or one.cached != gone.cached]


def unmetered(looks: Sequence[PointObservation]) -> list[PointObservation]:
    """The same where nobody metered the power."""
    return [dataclasses.replace(one, power_w=None) for one in looks]


def relative(said: float, seen: float) -> float:
    """How far off, as a share of what was seen."""
    return float(np.abs(said / seen - 1.0))

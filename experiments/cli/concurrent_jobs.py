"""Jobs of ``fedge concurrent plan``: tables that were measured, or computed from a board's calibrated costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from experiments.cli.concurrent_tables import ConcurrentTableOptions, check_same_board, read_job_tables
from fedge.costs.cost_lookup import CostProfile, find_cost_profile
from fedge.costs.inference_cost import estimate_inference_cost
from fedge.devices.catalogue import find, load_catalogue
from fedge.errors import BadInput
from fedge.modes import build_grid
from fedge.physics import time_power_model
from fedge.serving.job_pair import FULCRUM_GRID, build_pair
from fedge.serving.multiple_services import MAX_SERVICES, MeasuredServiceDemand
from fedge.serving.serving_problems import BATCH_SIZES
from fedge.studies.serving.interleaving_advice import ConcurrentJobOptions, JobTables
from fedge.studies.serving.serving_planner import ServingJobs
from fedge.types import DeviceSpec, Modes, ProfileTable

MAX_KNOB_VALUES = (4, 7, 7, 3)
"""Number of values per knob (cores, CPU, GPU, memory clock) in the planning grid, evenly spaced.

A default of about the size of Fulcrum's grid; a finer grid takes longer to plan.
"""


def load_job_tables(typed: ConcurrentJobOptions) -> JobTables:
    """Read or compute the tables of all jobs.

    Raises:
        BadInput: If options contradict each other, or a latency or rate is missing.
    """
    tables, names = bool(typed.train or typed.infer), bool(typed.train_workload or typed.infer_workloads)
    if tables and names:
        right = "measured tables alone (--train, --infer), or --device with names of workloads alone"
        raise BadInput("--train-workload, --infer-workload", "names beside tables", right)
    source = _read_measured(typed) if tables else _price_workloads(typed)
    services = len(source.infer)
    if services > MAX_SERVICES:
        raise BadInput("--infer", f"{services} services", f"at most {MAX_SERVICES}")
    for option, values in (("--latency-s", typed.latency_s), ("--rate-hz", typed.rate_hz)):
        if len(values) != services:
            count = {0: "no value", 1: "1 value"}.get(len(values), f"{len(values)} values")
            jobs = {0: "nothing is served", 1: "1 inference job"}.get(services, f"{services} inference jobs")
            raise BadInput(option, f"{count}, and {jobs}", "one value for each --infer or --infer-workload, in order")
        for value in values:
            require_positive(option, value)
    return replace(source, infer=tuple(_select_batch_sizes(tables, typed.batch_sizes) for tables in source.infer))


def require_positive(option: str, value: float) -> float:
    """Return the value if it is finite and positive.

    Raises:
        BadInput: Otherwise, naming the option.
    """
    if not 0.0 < value < float("inf"):
        raise BadInput(option, f"{value:g}", "a number above 0")
    return value


def build_jobs(source: JobTables, typed: ConcurrentJobOptions) -> ServingJobs:
    """Build the jobs over the modes that all tables share."""
    flat = [table for tables in source.infer for table in tables]
    pair = build_pair(source.train, flat)
    # ``build_pair`` sorts by batch size; ``rank`` maps each table to its place there.
    places = sorted(range(len(flat)), key=lambda i: flat[i].batch_size)
    rank = {i: place for place, i in enumerate(places)}
    services, first = [], 0
    for name, tables, latency, rate in zip(
        name_services(source), source.infer, typed.latency_s, typed.rate_hz, strict=True
    ):
        rows = [rank[first + i] for i in range(len(tables))]
        sizes = tuple(table.batch_size for table in tables)
        services.append(
            MeasuredServiceDemand(
                name,
                rate_hz=rate,
                latency_s=latency,
                batch_sizes=sizes,
                infer_s=pair.infer_s[rows],
                infer_w=pair.infer_w[rows],
            )
        )
        first += len(tables)
    trains = source.train is not None
    return ServingJobs(pair.modes, tuple(services), pair.train_s if trains else None, pair.train_w if trains else None)


def name_services(source: JobTables) -> list[str]:
    """Return a unique name for each service."""
    names: list[str] = []
    for tables in source.infer:
        count = sum(name.split(" #")[0] == tables[0].workload for name in names)
        names.append(f"{tables[0].workload} #{count + 1}" if count else tables[0].workload)
    return names


def _read_measured(typed: ConcurrentJobOptions) -> JobTables:
    # One service may be listed twice with different rates.
    training, _ = (
        read_job_tables(
            ConcurrentTableOptions(
                (typed.train,), infer=(), device=typed.device, workload=None, batch_size=typed.batch_size
            )
        )
        if typed.train
        else ([], [])
    )
    inference = tuple(read_job_tables(ConcurrentTableOptions((), (path,), typed.device))[1][0] for path in typed.infer)
    train = training[0] if training else None
    check_same_board(train, [table for tables in inference for table in tables])
    paths = ([] if typed.train is None else [typed.train]) + list(typed.infer)
    return JobTables(train, inference, tuple(f"measured: {path}" for path in dict.fromkeys(paths)), is_measured=True)


def _price_workloads(typed: ConcurrentJobOptions) -> JobTables:
    if typed.device is None or not (typed.train_workload or typed.infer_workloads):
        named = typed.train_workload or typed.infer_workloads
        got = "workloads without a board" if named else "no table and no workload"
        right = "measured tables (--train, --infer), or --device with --train-workload, --infer-workload or both"
        raise BadInput("the jobs", got, right)
    if typed.batch_size is not None:
        got = f"{typed.batch_size} without a measured table"
        raise BadInput("--batch-size", got, "nothing: a calibrated cost has a training batch size of its own")
    spec, specs = find(typed.device), load_catalogue()
    modes = planning_modes(spec)
    sizes = parse_batch_sizes_option(typed.batch_sizes) if typed.batch_sizes else BATCH_SIZES
    with _attribute_errors("--train-workload"):
        training = [] if typed.train_workload is None else [find_cost_profile(spec, typed.train_workload, specs)]
    with _attribute_errors("--infer-workload"):
        inference = [
            [estimate_inference_cost(spec, name, size, specs) for size in sizes] for name in typed.infer_workloads
        ]
    about = dict.fromkeys(_describe_profiles(profiles) for profiles in (training, *inference) if profiles)
    tables = tuple(tuple(_predict_table(spec, modes, profile) for profile in profiles) for profiles in inference)
    train = _predict_table(spec, modes, training[0]) if training else None
    return JobTables(train, tables, tuple(about), is_measured=False)


@contextmanager
def _attribute_errors(option: str) -> Iterator[None]:
    """Attribute an unknown workload to this option, and an unknown batch size to ``--batch-sizes``."""
    try:
        yield
    except BadInput as error:
        where = "--batch-sizes" if error.where.startswith("batch size") else option
        raise BadInput(where, error.got, error.right) from error


def planning_modes(spec: DeviceSpec) -> Modes:
    """Return the modes considered for planning: Fulcrum's grid for its board, otherwise a thinned grid."""
    knobs = (tuple(map(float, spec.cores)), spec.cpu_mhz, spec.gpu_mhz, spec.mem_mhz)
    if all(set(wanted) <= set(known) for wanted, known in zip(FULCRUM_GRID, knobs, strict=True)):
        chosen: list[tuple[float, ...]] = list(FULCRUM_GRID)
    else:
        chosen = [_thin_values(values, most) for values, most in zip(knobs, MAX_KNOB_VALUES, strict=True)]
    cores, *clocks = chosen
    return build_grid(spec, tuple(map(int, cores)), *clocks)


def _thin_values(values: Sequence[float], most: int) -> tuple[float, ...]:
    ordered = sorted(values)
    if len(ordered) <= most:
        return tuple(ordered)
    # Counted from the top, because the lowest value of a knob is hardly ever useful.
    chosen = np.linspace(len(ordered) - 1, 0, most + 1).round().astype(int)[:-1]
    return tuple(ordered[i] for i in sorted(chosen))


def _predict_table(spec: DeviceSpec, modes: Modes, profile: CostProfile) -> ProfileTable:
    """Predict the modes with a cost profile, as a table."""
    seconds = time_power_model.compute_step_s(profile.coefficients, spec.maxn, modes)
    watts = time_power_model.compute_power_w(profile.coefficients, spec.maxn, modes)
    sha256 = profile.evidence.sha256 if profile.evidence else ""
    return ProfileTable(
        spec.name,
        workload=profile.workload,
        batch_size=profile.batch_size,
        modes=modes,
        step_s=seconds,
        power_w=watts,
        sha256=sha256,
        path=profile.source,
    )


def _describe_profiles(profiles: Sequence[CostProfile]) -> str:
    """Describe the profiles of a job in one line: provenance and errors on the measured modes."""
    first = profiles[0]
    what = {"train": "training", "infer": "inference"}[first.kind]
    sizes = ", ".join(str(profile.batch_size) for profile in profiles)
    labels = " and ".join(dict.fromkeys(profile.label for profile in profiles))
    errors = [p.time_mape for p in profiles if p.time_mape is not None]
    watts = [p.power_mape for p in profiles if p.power_mape is not None]
    if errors and watts:
        where = f"mean error up to {100 * max(errors):.1f} % in time, {100 * max(watts):.1f} % in power"
    else:
        where = first.source
    return f"{labels}: {what} of {first.workload} in batches of {sizes} ({where})"


def parse_batch_sizes_option(text: str) -> tuple[int, ...]:
    """Parse comma-separated batch sizes.

    Raises:
        BadInput: If one is not a positive integer.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words) or len(set(words)) < len(words):
        raise BadInput(
            "--batch-sizes", repr(text), "whole numbers above 0, separated by commas, each once, e.g. 1,4,16"
        )
    return tuple(sorted(map(int, words)))


def _select_batch_sizes(tables: Sequence[ProfileTable], text: str | None) -> tuple[ProfileTable, ...]:
    if text is None:
        return tuple(tables)
    sizes, known = parse_batch_sizes_option(text), {table.batch_size: table for table in tables}
    missing = [size for size in sizes if size not in known]
    if missing:
        raise BadInput("--batch-sizes", str(missing[0]), f"of {tables[0].path}: {', '.join(map(str, known))}")
    return tuple(known[size] for size in sizes)

"""Prior knowledge for a predictor of a measured table, excluding all that was learnt from the table's own workload.

Reference networks of ``powertrain`` for measured tables are trained once and kept in the user's cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedge.costs.cost_priors import PriorSources, build_inference_priors, derive_priors, select_prior_sources
from fedge.costs.cost_profile import CostProfile, WorkloadKind, load_calibrated_inference, load_calibrated_training
from fedge.costs.gpu_rates import RateObservation
from fedge.devices.catalogue import aliases, load_catalogue
from fedge.devices.tables.mode_table import read_mode_table
from fedge.errors import BadInput
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors.powertrain_reference import cache_folder, load_reference_network, reference_path
from fedge.types import DeviceSpec, PowerMode, ProfileTable

CLOCK_TOLERANCE = 0.01
# Relative amount by which a table's top clocks may exceed the catalogue's; both round clocks. Default: below the
# distance of neighbouring clocks, which is at least 3 %.


@dataclass(frozen=True, slots=True, eq=False)
class TableBackground:
    """The prior knowledge for one table and its sources.

    Attributes:
        prior_tables: Calibrated tables behind the priors, as ``device/workload sha256[:12]``, for inference
            ``device/workload infer b16 sha256[:12]``, and ``device/network timed steps``.
        references: Given references, as ``file sha256[:12]``.
        notes: Sentences on what was left out or not found.
    """

    knowledge: PriorKnowledge
    prior_tables: tuple[str, ...]
    references: tuple[str, ...]
    notes: tuple[str, ...]


def build_background(
    table: ProfileTable,
    references: Sequence[ProfileTable] = (),
    without: Sequence[str] = (),
    calibrated: Sequence[CostProfile] | None = None,
    *,
    layered: bool = True,
    kind: WorkloadKind = "train",
) -> TableBackground:
    """Build the prior knowledge for predictions of a table.

    All calibrated profiles and references of the table's workload are excluded, by name on any board and by the hash of
    the table; if it was calibrated under another name, profiles of that name are excluded too.

    Args:
        table: The table.
        references: Tables of other workloads.
        without: Workloads and boards whose profiles are excluded as well.
        calibrated: Profiles of training and inference; None for those that fedge ships.
        layered: Whether priors of training may come from the layers of the table's network; rounds do without them.
        kind: Kind of the table's steps.
    """
    specs = load_catalogue()
    shipped = (*load_calibrated_training(), *load_calibrated_inference())
    profiles = [p for p in (shipped if calibrated is None else calibrated) if p.device in specs]
    own, excluded = list_workload_names((table,), profiles), {aliases().get(name, name) for name in without}
    spec = find_board_spec(table.device)
    if kind == "infer":
        usable = tuple(p for p in profiles if not {p.workload, p.device} & (own | excluded))
        sources, priors = PriorSources(usable), _build_inference_priors(table, spec, usable, specs)
    else:
        sources = select_prior_sources(table.workload, specs, profiles, unseen=table.sha256, without=excluded)
        if spec is None or not layered:  # no data sheet to estimate layers with, or not requested
            sources = PriorSources(sources.rescaled_profiles)
        priors = _build_priors(table, spec, sources, specs)
    kept = [r for r in references if not own & list_workload_names((r,), profiles) and r.sha256 != table.sha256]
    ordered = _order_references(kept, table)
    notes = [
        f"{r.path} is no reference for {table.path}: it is of the same workload" for r in references if r not in kept
    ]
    notes += _note_unknown_exclusions(profiles, without, excluded)
    if spec is None:
        notes.append(f"{table.device} is not in the catalogue (`fedge devices list`): priors are not scaled to it")
    rated = len({prior.time_error_log for prior in priors}) > 1  # else the order of the priors says as much
    return TableBackground(
        PriorKnowledge(
            resolve_maxn(table, spec),
            tuple(prior.coefficients for prior in priors),
            ordered,
            errors=tuple((prior.time_error_log, prior.power_error_log) for prior in priors if rated),
        ),
        name_prior_tables(sources.profiles, sources.timed_steps),
        tuple(f"{Path(r.path).name} {r.sha256[:12]}" for r in ordered),
        tuple(notes),
    )


def read_reference_table(path: Path, batch_size: int | None) -> ProfileTable:
    """Read the table of another workload, at the requested batch size if it has it, otherwise at its only one.

    Raises:
        BadInput: If the table is invalid, or holds several batch sizes but not the requested one.
    """
    try:
        return read_mode_table(path, batch_size=batch_size)
    except BadInput:
        if batch_size is None:
            raise
        return read_mode_table(path)


def find_board_spec(device: str) -> DeviceSpec | None:
    """Return the catalogue's board of a device name or alias, or None."""
    return load_catalogue().get(aliases().get(device, device))


def resolve_maxn(table: ProfileTable, spec: DeviceSpec | None) -> PowerMode:
    """Return the board's top mode: the catalogue's if it covers the table, else the largest values in the table."""
    top = table.maxn
    if spec is None:
        return top
    pairs = zip(top.knobs, spec.maxn.knobs, strict=True)
    return spec.maxn if all(own <= known * (1 + CLOCK_TOLERANCE) for own, known in pairs) else top


def list_workload_names(tables: Sequence[ProfileTable], profiles: Iterable[CostProfile]) -> set[str]:
    """Return the tables' workloads, also under the names by which they were calibrated."""
    sums = {table.sha256 for table in tables}
    return {*(t.workload for t in tables), *(p.workload for p in profiles if p.evidence and p.evidence.sha256 in sums)}


def _build_priors(
    table: ProfileTable, spec: DeviceSpec | None, sources: PriorSources, specs: Mapping[str, DeviceSpec]
) -> tuple[CostProfile, ...]:
    """Return the priors, most credible first; for an unknown board unscaled and by the distance of the top clocks."""
    if not sources.rescaled_profiles:
        return ()
    if spec is None:
        by_clocks = [(compute_clock_distance(specs[p.device].maxn, table.maxn), p) for p in sources.rescaled_profiles]
        return tuple(profile for _, profile in sorted(by_clocks, key=lambda pair: pair[0]))
    return derive_priors(sources, device=spec, workload=table.workload, specs=specs, batch_size=table.batch_size)


def _build_inference_priors(
    table: ProfileTable, spec: DeviceSpec | None, usable: Sequence[CostProfile], specs: Mapping[str, DeviceSpec]
) -> tuple[CostProfile, ...]:
    """Return the priors of inference, scaled to the board or, if it is unknown, to that of the nearest top clocks."""
    maxn = resolve_maxn(table, spec)
    try:
        return build_inference_priors(
            spec or min(specs.values(), key=lambda alike: compute_clock_distance(alike.maxn, maxn)),
            workload=table.workload,
            batch_size=table.batch_size,
            specs=specs,
            calibrated=usable,
            unseen=table.sha256,
        )
    except BadInput:  # nothing else is calibrated
        return ()


def compute_clock_distance(a: PowerMode, b: PowerMode) -> float:
    """Return the distance of two modes in the logarithms of their knobs."""
    return math.dist(*(tuple(map(math.log, mode.knobs)) for mode in (a, b)))


def name_prior_tables(profiles: Iterable[CostProfile], timed: Iterable[RateObservation] = ()) -> tuple[str, ...]:
    """Return the names of the tables and timed steps behind priors, as in ``TableBackground``, without repetition."""
    steps = (f"{one.device}/{one.network} timed steps" for one in timed)
    return tuple(dict.fromkeys([*map(_name_table, profiles), *steps]))


def _name_table(profile: CostProfile) -> str:
    kind = "" if profile.kind == "train" else f"infer b{profile.batch_size} "
    sha256 = profile.evidence.sha256[:12] if profile.evidence else "unknown"
    return f"{profile.device}/{profile.workload} {kind}{sha256}"


def _order_references(references: Sequence[ProfileTable], table: ProfileTable) -> tuple[ProfileTable, ...]:
    """Return the references with those of the same kind of board first."""
    own = aliases().get(table.device, table.device)
    return tuple(sorted(references, key=lambda reference: aliases().get(reference.device, reference.device) != own))


def _note_unknown_exclusions(
    profiles: Sequence[CostProfile], without: Sequence[str], excluded: set[str]
) -> tuple[str, ...]:
    known = {p.workload for p in profiles} | {p.device for p in profiles}
    if excluded <= known:
        return ()
    strange = ", ".join(name for name in without if aliases().get(name, name) not in known)
    return (f"no calibrated profile is of {strange}: --prior-without leaves nothing out there",)


REFERENCE_SEED = 0
"""Seed of the networks that the predictor uses."""


@dataclass(frozen=True, slots=True)
class ReferenceNetworks:
    """Reference networks of one table.

    Attributes:
        time_mape: Mean absolute relative error of time on held-out modes, as a share.
        power_mape: Mean absolute relative error of power on held-out modes, as a share.
    """

    table: str
    device: str
    workload: str
    batch_size: int
    rows: int
    time_mape: float
    power_mape: float
    train_s: float
    file: str
    cached: bool


def train_reference_networks(tables: Sequence[Path], batch_size: int | None = None) -> tuple[ReferenceNetworks, ...]:
    """Train the reference networks of every table, or load them from the cache.

    Raises:
        BadInput: If a table is invalid or the cache cannot be written.
    """
    return tuple(_train_networks(path, batch_size) for path in tables)


def _train_networks(path: Path, batch_size: int | None) -> ReferenceNetworks:
    table = read_mode_table(path, batch_size=batch_size)
    folder = cache_folder()
    reference = load_reference_network(table, REFERENCE_SEED, folder)
    if not reference.kept:
        raise BadInput("cache folder", str(folder), "a folder that can be written; FEDGE_CACHE names another one")
    time_mape, power_mape = (float(mape) for mape in reference.trained.validation_mape)
    return ReferenceNetworks(
        str(path),
        device=table.device,
        workload=table.workload,
        batch_size=table.batch_size,
        rows=len(table.modes),
        time_mape=time_mape,
        power_mape=power_mape,
        train_s=reference.train_s,
        file=str(reference_path(table, REFERENCE_SEED, folder)),
        cached=reference.cached,
    )

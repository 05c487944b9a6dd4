"""What a predictor may know of a measured table beforehand: nothing that was learnt from the table's own workload."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedge.costs.priors import Sources, priors_from, sources_of
from fedge.costs.profiles import CostProfile, load_calibrated
from fedge.costs.rates import Observed
from fedge.costs.record import load_inference
from fedge.devices.catalogue import aliases, load_catalogue
from fedge.physics.knowledge import Knowledge
from fedge.physics.model import Coefficients
from fedge.types import DeviceSpec, PowerMode, ProfileTable

SAME_CLOCK = 0.01
"""Tables and catalogue round clocks; a table's top may lie this share above the catalogue's and still be the board's.
Chosen by us."""


@dataclass(frozen=True, slots=True, eq=False)
class Background:
    """The knowledge for one table, and what it came from.

    ``prior_tables`` are the calibrated tables that the priors saw, as ``device/workload sha256[:12]``, of inference as
    ``device/workload infer b16 sha256[:12]``, and ``device/network timed steps``; ``references`` those given, as
    ``file sha256[:12]``; ``notes`` say in words what was left out, or could not be found.
    """

    knowledge: Knowledge
    prior_tables: tuple[str, ...]
    references: tuple[str, ...]
    notes: tuple[str, ...]


def background_of(
    table: ProfileTable,
    references: Sequence[ProfileTable] = (),
    without: Sequence[str] = (),
    calibrated: Sequence[CostProfile] | None = None,
    *,
    layered: bool = True,
) -> Background:
    """What may be known of ``table``, of training, beforehand.

    Left out are all calibrated profiles and references of its workload, by name on any board, and by the SHA-256 of the
    table; a table that was calibrated under another name takes that name's profiles along. ``without`` names workloads
    or boards whose profiles are left out too; ``calibrated``, by default what ships, may hold inference too. Without
    ``layered`` nothing is believed by the layers of the table's network, as on a board in rounds.
    """
    specs = load_catalogue()
    shipped = (*load_calibrated(), *load_inference())
    profiles = [p for p in (shipped if calibrated is None else calibrated) if p.device in specs]
    own, excluded = _names_of(table, profiles), {aliases().get(name, name) for name in without}
    spec = board_of(table.device)
    sources = sources_of(table.workload, specs, profiles, unseen=table.sha256, without=excluded)
    if spec is None or not layered:  # no data sheet to price layers by, or nobody asks
        sources = Sources(sources.trained)
    kept = [r for r in references if not own & _names_of(r, profiles) and r.sha256 != table.sha256]
    return Background(
        Knowledge(maxn_of(table, spec), _priors(table, spec, sources, specs), _trusted(kept, table)),
        told_of(sources.profiles, sources.timed),
        tuple(f"{Path(r.path).name} {r.sha256[:12]}" for r in _trusted(kept, table)),
        (*_dropped(table, references, kept), *_unknown(profiles, without, excluded), *_strange(table, spec)),
    )


def board_of(device: str) -> DeviceSpec | None:
    """The catalogue's board behind a table's device, also by another of its names; None when there is none."""
    return load_catalogue().get(aliases().get(device, device))


def maxn_of(table: ProfileTable, spec: DeviceSpec | None) -> PowerMode:
    """The board's top mode: the catalogue's where it covers the table, else the largest values in the table."""
    top = table.maxn
    if spec is None:
        return top
    pairs = zip(_knobs(top), _knobs(spec.maxn), strict=True)
    return spec.maxn if all(own <= known * (1 + SAME_CLOCK) for own, known in pairs) else top


def _names_of(table: ProfileTable, profiles: Sequence[CostProfile]) -> set[str]:
    """The table's workload, also under the name by which it was calibrated."""
    known = {p.workload for p in profiles if p.evidence is not None and p.evidence.sha256 == table.sha256}
    return {table.workload, *known}


def _priors(
    table: ProfileTable, spec: DeviceSpec | None, sources: Sources, specs: Mapping[str, DeviceSpec]
) -> tuple[Coefficients, ...]:
    """The most credible first; for a board that the catalogue does not know as they are, nearest top clocks first."""
    if not sources.trained:
        return ()
    if spec is None:
        ranked = sorted(sources.trained, key=lambda profile: _clock_distance(specs[profile.device].maxn, table.maxn))
        return tuple(profile.coefficients for profile in ranked)
    found = priors_from(sources, spec, table.workload, specs, table.batch_size)
    return tuple(profile.coefficients for profile in found)


def _clock_distance(a: PowerMode, b: PowerMode) -> float:
    return math.hypot(*(math.log(x / y) for x, y in zip(_knobs(a), _knobs(b), strict=True)))


def told_of(profiles: Iterable[CostProfile], timed: Iterable[Observed] = ()) -> tuple[str, ...]:
    """The tables behind ``profiles`` and the ``timed`` steps, as ``Background`` names them, each once."""
    steps = (f"{one.device}/{one.network} timed steps" for one in timed)
    return tuple(dict.fromkeys([*map(_table_of, profiles), *steps]))


def _table_of(profile: CostProfile) -> str:
    kind = "" if profile.kind == "train" else f"infer b{profile.batch_size} "
    sha256 = profile.evidence.sha256[:12] if profile.evidence else "unknown"
    return f"{profile.device}/{profile.workload} {kind}{sha256}"


def _knobs(mode: PowerMode) -> tuple[float, ...]:
    return (mode.cores, mode.cpu_mhz, mode.gpu_mhz, mode.mem_mhz)


def _trusted(references: Sequence[ProfileTable], table: ProfileTable) -> tuple[ProfileTable, ...]:
    """Those of the same kind of board first, else in the order given."""
    own = aliases().get(table.device, table.device)
    return tuple(sorted(references, key=lambda reference: aliases().get(reference.device, reference.device) != own))


def _dropped(table: ProfileTable, references: Sequence[ProfileTable], kept: Sequence[ProfileTable]) -> tuple[str, ...]:
    lost = [reference.path for reference in references if reference not in kept]
    return tuple(f"{path} is no reference for {table.path}: it is of the same workload" for path in lost)


def _strange(table: ProfileTable, spec: DeviceSpec | None) -> tuple[str, ...]:
    return () if spec else (f"{table.device} is not in the catalogue: the priors for it are not scaled to the board",)


def _unknown(profiles: Sequence[CostProfile], without: Sequence[str], excluded: set[str]) -> tuple[str, ...]:
    known = {p.workload for p in profiles} | {p.device for p in profiles}
    if excluded <= known:
        return ()
    strange = ", ".join(name for name in without if aliases().get(name, name) not in known)
    return (f"no calibrated profile is of {strange}: --prior-without leaves nothing out there",)

"""What a strategy may know of two jobs beforehand: of either, nothing that was learnt from it, by name or by table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedge.concurrency.pair import Pair
from fedge.costs.inference import inference_priors
from fedge.costs.profiles import CostProfile, load_calibrated
from fedge.costs.record import load_inference
from fedge.devices.catalogue import load_catalogue
from fedge.errors import BadInput
from fedge.evaluation.knowledge import background_of, board_of, maxn_of, told_of
from fedge.physics.knowledge import Knowledge
from fedge.strategies import Ground
from fedge.types import DeviceSpec, PowerMode, ProfileTable


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A strategy's ground, and the tables that its priors saw, named as ``Background`` does."""

    ground: Ground
    priors: tuple[str, ...]


def known_of(
    pair: Pair,
    train: ProfileTable | None,
    infer: Sequence[ProfileTable],
    calibrated: Sequence[CostProfile] | None = None,
) -> Known:
    """What may be known of the pair of these tables.

    Left out for both jobs are all calibrated profiles, of training and of inference and on any board, that bear the
    name of one job's workload, or were fitted to one of its tables (by SHA-256), and then all of the name under which
    that table was calibrated. ``calibrated`` defaults to what ships and may hold both kinds.
    """
    profiles = (*load_calibrated(), *load_inference()) if calibrated is None else tuple(calibrated)
    jobs = (*([] if train is None else [train]), *infer)
    usable = unseen(jobs, profiles)
    training = None if train is None else background_of(train, (), _names(jobs, profiles), profiles, layered=False)
    inference = tuple(_inference(table, usable) for table in sorted(infer, key=lambda table: table.batch_size))
    ground = Ground(
        pair.modes, pair.batch_sizes, None if training is None else training.knowledge, inference if pair.infers else ()
    )
    of_training = () if training is None else training.prior_tables
    return Known(ground, tuple(dict.fromkeys([*of_training, *told_of(usable if ground.infer else ())])))


def unseen(tables: Sequence[ProfileTable], profiles: Sequence[CostProfile]) -> tuple[CostProfile, ...]:
    """Those of the profiles that neither bear the name of a table's workload nor ever saw one of the tables."""
    names = _names(tables, profiles)
    return tuple(profile for profile in profiles if profile.workload not in names)


def _names(tables: Sequence[ProfileTable], profiles: Sequence[CostProfile]) -> tuple[str, ...]:
    """The tables' workloads, also under the names by which they were calibrated."""
    sums, names = {table.sha256 for table in tables}, {table.workload for table in tables}
    return tuple({*names, *(p.workload for p in profiles if p.evidence and p.evidence.sha256 in sums)})


def _inference(table: ProfileTable, usable: Sequence[CostProfile]) -> Knowledge:
    spec = board_of(table.device)
    maxn = maxn_of(table, spec)
    try:
        found = inference_priors(
            spec or _like(maxn), table.workload, table.batch_size, load_catalogue(), usable, unseen=table.sha256
        )
    except BadInput:  # nothing else is calibrated
        found = ()
    return Knowledge(maxn, tuple(profile.coefficients for profile in found))


def _like(maxn: PowerMode) -> DeviceSpec:
    """For a board that the catalogue does not know: the one with the nearest top mode."""

    def far(spec: DeviceSpec) -> float:
        pairs = zip(_knobs(spec.maxn), _knobs(maxn), strict=True)
        return math.hypot(*(math.log(a / b) for a, b in pairs))

    return min(load_catalogue().values(), key=far)


def _knobs(mode: PowerMode) -> tuple[float, ...]:
    return (mode.cores, mode.cpu_mhz, mode.gpu_mhz, mode.mem_mhz)

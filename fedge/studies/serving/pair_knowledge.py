"""Prior knowledge of a strategy about two jobs, without anything learnt from either, by name or by table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedge.costs.cost_priors import build_inference_priors
from fedge.costs.cost_profile import CostProfile, load_calibrated_inference, load_calibrated_training
from fedge.devices.catalogue import load_catalogue
from fedge.errors import BadInput
from fedge.knowledge.table_background import build_background, find_board_spec, name_prior_tables, resolve_maxn
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.serving.job_pair import JobPair
from fedge.serving.strategies import SearchContext
from fedge.types import DeviceSpec, PowerMode, ProfileTable


@dataclass(frozen=True, slots=True, eq=False)
class PairKnowledge:
    """A strategy's search context, and the tables behind its priors, named as in ``Background``."""

    context: SearchContext
    priors: tuple[str, ...]


def build_pair_knowledge(
    pair: JobPair,
    train: ProfileTable | None,
    infer: Sequence[ProfileTable],
    calibrated: Sequence[CostProfile] | None = None,
) -> PairKnowledge:
    """Build the prior knowledge of the pair of these tables.

    Left out for both jobs are all calibrated profiles, of training and of inference and on any board, that bear the
    name of one job's workload, or were fitted to one of its tables (by SHA-256), and all others of the name under which
    that table was calibrated.

    Args:
        pair: The two jobs.
        train: Table of the training job, if there is one.
        infer: Tables of the inference job, one per batch size.
        calibrated: Profiles of both kinds; by default those that ship with fedge.
    """
    profiles = (*load_calibrated_training(), *load_calibrated_inference()) if calibrated is None else tuple(calibrated)
    jobs = (*([] if train is None else [train]), *infer)
    usable = exclude_seen_profiles(jobs, profiles)
    training = (
        None
        if train is None
        else build_background(train, (), _list_workload_names(jobs, profiles), profiles, layered=False)
    )
    inference = tuple(
        _build_inference_knowledge(table, usable) for table in sorted(infer, key=lambda table: table.batch_size)
    )
    context = SearchContext(
        pair.modes,
        pair.batch_sizes,
        None if training is None else training.knowledge,
        inference if pair.has_inference else (),
    )
    of_training = () if training is None else training.prior_tables
    return PairKnowledge(
        context, tuple(dict.fromkeys([*of_training, *name_prior_tables(usable if context.infer else ())]))
    )


def exclude_seen_profiles(tables: Sequence[ProfileTable], profiles: Sequence[CostProfile]) -> tuple[CostProfile, ...]:
    """Return the profiles that neither bear the name of a table's workload nor were fitted to one of the tables."""
    names = _list_workload_names(tables, profiles)
    return tuple(profile for profile in profiles if profile.workload not in names)


def _list_workload_names(tables: Sequence[ProfileTable], profiles: Sequence[CostProfile]) -> tuple[str, ...]:
    """Return the tables' workloads, also under the names by which they were calibrated."""
    sums, names = {table.sha256 for table in tables}, {table.workload for table in tables}
    return tuple({*names, *(p.workload for p in profiles if p.evidence and p.evidence.sha256 in sums)})


def _build_inference_knowledge(table: ProfileTable, usable: Sequence[CostProfile]) -> PriorKnowledge:
    spec = find_board_spec(table.device)
    maxn = resolve_maxn(table, spec)
    try:
        found = build_inference_priors(
            spec or _find_nearest_board(maxn),
            workload=table.workload,
            batch_size=table.batch_size,
            specs=load_catalogue(),
            calibrated=usable,
            unseen=table.sha256,
        )
    except BadInput:  # nothing else is calibrated
        found = ()
    return PriorKnowledge(maxn, tuple(profile.coefficients for profile in found))


def _find_nearest_board(maxn: PowerMode) -> DeviceSpec:
    """Return the catalogue's board with the nearest top mode, for a board that the catalogue does not have."""

    def far(spec: DeviceSpec) -> float:
        pairs = zip(spec.maxn.knobs, maxn.knobs, strict=True)
        return math.hypot(*(math.log(a / b) for a, b in pairs))

    return min(load_catalogue().values(), key=far)

"""Learns a model: profiles what an explorer asks for, within its bounds, fits, and scores on what was not profiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedge.errors import BadInput
from fedge.evaluation.accuracy import accuracy
from fedge.explorers import explorer_for
from fedge.explorers.bounded import SETTLE_S, Bounded, profiling_j, profiling_s
from fedge.explorers.order import falling
from fedge.interfaces import Explorer, Predictor
from fedge.models.file import About, HeldOut, Model, Origin, refit
from fedge.models.ground import Ground
from fedge.physics.knowledge import Knowledge
from fedge.seeds import generator
from fedge.types import Floats, Measurement, PowerMode, ProfileTable

MOST_MODES = 100
"""How many modes are profiled when only their cost is bounded; chosen by us."""
MOST_ROWS = 300
"""Rows of a table that the ``CUBIC`` methods learn from unless told otherwise; chosen by us."""
EMULATED_RESERVE = 1.05
"""By how much an emulated board's minibatches, the first ones above all, may exceed what its surface says; chosen by
us, its rare outliers exceed it."""
CUBIC = ("fedge", "physical")
"""Methods whose cost grows with the cube of what they learn from, at fitting and at every loading of the model."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """How to learn: ``explorer`` None takes all rows; bounds of cost are for profiling, settling included."""

    method: str
    seed: int = 0
    explorer: str | None = None
    modes: int | None = None
    cost_s: float | None = None
    cost_j: float | None = None


def learn(ground: Ground, wanted: Wanted) -> tuple[Model, Predictor]:
    """The model and its fitted predictor; raises ``BadInput`` when the bounds leave nothing to profile."""
    idle_w = ground.idle.value if ground.idle else ground.background.knowledge.idle_w
    knowledge = replace(ground.background.knowledge, seed=wanted.seed, idle_w=idle_w)
    if wanted.method == "physical" and not knowledge.priors:
        raise BadInput("--prior-without", "no prior left", "at least one, which the method physical starts from")
    explorer = None if wanted.explorer is None else _explorer(ground, wanted, wanted.explorer, knowledge)
    seen = _all_rows(ground, wanted) if explorer is None else _profiled(explorer, ground, wanted)
    if not seen:
        right = "more: none of the modes that the explorer asked for fits into it"
        raise BadInput("--cost-s, --cost-j", "too little", right)
    about = About(
        method=wanted.method,
        device=ground.truth.device,
        workload=ground.truth.workload,
        batch_size=ground.truth.batch_size,
        origin=_origin(ground, wanted, seen),
        candidates=ground.candidates_from,
        idle=ground.idle,
        prior_tables=ground.background.prior_tables,
    )
    model = Model(about, tuple(seen), ground.candidates, knowledge)
    predictor = refit(model)
    return replace(model, about=replace(about, held_out=held_out(ground.truth, seen, predictor))), predictor


def notes_of(ground: Ground, wanted: Wanted) -> tuple[str, ...]:
    """What a reader should know before he waits, a sentence each."""
    count = len(ground.truth.modes)
    if wanted.explorer is not None or wanted.method not in CUBIC or count <= MOST_ROWS:
        return ()
    why = "its cost grows with the cube of their number (--modes takes another)"
    return (f"{wanted.method} learns from {MOST_ROWS} of the {count:,} modes, drawn at random: {why}",)


def held_out(truth: ProfileTable, seen: Sequence[Measurement], predictor: Predictor) -> HeldOut | None:
    """Errors over the modes of ``truth`` that were not profiled; None when there is none."""
    profiled = {measurement.mode for measurement in seen}
    rows = tuple(row for row, mode in enumerate(truth.modes) if mode in profiled)
    left = len(truth.modes) - len(rows)
    if left == 0:
        return None
    everything = np.ones(len(truth.modes), dtype=np.bool_)
    scored = accuracy(predictor.predict(truth.modes), truth, rows, everything)
    figures = (scored.time_mape, scored.power_mape, scored.coverage90_time, scored.coverage90_power)
    time_mape, power_mape, time_held, power_held = (float(value or 0.0) / 100.0 for value in figures)
    return HeldOut(left, time_mape, power_mape, time_held, power_held)


def _explorer(ground: Ground, wanted: Wanted, name: str, knowledge: Knowledge) -> Explorer:
    """The explorer by that name, within the bounds of cost."""
    truth = ground.truth
    explorer = explorer_for(name, truth.modes, knowledge, "--explorer")
    if wanted.cost_s is None and wanted.cost_j is None:
        return explorer
    reserve = 1.0 if ground.sha256 else EMULATED_RESERVE
    seconds, joules = reserve * profiling_s(truth.step_s), reserve * profiling_j(truth.step_s, truth.power_w)
    _check_budget("--cost-s", wanted.cost_s, seconds, "s")
    _check_budget("--cost-j", wanted.cost_j, joules, "J")
    shares = dict(zip(truth.modes, _shares(wanted, seconds, joules).tolist(), strict=True))
    return Bounded(
        explorer,
        lambda modes: np.array([shares.get(mode, np.inf) for mode in modes], dtype=np.float64),
        1.0,
        lambda seen: float(_shares(wanted, np.array(_seconds(seen)), np.array(_joules(seen)))),
    )


def _check_budget(option: str, budget: float | None, costs: Floats, unit: str) -> None:
    if budget is not None and budget < costs.min():
        least = f"at least {costs.min():.3g} {unit}, what profiling one mode takes"
        raise BadInput(option, f"{budget:g} {unit}", least)


def _shares(wanted: Wanted, seconds: Floats, joules: Floats) -> Floats:
    """The larger share of the two budgets that profiling takes: where it sums to 1, neither is exceeded."""
    of_time: Floats = seconds / (wanted.cost_s or np.inf)
    return np.maximum(of_time, joules / (wanted.cost_j or np.inf))


def _seconds(seen: Measurement) -> float:
    """What profiling took: settling in the mode, then the minibatches."""
    return SETTLE_S + seen.work_s


def _joules(seen: Measurement) -> float:
    return _seconds(seen) * seen.power_w


def _profiled(explorer: Explorer, ground: Ground, wanted: Wanted) -> list[Measurement]:
    """What the explorer asks for, all at once as far as it can tell, each batch in an order that falls."""
    count = min(wanted.modes or MOST_MODES, len(ground.truth.modes))
    seen: dict[PowerMode, Measurement] = {}
    while len(seen) < count:
        asked = explorer.ask(count - len(seen))
        fresh = {mode: ground.measure(mode) for mode in falling(asked) if mode not in seen}
        if not fresh:
            break
        seen |= fresh
        explorer.tell(list(fresh.values()))
    return list(seen.values())


def _all_rows(ground: Ground, wanted: Wanted) -> list[Measurement]:
    """Every row of the table, or so many drawn at random as the method can learn from in a moment."""
    count = len(ground.truth.modes)
    rows = np.arange(count)
    if wanted.method in CUBIC and count > MOST_ROWS:
        rows = np.sort(generator(wanted.seed, "rows").permutation(count)[:MOST_ROWS])
    return [ground.measure(ground.truth.modes[int(row)]) for row in rows]


def _origin(ground: Ground, wanted: Wanted, seen: Sequence[Measurement]) -> Origin:
    return Origin(
        label=ground.label,
        source=ground.source,
        rows=len(ground.truth.modes),
        sha256=ground.sha256,
        explorer=wanted.explorer,
        profiling_s=sum(_seconds(measurement) for measurement in seen),
        profiling_j=sum(_joules(measurement) for measurement in seen),
    )

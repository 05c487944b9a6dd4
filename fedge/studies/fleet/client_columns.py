"""The state of a fleet as columns: one array per quantity, one element per client; a round's selection.

The selectors are those that need no losses or are told none by a study.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedge.costs.layered_work import count_priced_bytes
from fedge.decisions.selection.basic_selectors import round_randomly
from fedge.decisions.selection.oort import UNCERTAINTY, exploration_share
from fedge.decisions.selection.selector_options import complete_options
from fedge.devices.battery import J_PER_WH, Batteries
from fedge.devices.board_kinds import TABLE_PREFIX, build_kind, build_link
from fedge.devices.emulated_board import WARM_UP_STEPS, find_top_mode
from fedge.devices.mode_surface import draw_deviations
from fedge.errors import RunFailed
from fedge.experiment import (
    EvaluationSpec,
    Experiment,
    FleetBoard,
    FleetEntry,
    MemorySpec,
    PolicySpec,
    StrategySpec,
    WorkloadSpec,
    list_boards,
)
from fedge.physics.model_fit import NOISE_POWER_SD, NOISE_TIME_SD, OFFSET_POWER_SD, OFFSET_TIME_SD
from fedge.seeds import make_generator
from fedge.studies.fleet.kind_table import (
    KindKnowledge,
    KindTable,
    Rows,
    build_kind_table,
    compute_offset,
    compute_offset_sd,
    start_knowledge,
)
from fedge.types import Floats
from fedge.workloads import NULL_SAMPLES, NULL_TASK, NullTask

TYPICAL_WORK_S = 30.0
STEP_SHARE_RANGE = (2.0 / 3.0, 4.0 / 3.0)
"""A board's work at MAXN takes ``TYPICAL_WORK_S`` times a draw from this range: boards hold different amounts of data.

The range is a default of the study; a wider one makes fleets less even and leaves more energy to save.
"""
AMPLE_MEMORY_MB = 1e9
"""Enough memory for any step, so that the memory guard never changes a batch size."""


def count_board_steps(experiment: Experiment, steps: int | None) -> dict[str, int]:
    """Return every board's steps in a round: ``steps``, or as many as take about ``TYPICAL_WORK_S`` seconds at MAXN."""
    if steps is not None:
        return {board.name: steps for board in list_boards(experiment)}
    return {board.name: _draw_steps(experiment, board) for board in list_boards(experiment)}


def _draw_steps(experiment: Experiment, board: FleetBoard) -> int:
    average = build_kind(board, experiment.workload).average
    share = make_generator(experiment.seed, board.name, "steps").uniform(*STEP_SHARE_RANGE)
    return max(1, round(share * TYPICAL_WORK_S / float(average.step_s[average.find_row(find_top_mode(average))])))


def build_run_experiment(experiment: Experiment, policy: PolicySpec, seed: int, rounds: int) -> Experiment:
    """Return the experiment of one run: its own fleet, policy and seed, no training, and ample memory.

    The study counts the costs of the requested steps: a board that reduced them would be compared by other work.
    """
    workload = experiment.workload.model_copy(update={"task": NULL_TASK, "memory": MemorySpec(guard=False)})
    fleet = tuple(entry.model_copy(update={"memory_mb": AMPLE_MEMORY_MB}) for entry in experiment.fleet)
    data = experiment.data.model_copy(update={"partition": "iid", "samples": None})
    changes = {"policy": policy, "seed": seed, "rounds": rounds, "fleet": fleet, "workload": workload, "data": data}
    changes |= {"strategy": StrategySpec(), "mods": (), "evaluation": EvaluationSpec()}
    return experiment.model_copy(update=changes)


def build_board_experiment(experiment: Experiment, board: FleetBoard, steps: int) -> Experiment:
    """Return the experiment as one board receives it, so that its share comes to ``steps`` steps."""
    count = len(list_boards(experiment))
    samples = NULL_SAMPLES // count + (board.index < NULL_SAMPLES % count)
    batches = math.ceil(samples / experiment.workload.batch_size)
    workload = experiment.workload.model_copy(update={"local_epochs": steps / batches})
    return experiment.model_copy(update={"workload": workload})


Flags = NDArray[np.bool_]
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class FleetColumns:
    """The constants of n clients, each of an entry of the experiment, which is of a kind.

    Attributes:
        kinds: The kinds; entries of equal boards and workload share one.
        kind_of: Index of each entry's kind, shape (entries,).
        entry: Index of each client's entry, shape (n,).
        steps: Steps of a round, shape (n,).
        log_time: True offset of a client's step times from its kind, log units, shape (n,).
        log_power: The same of its power.
        down_s: Seconds to download the model, by entry; likewise ``up_s``.
        radio_w: Power of the radio above idle, by entry.
        on_s: Mean seconds available, by entry; infinite without an availability. Likewise ``off_s``.
        capacity_j: Battery, by entry; infinite on mains.
        floor_j: Charge below which a client takes part in no round, by entry.
        charging_w: Charging power, by entry.
        start_j: Charge at the start, by entry.
    """

    names: tuple[str, ...]
    kinds: tuple[KindTable, ...]
    kind_of: Rows
    entry: Rows
    steps: Floats
    log_time: Floats
    log_power: Floats
    down_s: Floats
    up_s: Floats
    radio_w: Floats
    on_s: Floats
    off_s: Floats
    capacity_j: Floats
    floor_j: Floats
    charging_w: Floats
    start_j: Floats

    def __len__(self) -> int:
        return len(self.entry)

    @property
    def kind(self) -> Rows:
        """Return the index of each client's kind, shape (n,)."""
        return self.kind_of[self.entry]

    @property
    def link_s(self) -> Floats:
        """Return the seconds of both transfers, by entry."""
        return self.down_s + self.up_s

    def select_batteries(self, left_j: Floats, clients: Rows) -> Batteries:
        """Return the batteries of ``clients`` with these charges, shape of ``clients``."""
        entry = self.entry[clients]
        return Batteries(left_j, self.capacity_j[entry], floor_j=self.floor_j[entry], charging_w=self.charging_w[entry])

    def gather(self, values: list[float], clients: Rows) -> Floats:
        """Return a figure of the kinds for each of ``clients``."""
        return np.array(values, dtype=np.float64)[self.kind_of[self.entry[clients]]]

    def waiting_w(self, clients: Rows) -> Floats:
        """Return the true power in watts of ``clients`` that wait in their lowest mode."""
        return self.gather([kind.idle_w for kind in self.kinds], clients) * np.exp(self.log_power[clients])


@dataclass(frozen=True, slots=True, eq=False)
class ClientOffsets:
    """Expected log offsets of c clients from their kinds, and the standard deviation of that of time."""

    time: Floats
    power: Floats
    time_sd: Floats


@dataclass(frozen=True, slots=True, eq=False)
class ClientRecord:
    """Measurements of clients in arrays with one element per client.

    Attributes:
        log_s: Sum of log ratios of measured to predicted step time; ``log_w`` that of power.
        measured: Number of these ratios.
        tried: Bits of the kind's known modes that the client worked in.
        explored: Number of these modes.
    """

    log_s: Floats
    log_w: Floats
    measured: Counts
    tried: NDArray[np.uint64]
    explored: Counts

    def select(self, clients: Rows) -> ClientRecord:
        return ClientRecord(*(values[clients] for values in self._columns()))

    def replace(self, clients: Rows, own: ClientRecord) -> ClientRecord:
        """Return the records with those of ``clients`` replaced."""
        pairs = zip(self._columns(), own._columns(), strict=True)
        return ClientRecord(*(replace_rows(values, clients, new) for values, new in pairs))

    def _columns(self) -> list[NDArray[Any]]:
        return [getattr(self, one.name) for one in dataclasses.fields(self)]

    def estimate_offsets(self) -> ClientOffsets:
        """Return the posterior of clients' offsets, from a normal prior with the spread of boards of a kind."""
        return ClientOffsets(
            compute_offset(self.log_s, self.measured, OFFSET_TIME_SD, NOISE_TIME_SD),
            compute_offset(self.log_w, self.measured, OFFSET_POWER_SD, NOISE_POWER_SD),
            compute_offset_sd(self.measured, OFFSET_TIME_SD, NOISE_TIME_SD),
        )


def replace_rows(values: NDArray[Any], rows: Rows, new: Any) -> NDArray[Any]:
    """Return a copy of an array with the values at these rows replaced."""
    copy = values.copy()
    copy[rows] = new
    return copy


@dataclass(frozen=True, slots=True, eq=False)
class ColumnState:
    """The state between two rounds; arrays have one element per client and are not modified.

    Attributes:
        clock_s: Simulated time.
        knowledge: What each kind has learnt.
        last_round: The last round that the client took part in; 0 for none.
        busy_s: Seconds of that round.
        left_j: Charge of the battery in joules; infinite on mains.
        on: Whether the client is available.
        switch_s: When that changes; infinite if never.
    """

    clock_s: float
    knowledge: tuple[KindKnowledge, ...]
    record: ClientRecord
    last_round: Counts
    busy_s: Floats
    left_j: Floats
    on: Flags
    switch_s: Floats


def build_fleet_columns(experiment: Experiment, steps: int | None) -> FleetColumns:
    """Build the columns of an experiment's fleet; ``steps`` as in ``count_board_steps``."""
    kinds, kind_of, drawn = dict[tuple[object, ...], KindTable](), list[int](), list[dict[str, Floats]]()
    for place, entry in enumerate(experiment.fleet):
        key = entry.device, entry.truth, entry.cost, entry.references
        if key not in kinds:
            board = FleetBoard(name=entry.name or entry.device, index=place, entry=entry)
            kinds[key] = build_kind_table(experiment, board)
        kind_of.append(list(kinds).index(key))
        rng = make_generator(experiment.seed, place, entry.device, "columns")
        drawn.append(_draw_entry(entry, kinds[key], steps, rng))
    terms = [_list_entry_terms(entry, experiment.workload) for entry in experiment.fleet]
    return FleetColumns(
        tuple(entry.name or entry.device for entry in experiment.fleet),
        kinds=tuple(kinds.values()),
        kind_of=np.array(kind_of, dtype=np.intp),
        entry=np.repeat(np.arange(len(kind_of)), [entry.count for entry in experiment.fleet]),
        **{name: np.concatenate([own[name] for own in drawn]) for name in drawn[0]},
        **{name: np.array([own[name] for own in terms]) for name in terms[0]},
    )


def _draw_entry(entry: FleetEntry, kind: KindTable, steps: int | None, rng: np.random.Generator) -> dict[str, Floats]:
    count = entry.count
    typical = TYPICAL_WORK_S / float(kind.surface.step_s[kind.top])
    shares = rng.uniform(*STEP_SHARE_RANGE, size=count)
    replayed = entry.truth.startswith(TABLE_PREFIX)  # a measured table is used unchanged
    return {
        "steps": np.maximum(1.0, np.round(shares * typical)) if steps is None else np.full(count, float(steps)),
        "log_time": np.zeros(count) if replayed else draw_deviations(count, rng),
        "log_power": np.zeros(count) if replayed else draw_deviations(count, rng),
    }


def _list_entry_terms(entry: FleetEntry, workload: WorkloadSpec) -> dict[str, float]:
    size = count_priced_bytes(entry, workload)
    if size is None:
        size = sum(array.nbytes for array in NullTask().initial_arrays(0).values())
    link, battery, periods = build_link(entry.link).transfer(size, size), entry.battery, entry.availability
    on_s, off_s = (None, None) if periods is None else (periods.on_s, periods.off_s)
    size_j = math.inf if battery is None else battery.capacity_wh * J_PER_WH
    return {
        "down_s": link.down_s,
        "up_s": link.up_s,
        "radio_w": entry.link.radio_w,
        "on_s": on_s if on_s and off_s else math.inf,
        "off_s": off_s if on_s and off_s else 0.0,
        "capacity_j": size_j,
        "floor_j": 0.0 if battery is None else battery.floor * size_j,
        "charging_w": 0.0 if battery is None else battery.charging_w,
        "start_j": math.inf if battery is None else battery.charge * size_j,
    }


def start_state(columns: FleetColumns, seed: int) -> ColumnState:
    """Return the state before the first round; availability starts in its stationary state."""
    n, rng = len(columns), make_generator(seed, "availability", "columns")
    zeros, none, untried = np.zeros(n), np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.uint64)
    on_s, off_s = columns.on_s[columns.entry], columns.off_s[columns.entry]
    on, switch_s = np.ones(n, dtype=np.bool_), np.full(n, np.inf)
    changing = np.flatnonzero(np.isfinite(on_s))
    on[changing] = rng.random(len(changing)) < on_s[changing] / (on_s + off_s)[changing]
    switch_s[changing] = rng.exponential(np.where(on[changing], on_s[changing], off_s[changing]))
    return ColumnState(
        0.0,
        knowledge=tuple(start_knowledge(kind) for kind in columns.kinds),
        record=ClientRecord(log_s=zeros, log_w=zeros, measured=none, tried=untried, explored=none),
        last_round=none,
        busy_s=np.zeros(n),
        left_j=columns.start_j[columns.entry],
        on=on,
        switch_s=switch_s,
    )


def mask_available(columns: FleetColumns, state: ColumnState) -> Flags:
    """Mask the clients that are on and whose battery is neither empty nor below its floor."""
    return state.on & columns.select_batteries(state.left_j, np.arange(len(columns))).mask_sufficient()


def advance_clock(columns: FleetColumns, state: ColumnState, until_s: float, rng: np.random.Generator) -> ColumnState:
    """Move the clock to ``until_s``: availability changes; batteries are left to ``drain_idle``."""
    on, switch_s = state.on, state.switch_s
    if (due := np.flatnonzero(switch_s <= until_s)).size:
        on, switch_s = on.copy(), switch_s.copy()
    while due.size:
        on[due] = ~on[due]
        mean_s = np.where(on[due], columns.on_s[columns.entry[due]], columns.off_s[columns.entry[due]])
        switch_s[due] += rng.exponential(mean_s)
        due = due[switch_s[due] <= until_s]
    return dataclasses.replace(state, clock_s=until_s, on=on, switch_s=switch_s)


def drain_idle(columns: FleetColumns, state: ColumnState, idle: Flags, seconds: float) -> ColumnState:
    """Charge the batteries of the clients in ``idle`` for idling: they draw at most what is left and charged."""
    with_battery = np.flatnonzero(idle & np.isfinite(state.left_j))
    if not with_battery.size:
        return state
    left_j = state.left_j.copy()
    batteries = columns.select_batteries(left_j[with_battery], with_battery)
    left_j[with_battery] = batteries.draw_idle(columns.waiting_w(with_battery), seconds)[1].left_j
    return dataclasses.replace(state, left_j=left_j)


def wait_until_available(columns: FleetColumns, state: ColumnState, number: int, seed: int) -> ColumnState:
    """Advance the clock until a client is available.

    Raises:
        RunFailed: No client will ever be available.
    """
    rng, clients = make_generator(seed, number, "waiting", "columns"), np.arange(len(columns))
    while not mask_available(columns, state).any():
        charged_s = columns.select_batteries(state.left_j, clients).recharge_time_s(columns.waiting_w(clients))
        ready_s = np.maximum(state.clock_s + charged_s, np.where(state.on, 0.0, state.switch_s))
        until_s = float(ready_s.min())
        if not math.isfinite(until_s):
            raise RunFailed(
                f"round {number}: no client can be asked, now or later; all are away for good, or too empty"
            )
        until_s = max(until_s, math.nextafter(state.clock_s, math.inf))
        everyone = np.ones(len(columns), dtype=np.bool_)
        state = advance_clock(columns, drain_idle(columns, state, everyone, until_s - state.clock_s), until_s, rng)
    return state


COLUMN_SELECTORS = ("all", "random", "oort")
"""The selectors that exist for columns."""


def select_columns(
    experiment: Experiment,
    columns: FleetColumns,
    state: ColumnState,
    number: int,
) -> Rows:
    """Select the clients of round ``number`` among those that are available, ascending."""
    offered = np.flatnonzero(mask_available(columns, state))
    spec, rng = experiment.selection, make_generator(experiment.seed, number, "select", "columns")
    wanted = len(offered) if spec.count is None else math.ceil(spec.count * spec.over_commit - 1e-9)
    count = min(wanted, len(offered))
    if spec.name == "all" or count == len(offered):
        return offered[:count]
    if spec.name == "random":
        return np.sort(rng.choice(offered, count, replace=False, shuffle=False))
    pairs = zip(columns.kinds, state.knowledge, strict=True)
    fastest_s = [float(known.fitted.step_s[kind.to_candidate(kind.top)]) for kind, known in pairs]
    expected_s = columns.link_s[columns.entry[offered]] + (
        (columns.steps[offered] + WARM_UP_STEPS) * columns.gather(fastest_s, offered)
    )
    seconds = np.where(state.last_round[offered] > 0, state.busy_s[offered], expected_s)
    options = complete_options("oort", spec.options)
    return np.sort(
        offered[select_oort_rows(seconds, state.last_round[offered], rng, number=number, count=count, options=options)]
    )


def select_oort_rows(
    seconds: Floats,
    last_round: Rows,
    rng: np.random.Generator,
    *,
    number: int,
    count: int,
    options: Mapping[str, float],
) -> Rows:
    """Select rows as ``select_oort`` does where nobody reports a loss: by speed, and by how long ago they took part.

    Without losses the statistical utility of all clients is equal, and the pacer stays where it begins.

    Args:
        seconds: Duration of each client's last round, or the one expected, shape (n,).
        last_round: Round in which it took part last; 0 for never, shape (n,).
        rng: Source of randomness.
        number: The round.
        count: Number of clients to select, at most n.
        options: The selector's options, complete.
    """
    known, unknown = np.flatnonzero(last_round > 0), np.flatnonzero(last_round == 0)
    wanted = round_randomly(count * exploration_share(number, options), rng)
    exploring = min(len(unknown), max(wanted, count - len(known)))
    taken = unknown[_draw_weighted(1.0 / seconds[unknown], exploring, rng)]
    left = count - exploring
    if left == 0:
        return taken
    preferred_s = np.percentile(seconds, options["preferred_percentile"])
    utility = 1.0 + np.sqrt(UNCERTAINTY * math.log(max(1, number)) / last_round[known])
    utility *= np.minimum(1.0, preferred_s / seconds[known]) ** options["slow_penalty"]
    threshold = options["cut_off"] * np.partition(utility, len(utility) - left)[len(utility) - left]
    admitted = np.flatnonzero(utility >= threshold)
    return np.concatenate([taken, known[admitted[_draw_weighted(utility[admitted], left, rng)]]])


def _draw_weighted(weights: Floats, size: int, rng: np.random.Generator) -> Rows:
    """Draw rows in proportion to positive weights as ``sample_without_replacement`` does, in no order: O(n)."""
    arrival = rng.exponential(size=len(weights)) / weights
    return np.argpartition(arrival, size - 1)[:size] if 0 < size < len(arrival) else np.arange(len(arrival))[:size]

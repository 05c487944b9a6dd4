"""One board under a deadline in every round, its measured table as the truth: energy and regret against the oracle.

The game of BoFL (Guo et al., Middleware 2022): N minibatches per round, a deadline drawn uniformly from [1, r] times
the fastest possible round, only the work's energy counts. The oracle knows the table and splits every round over the
best two modes. Regret is energy beyond the oracle's, saving that below the top mode's, both over whole runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from fedge.choice.measured import rows_of
from fedge.choice.mixing import best_split
from fedge.errors import UnknownName
from fedge.evaluation.knowledge import background_of, board_of
from fedge.experiment import ExplorationSpec
from fedge.explorers import explorer_for
from fedge.interfaces import Predictor
from fedge.pareto import nearest_row
from fedge.policies import policy_for
from fedge.predictors import DEFAULT, predictor_for
from fedge.rounds import Player, play
from fedge.seeds import generator
from fedge.studies.bofl import Bofl
from fedge.studies.fleet.nothing import Idle
from fedge.types import (
    DeviceSpec,
    Figure,
    Floats,
    Goal,
    LinkUse,
    Measurement,
    Modes,
    PowerMode,
    Predictions,
    ProfileTable,
    Workload,
)

LATE = 0.01
"""A round counts as missed when it ends later than its deadline by more than this share."""
LEARNT = 10
"""From this round on a board should know its modes."""
POLICIES = ("fedge", "bofl", "maxn", "oracle")
EXPLORER = "active"
MODES = 15
"""So many different modes a board may try here."""
EXPLORATION = ExplorationSpec(share=0.5, probe_s=0.5, slack=0.0, foresight=6.0, modes=MODES)
"""How it tries them; chosen by us. It prepares for deadlines of all kinds, because they are drawn anew every round."""
NO_LINK = LinkUse(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class ModeRound:
    """One round: seconds and joules of its work, those of the oracle and of the top mode, and the modes worked in.

    ``explored`` is how many different modes were tried so far.
    """

    round: int
    deadline_s: float
    time_s: float
    energy_j: float
    oracle_j: float
    maxn_j: float
    explored: int
    missed: bool
    modes: str


@dataclass(frozen=True, slots=True)
class ModeChoice:
    """One run of the game."""

    policy: str
    ratio: float
    seed: int
    rounds: tuple[ModeRound, ...]

    @property
    def regret_pct(self) -> float:
        """Energy beyond the oracle's over all rounds, trials included."""
        return _regret_pct(self.rounds)

    @property
    def regret_after10_pct(self) -> float:
        """The same from round ``LEARNT`` on; of all rounds in a shorter run."""
        return _regret_pct([one for one in self.rounds if one.round >= LEARNT] or self.rounds)

    @property
    def energy_saved_pct(self) -> float:
        """Energy below that of every round in the top mode."""
        return 100.0 * (1.0 - sum(r.energy_j for r in self.rounds) / sum(r.maxn_j for r in self.rounds))

    @property
    def deadlines_missed(self) -> int:
        return sum(one.missed for one in self.rounds)

    @property
    def modes_explored(self) -> int:
        return self.rounds[-1].explored


def _regret_pct(played: Sequence[ModeRound]) -> float:
    return 100.0 * (sum(r.energy_j for r in played) / sum(r.oracle_j for r in played) - 1.0)


def check_policy(name: str, where: str = "policy") -> None:
    """Raise ``UnknownName`` for the field ``where`` unless ``study`` knows the policy."""
    if name not in POLICIES:
        raise UnknownName(where, name, POLICIES)


def study(
    table: ProfileTable,
    ratio: float,
    rounds: int,
    steps: int,
    policy: str,
    seed: int,
    *,
    exploration: ExplorationSpec = EXPLORATION,
    predictor: str = DEFAULT,
) -> ModeChoice:
    """Play ``rounds`` rounds of ``steps`` minibatches with deadlines up to ``ratio`` times the fastest.

    ``policy`` is one of ``POLICIES``. The predictor's priors never saw the table's workload. Raises ``UnknownName``.
    """
    check_policy(policy)
    truth = _Truth.of(table)
    shares = generator(seed, "deadlines").uniform(1.0, ratio, rounds)
    deadlines_s = [float(share) * steps * truth.fastest_s for share in shares]
    if policy == "fedge":
        board = _Board(table, truth, exploration, predictor, seed)
        played = [board.play(steps, d, rounds - number) for number, d in enumerate(deadlines_s, start=1)]
    elif policy == "bofl":
        bofl = Bofl(table.modes, truth.maxn, truth.part, seed)
        played = [bofl.play(steps, deadline_s) for deadline_s in deadlines_s]
    elif policy == "oracle":
        played = [truth.best(steps, deadline_s) for deadline_s in deadlines_s]
    else:
        played = [(truth.part(truth.maxn, steps),) for _ in deadlines_s]
    return ModeChoice(policy, ratio, seed, tuple(_rows(truth, steps, deadlines_s, played)))


Parts = tuple[Measurement, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Truth:
    """What the table says: seconds and joules per minibatch of every mode, and which row is the top mode."""

    table: ProfileTable
    step_j: Floats
    maxn: int

    @classmethod
    def of(cls, table: ProfileTable) -> _Truth:
        return cls(table, table.step_s * table.power_w, nearest_row(table.modes, table.maxn))

    @property
    def fastest_s(self) -> float:
        return float(self.table.step_s.min())

    def part(self, row: int, steps: int) -> Measurement:
        """``steps`` minibatches in a row's mode."""
        table = self.table
        return Measurement(table.modes[row], steps, float(table.step_s[row]), float(table.power_w[row]))

    def best(self, steps: int, deadline_s: float) -> Parts:
        """The oracle's round: least energy within the deadline over all splits into two modes."""
        split = best_split(self.table.step_s, self.step_j, steps, deadline_s)
        if split is None:
            return (self.part(int(np.argmin(self.table.step_s)), steps),)
        slow = (self.part(split.slow, split.steps),) if split.steps else ()
        return (*slow, self.part(split.fast, steps - split.steps))


class TableDevice:
    """A ``fedge.interfaces.Device`` that replays a measured table without noise; waiting costs nothing, as in BoFL."""

    def __init__(self, table: ProfileTable) -> None:
        self.spec = board_of(table.device) or _unknown_board(table)
        self._table = table
        self._mode = table.modes[nearest_row(table.modes, table.maxn)]
        self._worked: PowerMode | None = None

    def idle_w(self, mode: PowerMode) -> float:
        return 0.0

    @contextmanager
    def in_mode(self, mode: PowerMode) -> Iterator[None]:
        found, self._mode = self._mode, mode
        try:
            yield
        finally:
            self._mode = found

    def measure(
        self, workload: Workload, steps: int, work: Callable[[int], object], limit_s: float | None = None
    ) -> Measurement:
        row = rows_of(self._table.modes, [self._mode])[self._mode]
        switch_s = 0.0 if self._worked not in (None, self._mode) else None
        self._worked = self._mode
        step_s = float(self._table.step_s[row])
        count = steps if limit_s is None else max(1, min(steps, int(limit_s / step_s)))
        power_w = float(self._table.power_w[row])
        work(count)
        return Measurement(self._mode, count, step_s, power_w, switch_s=switch_s)


class _OncePerMode:
    """A predictor that is fitted anew only when another mode was measured: the table says the same every time."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._fitted: frozenset[PowerMode] | None = None
        self._predictions: Predictions | None = None

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        firsts = {measurement.mode: measurement for measurement in reversed(measurements)}
        if self._fitted != firsts.keys():
            self._predictor.fit(list(reversed(firsts.values())))
            self._fitted, self._predictions = frozenset(firsts), None
        return self

    def predict(self, modes: Modes) -> Predictions:
        if self._predictions is None or self._predictions.modes is not modes:
            self._predictions = self._predictor.predict(modes)
        return self._predictions


class _Board:
    """A board that learns its modes over the rounds, by ``fedge.rounds``."""

    def __init__(
        self, table: ProfileTable, truth: _Truth, exploration: ExplorationSpec, predictor: str, seed: int
    ) -> None:
        knowledge = replace(background_of(table, layered=False).knowledge, seed=seed)
        maxn = table.modes[truth.maxn]
        self._measurements: Parts = ()
        self._player = Player(
            board="board",
            device=TableDevice(table),
            predictor=_OncePerMode(predictor_for(predictor, knowledge)),
            policy=policy_for("balanced"),
            workload=Workload(table.workload, table.batch_size),
            candidates=table.modes,
            maxn=maxn,
            waiting=maxn,
            exploration=exploration,
            explorer=lambda modes: explorer_for(EXPLORER, modes, knowledge),
        )

    def play(self, steps: int, deadline_s: float, rounds_left: int) -> Parts:
        """One round; what it measured is remembered."""
        goal = Goal("balanced", steps, deadline_s, rounds_left=rounds_left)
        played = play(self._player, goal, self._measurements, NO_LINK, Idle({}))
        allowed_s = () if played.allowed_s is None else (played.allowed_s,)
        self._player = replace(self._player, allowed_s=(*self._player.allowed_s, *allowed_s))
        mixed = () if played.mixed is None else (played.mixed,)
        parts = (*played.probes, *mixed, played.measured)
        self._measurements = (*self._measurements, *parts)
        return parts


def _rows(truth: _Truth, steps: int, deadlines_s: Sequence[float], played: Sequence[Parts]) -> Iterator[ModeRound]:
    seen: set[PowerMode] = set()
    for number, (deadline_s, parts) in enumerate(zip(deadlines_s, played, strict=True), start=1):
        seen |= {part.mode for part in parts}
        time_s = sum(part.work_s for part in parts)
        yield ModeRound(
            round=number,
            deadline_s=deadline_s,
            time_s=time_s,
            energy_j=sum(part.work_j for part in parts),
            oracle_j=sum(part.work_j for part in truth.best(steps, deadline_s)),
            maxn_j=steps * float(truth.step_j[truth.maxn]),
            explored=len(seen),
            missed=time_s > (1.0 + LATE) * deadline_s,
            modes=", ".join(f"{part.steps} in {part.mode}" for part in parts),
        )


def _unknown_board(table: ProfileTable) -> DeviceSpec:
    """A board that the catalogue does not have, as far as its table tells."""
    columns = [tuple(sorted(set(table.modes.knobs[:, knob].tolist()))) for knob in range(4)]
    unknown = Figure(float("nan"), "estimated", "unknown board")
    return DeviceSpec(
        name=table.device,
        title=table.device,
        cores=tuple(int(value) for value in columns[0]),
        cpu_mhz=columns[1],
        gpu_mhz=columns[2],
        mem_mhz=columns[3],
        presets={},
        default_preset="",
        ram_gb=unknown,
        idle_w=unknown,
        max_w=unknown,
        gpu_gflops=unknown,
        mem_gbps=unknown,
        cpu_score=unknown,
        rails=(),
        total_power="",
        accelerators=(),
        jetpacks=(),
    )

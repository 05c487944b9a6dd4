"""A campaign: MAXN first, then the modes that an explorer asks for, each measured until settled and journaled."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedge.errors import BadInput, BoardError
from fedge.explorers import EXPLORERS, explorer_for
from fedge.explorers.order import falling
from fedge.modes import index_of, modes_of
from fedge.profiling.bench import Bench
from fedge.profiling.journal import Failure, Header, Journal
from fedge.profiling.measuring import Settled, Told, measure
from fedge.profiling.stability import Rule
from fedge.registry import load
from fedge.types import PowerMode

ALL = 0
MOST_FAILURES = 3
"""So many modes may fail in a row before a campaign stops; chosen by us."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a campaign measures: so many modes (``ALL`` for every one), picked by ``explorer`` with ``seed``."""

    modes: int
    explorer: str
    seed: int = 0
    rule: Rule = field(default_factory=Rule)


class Stopped(BoardError):
    """A campaign gave up because modes failed in a row; what was measured is kept."""


def header_of(bench: Bench, wanted: Wanted) -> Header:
    """What makes a campaign this one."""
    return Header(
        board=bench.board,
        workload=bench.workload.name,
        batch_size=bench.workload.batch_size,
        kind=bench.workload.kind,
        emulated=bench.emulated,
        label=bench.label,
        source=bench.source,
        total_power=bench.total_power,
        explorer="all" if wanted.modes == ALL else wanted.explorer,
        modes=wanted.modes,
        seed=wanted.seed,
        rule=wanted.rule.as_data(),
        software=dict(bench.software),
    )


def check(bench: Bench, wanted: Wanted) -> None:
    """Raise ``BadInput`` for more modes than the board has and for an explorer that nobody knows."""
    count = len(bench.candidates)
    if not 0 <= wanted.modes <= count:
        raise BadInput("--modes", str(wanted.modes), f"from 1 to {count}, or all")
    if wanted.modes != ALL:
        load("--explorer", wanted.explorer, EXPLORERS)


class Campaign:
    """Drives a bench: ``next`` says which mode, ``measure`` does it; both write the journal first of all."""

    def __init__(self, bench: Bench, wanted: Wanted, journal: Journal) -> None:
        self.bench, self.wanted, self.journal = bench, wanted, journal
        self.total = wanted.modes or len(bench.candidates)

    def next(self) -> PowerMode | None:
        """The mode to measure now; None when all are done or the explorer has no more."""
        past = self.journal.past
        while not past.left:
            modes = self._more()
            if not modes:
                return None
            self.journal.plan(modes)
        return past.left[0]

    def measure(self, mode: PowerMode, told: Told = lambda _: None) -> Settled | Failure:
        """Measure ``mode`` until it has settled; a board that fails gives a ``Failure``, the third in a row raises."""
        begin_s = self.bench.clock.now_s()
        try:
            settled = measure(self.bench, mode, self.wanted.rule, told)
        except BoardError as error:
            failure = Failure(mode, str(error), round(self.bench.clock.now_s() - begin_s, 3))
            self.journal.fail(failure)
            self._check_failures(failure)
            return failure
        self.journal.finish(settled)
        return settled

    def _check_failures(self, last: Failure) -> None:
        if self.journal.past.failed_in_a_row < MOST_FAILURES:
            return
        self.journal.stop()
        raise Stopped(
            f"{MOST_FAILURES} modes failed in a row, the last ({last.mode}) with: {last.reason}. Mend that, then give "
            "the same command again: it goes on with these modes"
        )

    def _more(self) -> list[PowerMode]:
        """What is planned next: MAXN by itself, then everything else at once; falling, as boards like it."""
        planned = self.journal.past.planned
        maxn, missing = self.bench.knowledge.maxn, self.total - len(planned)
        if not planned and index_of(self.bench.candidates, maxn) is not None:
            return [maxn]
        if missing <= 0:
            return []
        known = set(planned)
        asked = self.bench.candidates if self.wanted.modes == ALL else self._asked(missing)
        fresh = [mode for mode in dict.fromkeys(asked) if mode not in known][:missing]
        return list(falling(modes_of(fresh))) if fresh else []

    def _asked(self, missing: int) -> list[PowerMode]:
        """What a fresh explorer, told of all that was measured, asks for: so it is the same after a new start.

        It was not told of the modes that failed, so it may propose them again: it is asked for as many more.
        """
        past = self.journal.past
        explorer = explorer_for(self.wanted.explorer, self.bench.candidates, self.bench.knowledge, "--explorer")
        explorer.tell([settled.as_measurement() for settled in past.done])
        return list(explorer.ask(missing + len(past.failed)))

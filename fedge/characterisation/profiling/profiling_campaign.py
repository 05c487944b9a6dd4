"""A profiling campaign: MAXN first, then an explorer's modes, each measured until settled and journaled."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedge.characterisation.profiling.mode_measurement import SettledMode, VerdictCallback, measure_mode
from fedge.characterisation.profiling.profiling_bench import ProfilingBench
from fedge.characterisation.profiling.profiling_journal import ModeFailure, ProfilingHeader, ProfilingJournal
from fedge.characterisation.profiling.stability import StabilityRule
from fedge.errors import BadInput, BoardError
from fedge.modes import find_mode_index, stack_modes
from fedge.predictors.explorers import EXPLORERS, load_explorer
from fedge.predictors.explorers.profiling_order import sort_high_to_low
from fedge.registry import load_named
from fedge.types import PowerMode

ALL_MODES = 0
MAX_CONSECUTIVE_FAILURES = 3
# Consecutive failures after which a campaign stops. Default: one may be an accident, three indicate a broken board.


@dataclass(frozen=True, slots=True)
class ProfilingRequest:
    """The settings of a campaign.

    Attributes:
        modes: Number of modes; ``ALL_MODES`` for every one.
        explorer: Name of the explorer that chooses them.
        seed: Seed of random choices.
        rule: Criteria of a settled mode.
    """

    modes: int
    explorer: str
    seed: int = 0
    rule: StabilityRule = field(default_factory=StabilityRule)


class CampaignStopped(BoardError):
    """A campaign stopped after consecutive failures; measurements so far are kept."""


def build_header(bench: ProfilingBench, request: ProfilingRequest) -> ProfilingHeader:
    """Return the identity of a campaign."""
    return ProfilingHeader(
        board=bench.board,
        workload=bench.workload.name,
        batch_size=bench.workload.batch_size,
        kind=bench.workload.kind,
        emulated=bench.emulated,
        label=bench.label,
        source=bench.source,
        total_power=bench.total_power,
        explorer="all" if request.modes == ALL_MODES else request.explorer,
        modes=request.modes,
        seed=request.seed,
        rule=request.rule.to_dict(),
        software=dict(bench.software),
    )


def check_request(bench: ProfilingBench, request: ProfilingRequest) -> None:
    """Check the number of modes and the explorer.

    Raises:
        BadInput: If there are fewer modes on the board or the explorer is unknown.
    """
    count = len(bench.candidates)
    if not 0 <= request.modes <= count:
        raise BadInput("--modes", str(request.modes), f"from 1 to {count}, or all")
    if request.modes != ALL_MODES:
        load_named("--explorer", request.explorer, EXPLORERS)


class ProfilingCampaign:
    """Drives a bench: chooses the next mode, measures it, and writes the journal before anything else."""

    def __init__(self, bench: ProfilingBench, request: ProfilingRequest, journal: ProfilingJournal) -> None:
        self.bench, self.request, self.journal = bench, request, journal
        self.total = request.modes or len(bench.candidates)

    def choose_next_mode(self) -> PowerMode | None:
        """Return the mode to measure next, or None if all are done or the explorer has no more."""
        past = self.journal.past
        while not past.remaining_modes:
            modes = self._plan_more()
            if not modes:
                return None
            self.journal.write_plan(modes)
        return past.remaining_modes[0]

    def measure_and_record(
        self, mode: PowerMode, report: VerdictCallback = lambda _: None
    ) -> SettledMode | ModeFailure:
        """Measure ``mode`` until it has settled and record the result.

        Args:
            mode: Mode to measure.
            report: Called with the verdict after every chunk.

        Returns:
            The measurement, or the failure of the board.

        Raises:
            CampaignStopped: After ``MAX_CONSECUTIVE_FAILURES`` consecutive failures.
        """
        begin_s = self.bench.clock.now_s()
        try:
            settled = measure_mode(self.bench, mode, self.request.rule, report)
        except BoardError as error:
            failure = ModeFailure(mode, str(error), round(self.bench.clock.now_s() - begin_s, 3))
            self.journal.write_failure(failure)
            self._check_failures(failure)
            return failure
        self.journal.write_result(settled)
        return settled

    def _check_failures(self, last: ModeFailure) -> None:
        if self.journal.past.failed_in_a_row < MAX_CONSECUTIVE_FAILURES:
            return
        self.journal.write_stop()
        raise CampaignStopped(
            f"{MAX_CONSECUTIVE_FAILURES} modes failed in a row, the last ({last.mode}) with: {last.reason}. Mend "
            f"that, then give "
            "the same command again: it goes on with these modes"
        )

    def _plan_more(self) -> list[PowerMode]:
        """Return the modes to measure next: MAXN alone first, then all others at once in descending order."""
        planned = self.journal.past.planned
        maxn, missing = self.bench.knowledge.maxn, self.total - len(planned)
        if not planned and find_mode_index(self.bench.candidates, maxn) is not None:
            return [maxn]
        if missing <= 0:
            return []
        known = set(planned)
        proposed = self.bench.candidates if self.request.modes == ALL_MODES else self._ask_explorer(missing)
        fresh = [mode for mode in dict.fromkeys(proposed) if mode not in known][:missing]
        return list(sort_high_to_low(stack_modes(fresh))) if fresh else []

    def _ask_explorer(self, missing: int) -> list[PowerMode]:
        """Return the proposals of a new explorer that knows all measurements, so that they are the same after a
        restart.

        The explorer does not know the failed modes and may propose them again; as many additional modes are requested.
        """
        past = self.journal.past
        explorer = load_explorer(self.request.explorer, self.bench.candidates, self.bench.knowledge, "--explorer")
        explorer.tell([settled.as_measurement() for settled in past.done])
        return list(explorer.ask(missing + len(past.failed)))

"""The profile of a board: MAXN first, then an explorer's modes, each measured until settled and journaled."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fedge.atomic_files import probe_folder
from fedge.characterisation.mode_measurement import (
    ProfilingBench,
    SettledMode,
    VerdictCallback,
    build_emulated_bench,
    measure_mode,
    open_worker_bench,
    resolve_workload,
    wait_for_board,
)
from fedge.characterisation.profiling_journal import (
    ModeFailure,
    ProfilingHeader,
    ProfilingHistory,
    ProfilingJournal,
    last_temperature_c,
    open_profiling_journal,
    profiling_journal_path,
    profiling_record_path,
    save_campaign,
)
from fedge.characterisation.stability import StabilityRule
from fedge.characterisation.sweep_plan import EMULATED, HERE
from fedge.costs.cost_profile import WorkloadKind
from fedge.errors import BadInput, BoardError, prefix_errors, refuse_unwritable
from fedge.knowledge.knowledge_folder import format_date
from fedge.modes import ALL_MODES, find_mode_index, parse_mode_count, stack_modes
from fedge.predictors.explorers import EXPLORERS, load_explorer
from fedge.predictors.explorers.profiling_order import sort_high_to_low
from fedge.registry import load_named
from fedge.types import PowerMode

if TYPE_CHECKING:
    from fedge.devices.local_board import NodeSettings

MAX_CONSECUTIVE_FAILURES = 3
# Consecutive failures after which a campaign stops. Default: one may be an accident, three indicate a broken board.


@dataclass(frozen=True, slots=True)
class ProfilingRequest:
    """The settings of a campaign; ``modes`` may be ``ALL_MODES``."""

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
        recorded=bench.recorded,
        label=bench.label,
        source=bench.source,
        total_power=bench.total_power,
        explorer="all" if request.modes == ALL_MODES else request.explorer,
        modes=request.modes,
        seed=request.seed,
        rule=asdict(request.rule),
        software=dict(bench.software),
    )


def check_request(bench: ProfilingBench, request: ProfilingRequest) -> None:
    """Check the number of modes and the explorer; raises ``BadInput``."""
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
        """Measure ``mode`` until it has settled, with a report after every chunk, and record the result or the failure.

        Raises:
            CampaignStopped: After ``MAX_CONSECUTIVE_FAILURES`` consecutive failures.
        """
        begin_s = self.bench.clock.now_s()
        try:
            settled = measure_mode(self.bench, mode, self.request.rule, report)
        except BoardError as error:
            failure = ModeFailure(mode, str(error), round(self.bench.clock.now_s() - begin_s, 3))
            self.journal.write_failure(failure)
            if self.journal.past.failed_in_a_row >= MAX_CONSECUTIVE_FAILURES:
                self.journal.write_stop()
                raise CampaignStopped(
                    f"{MAX_CONSECUTIVE_FAILURES} modes failed in a row, the last ({mode}) with: {error}. "
                    "Mend that, then give the same command again: it goes on with these modes"
                ) from error
            return failure
        self.journal.write_result(settled, format_date(time.time()) if self.bench.runs_in_real_time else None)
        return settled

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
        """Ask a new explorer that knows all measurements, so that its proposals are the same after a restart.

        It does not know the failed modes and may propose them again; as many additional modes are requested, and it is
        asked again if it proposes these alone.
        """
        past = self.journal.past
        explorer = load_explorer(self.request.explorer, self.bench.candidates, self.bench.knowledge, "--explorer")
        explorer.tell([settled.as_measurement() for settled in past.done])
        for _ in range(1 + len(past.failed)):
            proposed = list(explorer.ask(missing + len(past.failed)))
            if not {*proposed} <= {*past.planned}:
                break
        return proposed


JETSON_RELEASE_FILE = Path("/etc/nv_tegra_release")


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """Options of a profile.

    Attributes:
        board: ``here``, or a board of the catalogue, which is emulated.
        out: The table to write.
        modes: Number of modes, or ``all``.
        batch_size: Samples per step; None for the workload's own.
        settings: Settings file of the local board; None for its own.
        max_mode_s: Seconds after which a mode is abandoned, settled or not; None for the rule's own.
        budget_s: Seconds of board time after which no further mode is begun; None for no limit.
        wait: Whether to wait, within the budget, while a run works with this board; otherwise that is an error.
        kind: Kind of step; only emulated boards infer.
        input_shape: Shape of one sample of the user's own network, as ``3x224x224``; emulated boards only.
    """

    board: str
    workload: str
    out: Path
    modes: str = "50"
    explorer: str = "active"
    batch_size: int | None = None
    seed: int = 0
    settings: Path | None = None
    max_mode_s: float | None = None
    budget_s: float | None = None
    wait: bool = False
    kind: WorkloadKind = "train"
    input_shape: str | None = None


@dataclass(frozen=True, slots=True)
class ProfileOutcome:
    """A profile after one start, which measured ``new`` of the ``modes``.

    The paths of the table and of its record are None if no mode was measured. Board time and energy are those of all
    starts.
    """

    file: str | None
    record: str | None
    modes: int
    new: int
    not_settled: int
    failed: int
    board_s: float
    board_j: float
    finished: bool


ShowProgress = Callable[[ProfilingCampaign], AbstractContextManager[Callable[[str], None]]]


def profile_board(
    options: ProfileOptions, *, note: Callable[[str], None], show_progress: ShowProgress
) -> ProfileOutcome:
    """Measure the remaining modes, and write the table and its record.

    An interrupt, or a board that fails repeatedly, leaves a table of the finished modes. ``note`` shows a note to the
    user; ``show_progress`` opens a progress line, which receives the present mode.

    Raises:
        BadInput: The input is invalid; raised before any measurement.
        CampaignStopped: The board fails repeatedly.
    """
    rule = StabilityRule() if options.max_mode_s is None else StabilityRule(limit_s=options.max_mode_s)
    request = ProfilingRequest(parse_mode_count(options.modes), options.explorer, options.seed, rule)
    journal_path = _check_table_path(options.out)
    waited_s = _wait_for_board(options, note)
    with _open_bench(options, last_temperature_c(journal_path)) as bench:
        check_request(bench, request)
        options.out.absolute().parent.mkdir(parents=True, exist_ok=True)
        header = build_header(bench, request)
        with open_profiling_journal(journal_path, header) as journal:
            campaign, before, finished = ProfilingCampaign(bench, request, journal), len(journal.past.done), False
            if before:
                note(f"going on after {before} of {campaign.total} modes")
            try:
                finished = _run_campaign(campaign, options.budget_s, note, show_progress, waited_s=waited_s)
            except KeyboardInterrupt:
                done = len(journal.read_from_disk().done)
                state = f"{options.out} holds the {done} modes done so far" if done else "no mode is done yet"
                note(f"{state}; the same command goes on")
                raise
            finally:
                save_campaign(options.out, header, journal.read_from_disk(), finished=finished)
            return _build_outcome(options.out, journal.past, before, finished=finished)


def _run_campaign(
    campaign: ProfilingCampaign,
    budget_s: float | None,
    note: Callable[[str], None],
    show_progress: ShowProgress,
    *,
    waited_s: float,
) -> bool:
    """Measure the remaining modes until none is left or the budget is spent, of which ``waited_s`` are gone; return
    whether none is left.
    """
    clock, begin_s = campaign.bench.clock, campaign.bench.clock.now_s() - waited_s
    with show_progress(campaign) as report:
        while (mode := campaign.choose_next_mode()) is not None:
            if budget_s is not None and clock.now_s() - begin_s >= budget_s:
                note(f"the budget of {budget_s:g} s is spent; the same command goes on")
                return False
            report(f"{mode}")
            result = campaign.measure_and_record(
                mode,
                lambda verdict, mode=mode: report(f"{mode}  {verdict.why or 'settled'}"),  # type: ignore[misc]
            )
            if isinstance(result, ModeFailure):
                note(f"{result.mode} failed and is left out: {result.reason}")
            elif result.note:
                note(f"{result.mode}: {result.note}")
    return True


def _build_outcome(out: Path, past: ProfilingHistory, before: int, *, finished: bool) -> ProfileOutcome:
    board_s, board_j = past.cost
    return ProfileOutcome(
        file=str(out) if past.done else None,
        record=str(profiling_record_path(out)) if past.done else None,
        modes=len(past.done),
        new=len(past.done) - before,
        not_settled=sum(not mode.verdict.settled for mode in past.done),
        failed=len(past.failed),
        board_s=board_s,
        board_j=board_j,
        finished=finished,
    )


@contextmanager
def _open_bench(options: ProfileOptions, temperature_c: float | None) -> Iterator[ProfilingBench]:
    """Open the board for measuring; an emulated one continues at ``temperature_c`` (degrees Celsius)."""
    if options.board != HERE:
        yield build_emulated_bench(
            options.board.removeprefix(EMULATED),
            workload=options.workload,
            batch_size=options.batch_size,
            seed=options.seed,
            temperature_c=temperature_c,
            kind=options.kind,
            input_shape=options.input_shape,
        )
        return
    if options.kind != "train" or options.input_shape is not None:
        got = "--kind infer" if options.kind != "train" else "--input-shape"
        raise BadInput("--board here", got, f"training of a built-in task or a task file, or {EMULATED}NAME")
    workload = resolve_workload(options.workload, options.batch_size)
    with open_worker_bench(_load_settings(options), workload, options.seed) as bench:
        yield bench


def _wait_for_board(options: ProfileOptions, note: Callable[[str], None]) -> float:
    """Wait while a run works with this board, if the options say so; return the seconds waited."""
    if options.board != HERE:
        return 0.0
    longest_s = math.inf if options.budget_s is None else options.budget_s
    return wait_for_board(_load_settings(options), longest_s if options.wait else 0.0, note)


def _load_settings(options: ProfileOptions) -> NodeSettings:
    from fedge.devices.local_board import SETTINGS_PATH, load_local_settings

    if options.settings is None and not SETTINGS_PATH.exists() and not JETSON_RELEASE_FILE.exists():
        right = f"{EMULATED}NAME, a board of `fedge devices list`"
        raise BadInput("--board here", "a machine that is no Jetson", right)
    return load_local_settings(options.settings)


def _check_table_path(out: Path) -> Path:
    """Return the journal's path; refuse an unwritable table, and one without a journal, which would be overwritten."""
    journal = profiling_journal_path(out)
    if out.is_dir():
        raise BadInput("--out", f"{out}, which is a folder", "the path of a file")
    for path in (out, profiling_record_path(out)):
        if path.exists() and not journal.exists():
            raise BadInput("--out", f"{path}, which exists without a journal", "a new file")
    with prefix_errors("--out"), refuse_unwritable(out, "the path of a file in a folder that can be made"):
        probe_folder(out.parent)
    return journal

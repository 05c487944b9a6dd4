"""The profile of a board: its modes measured until they have settled, into a table and a record of the cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedge.characterisation.knob_values import EMULATED, HERE
from fedge.characterisation.profiling import profiling_journal, profiling_record
from fedge.characterisation.profiling.emulated_bench import build_emulated_bench
from fedge.characterisation.profiling.profiling_bench import ProfilingBench
from fedge.characterisation.profiling.profiling_campaign import (
    ALL_MODES,
    ProfilingCampaign,
    ProfilingRequest,
    build_header,
    check_request,
)
from fedge.characterisation.profiling.profiling_journal import ModeFailure, ProfilingHistory, open_profiling_journal
from fedge.characterisation.profiling.stability import StabilityRule
from fedge.errors import BadInput

JETSON_RELEASE_FILE = Path("/etc/nv_tegra_release")


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """Options of a profile.

    Attributes:
        board: ``here``, or a board of the catalogue, which is emulated.
        workload: Name of the workload.
        out: The table to write.
        modes: Number of modes, or ``all``.
        explorer: Name of the explorer that picks the modes.
        batch_size: Samples per step; None for the workload's own.
        seed: Seed of random choices.
        settings: Settings file of the local board; None for its own.
        limit_s: Seconds after which a mode is abandoned, settled or not; None for the rule's own.
    """

    board: str
    workload: str
    out: Path
    modes: str = "50"
    explorer: str = "active"
    batch_size: int | None = None
    seed: int = 0
    settings: Path | None = None
    limit_s: float | None = None

    @property
    def rule(self) -> StabilityRule:
        """Rule that decides when a mode has settled."""
        return StabilityRule() if self.limit_s is None else StabilityRule(limit_s=self.limit_s)


@dataclass(frozen=True, slots=True)
class ProfileOutcome:
    """A profile after one start.

    Attributes:
        file: Path of the table; None if no mode was measured.
        record: Path of the record of the cost; None if no mode was measured.
        modes: Number of measured modes.
        new: Number of modes measured by this start.
        not_settled: Number of measured modes that did not settle.
        failed: Number of modes that failed.
        board_s: Board time, in seconds.
        board_j: Energy of the board, in joules.
    """

    file: str | None
    record: str | None
    modes: int
    new: int
    not_settled: int
    failed: int
    board_s: float
    board_j: float


ShowProgress = Callable[[ProfilingCampaign], AbstractContextManager[Callable[[str], None]]]


def profile_board(
    options: ProfileOptions, *, note: Callable[[str], None], show_progress: ShowProgress
) -> ProfileOutcome:
    """Measure the remaining modes, and write the table and its record.

    An interrupt, or a board that fails repeatedly, leaves a table of the finished modes.

    Args:
        options: The options.
        note: Shows a note to the user.
        show_progress: Opens a progress line, which receives the present mode.

    Raises:
        BadInput: If the input is invalid; raised before any measurement.
        CampaignStopped: If the board fails repeatedly.
    """
    request = ProfilingRequest(_parse_modes(options.modes), options.explorer, options.seed, options.rule)
    journal_path = _check_table_path(options.out)
    with _open_bench(options, profiling_journal.last_temperature_c(journal_path)) as bench:
        check_request(bench, request)
        with open_profiling_journal(journal_path, build_header(bench, request)) as journal:
            campaign = ProfilingCampaign(bench, request, journal)
            return _measure_and_record(campaign, options.out, note, show_progress)


def _measure_and_record(
    campaign: ProfilingCampaign, out: Path, note: Callable[[str], None], show_progress: ShowProgress
) -> ProfileOutcome:
    journal = campaign.journal
    before = len(journal.past.done)
    if before:
        note(f"going on after {before} of {campaign.total} modes")
    finished = False
    try:
        _run_campaign(campaign, note, show_progress)
        finished = True
    except KeyboardInterrupt:
        done = len(journal.read_from_disk().done)
        state = f"{out} holds the {done} modes done so far" if done else "no mode is done yet"
        note(f"{state}; the same command goes on")
        raise
    finally:
        header = build_header(campaign.bench, campaign.request)
        profiling_record.save_campaign(out, header, journal.read_from_disk(), finished=finished)
    return _build_outcome(out, journal.past, before)


def _run_campaign(campaign: ProfilingCampaign, note: Callable[[str], None], show_progress: ShowProgress) -> None:
    with show_progress(campaign) as report:
        while (mode := campaign.choose_next_mode()) is not None:
            report(f"{mode}")
            result = campaign.measure_and_record(
                mode,
                lambda verdict, mode=mode: report(f"{mode}  {verdict.why or 'settled'}"),  # type: ignore[misc]
            )
            if isinstance(result, ModeFailure):
                note(f"{result.mode} failed and is left out: {result.reason}")
            elif result.note:
                note(f"{result.mode}: {result.note}")


def _build_outcome(out: Path, past: ProfilingHistory, before: int) -> ProfileOutcome:
    board_s, board_j = profiling_record.sum_campaign_cost(past)
    return ProfileOutcome(
        file=str(out) if past.done else None,
        record=str(profiling_record.profiling_record_path(out)) if past.done else None,
        modes=len(past.done),
        new=len(past.done) - before,
        not_settled=sum(not mode.verdict.settled for mode in past.done),
        failed=len(past.failed),
        board_s=board_s,
        board_j=board_j,
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
        )
        return
    from fedge.characterisation.profiling.real_bench import resolve_workload
    from fedge.characterisation.profiling.worker_bench import open_worker_bench
    from fedge.devices.node_settings import load_local_settings

    if options.settings is None and not JETSON_RELEASE_FILE.exists():
        right = f"{EMULATED}NAME, a board of `fedge devices list`"
        raise BadInput("--board here", "a machine that is no Jetson", right)
    workload = resolve_workload(options.workload, options.batch_size)
    with open_worker_bench(load_local_settings(options.settings), workload, options.seed) as bench:
        yield bench


def _parse_modes(text: str) -> int:
    if text == "all":
        return ALL_MODES
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise BadInput("--modes", repr(text), "a whole number above 0, or all")
    return int(text)


def _check_table_path(out: Path) -> Path:
    """Return the journal's path.

    Raises:
        BadInput: If the table exists without a journal and would be overwritten.
    """
    journal = profiling_journal.profiling_journal_path(out)
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise BadInput("--out", str(out), "the path of a file in a folder that exists")
    for path in (out, profiling_record.profiling_record_path(out)):
        if path.exists() and not journal.exists():
            raise BadInput("--out", f"{path}, which exists without a journal", "a new file")
    return journal

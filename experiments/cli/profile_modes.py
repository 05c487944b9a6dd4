"""``fedge profile``: measures a board's modes, shows the progress, and writes a table and a record of its cost."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedge.characterisation.profiling import profiling_journal as journals
from fedge.characterisation.profiling import profiling_record
from fedge.characterisation.profiling.emulated_bench import build_emulated_bench
from fedge.characterisation.profiling.mode_measurement import SettledMode
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
from fedge.types import PowerMode

HERE, EMULATED = "here", "emulated:"
JETSON_RELEASE_FILE = Path("/etc/nv_tegra_release")


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """Command-line options."""

    board: str
    workload: str
    out: Path
    modes: str = "50"
    explorer: str = "active"
    batch_size: int | None = None
    seed: int = 0
    settings: Path | None = None
    """Settings file of the local board."""
    limit_s: float | None = None
    """Seconds after which a mode is abandoned, settled or not; by default the rule's own."""

    @property
    def rule(self) -> StabilityRule:
        """Rule that decides when a mode has settled."""
        return StabilityRule() if self.limit_s is None else StabilityRule(limit_s=self.limit_s)


def profile_board(asked: ProfileOptions, as_json: bool) -> None:
    """Measure the remaining modes, write the table and its record, and print the cost.

    Ctrl-C, or a board that fails repeatedly, leaves a table of the finished modes.

    Args:
        asked: The command-line options.
        as_json: Whether to print JSON.

    Raises:
        BadInput: If the input is invalid; raised before any measurement.
        Stopped: If the board fails repeatedly.
    """
    wanted = ProfilingRequest(_parse_modes(asked.modes), asked.explorer, asked.seed, asked.rule)
    journal_path = _check_table_path(asked.out)
    with _open_bench(asked, journals.last_temperature_c(journal_path)) as bench:
        check_request(bench, wanted)
        _measure_and_record(asked, bench=bench, wanted=wanted, journal_path=journal_path, as_json=as_json)


def _measure_and_record(
    asked: ProfileOptions, bench: ProfilingBench, wanted: ProfilingRequest, journal_path: Path, as_json: bool
) -> None:
    header = build_header(bench, wanted)
    with open_profiling_journal(journal_path, header) as journal:
        campaign = ProfilingCampaign(bench, wanted, journal)
        before = len(journal.past.done)
        if before:
            sys.stderr.write(f"fedge: going on after {before} of {campaign.total} modes\n")
        finished = False
        try:
            _run_campaign(campaign)
            finished = True
        except KeyboardInterrupt:
            sys.stderr.write(
                f"fedge: {_describe_done(asked.out, journal.read_from_disk())}; the same command goes on\n"
            )
            raise
        finally:
            profiling_record.save_campaign(asked.out, header, journal.read_from_disk(), finished=finished)
        _print_result(asked.out, journal.past, len(journal.past.done) - before, as_json)


@contextmanager
def _open_bench(asked: ProfileOptions, temperature_c: float | None) -> Iterator[ProfilingBench]:
    """Open the board for measuring; an emulated one continues at ``temperature_c`` (degrees Celsius)."""
    if asked.board != HERE:
        name = asked.board.removeprefix(EMULATED)
        yield build_emulated_bench(
            name, workload=asked.workload, batch_size=asked.batch_size, seed=asked.seed, temperature_c=temperature_c
        )
        return
    from fedge.characterisation.profiling.real_bench import resolve_workload
    from fedge.characterisation.profiling.worker_bench import open_worker_bench
    from fedge.devices.node_settings import load_local_settings

    if asked.settings is None and not JETSON_RELEASE_FILE.exists():
        raise BadInput(
            "--board here", "a machine that is no Jetson", f"{EMULATED}NAME, a board of `fedge devices list`"
        )
    with open_worker_bench(
        load_local_settings(asked.settings), resolve_workload(asked.workload, asked.batch_size), asked.seed
    ) as bench:
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
    journal = journals.profiling_journal_path(out)
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise BadInput("--out", str(out), "the path of a file in a folder that exists")
    for path in (out, profiling_record.profiling_record_path(out)):
        if path.exists() and not journal.exists():
            raise BadInput("--out", f"{path}, which is there already and has no journal", "a new file")
    return journal


# The course -----------------------------------------------------------------------------------------------------------


def _run_campaign(campaign: ProfilingCampaign) -> None:
    with _show_progress(campaign) as told:
        while (mode := campaign.choose_next_mode()) is not None:
            result = _measure_mode(campaign, mode, told)
            if isinstance(result, ModeFailure):
                sys.stderr.write(f"fedge: {result.mode} failed and is left out: {result.reason}\n")
            elif result.note:
                sys.stderr.write(f"fedge: {result.mode}: {result.note}\n")


def _measure_mode(
    campaign: ProfilingCampaign, mode: PowerMode, told: Callable[[str], None]
) -> SettledMode | ModeFailure:
    """Measure one mode; meanwhile the progress line shows what is still missing."""
    told(f"{mode}")
    return campaign.measure_and_record(mode, lambda verdict: told(f"{mode}  {verdict.why or 'settled'}"))


@contextmanager
def _show_progress(campaign: ProfilingCampaign) -> Iterator[Callable[[str], None]]:
    """Show a progress line: mode i of n, minutes left, the mode; silent without a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (BarColumn(), TextColumn("{task.fields[place]}"), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=campaign.total, place="")

        def told(text: str) -> None:
            past = campaign.journal.past
            tried = len(past.done) + len(past.failed)
            progress.update(
                task, completed=tried, description=text, place=_describe_progress(past, tried, campaign.total)
            )

        yield told


def _describe_progress(past: ProfilingHistory, tried: int, total: int) -> str:
    """Describe the position and the remaining minutes of board time at the pace so far."""
    place = f"mode {min(tried + 1, total)} of {total}"
    if not past.done:
        return place
    per_mode_s = sum(one.seconds for one in past.done) / len(past.done)
    return f"{place}, {(total - tried) * per_mode_s / 60:.0f} min left"


# The end --------------------------------------------------------------------------------------------------------------


def _describe_done(out: Path, past: ProfilingHistory) -> str:
    return f"{out} holds the {len(past.done)} modes done so far" if past.done else "no mode is done yet"


def _print_result(out: Path, past: ProfilingHistory, new: int, as_json: bool) -> None:
    seconds, joules = profiling_record.sum_campaign_cost(past)
    unsettled = [one for one in past.done if not one.verdict.settled]
    if as_json:
        data = {
            "file": str(out) if past.done else None,
            "record": str(profiling_record.profiling_record_path(out)) if past.done else None,
            "modes": len(past.done),
            "new": new,
            "not_settled": len(unsettled),
            "failed": len(past.failed),
            "board_s": seconds,
            "board_j": joules,
        }
        sys.stdout.write(json.dumps(data) + "\n")
        return
    sys.stdout.write(
        f"{_describe_table(out, past, unsettled)}; {seconds / 60:.1f} min of board time, {joules / 1e3:.2f} kJ\n"
    )


def _describe_table(out: Path, past: ProfilingHistory, unsettled: list[SettledMode]) -> str:
    if not past.done:
        return f"nothing written: all {len(past.failed)} modes failed"
    odd = [f"{len(unsettled)} not settled"] if unsettled else []
    odd += [f"{len(past.failed)} failed"] if past.failed else []
    return f"written: {out}, {len(past.done)} modes{' (' + ', '.join(odd) + ')' if odd else ''}"

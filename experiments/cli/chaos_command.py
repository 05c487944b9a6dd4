"""``fedge chaos``: faults on the boards of a test fleet while an experiment runs, and what held."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli import command_options as cli
from experiments.cli.command_output import (
    ask_confirmation,
    make_console,
    make_progress_console,
    print_json,
    print_line,
    write_output,
)
from experiments.cli.fleet_commands import Limit, Playbooks
from fedge.errors import BadInput

if TYPE_CHECKING:
    from experiments.fleet.chaos_attack import AttackedFleet
    from experiments.fleet.chaos_faults import BoardFaultOutcome, PlannedFault
    from experiments.fleet.selected_fleet import SelectedFleet

FORMAT = "fedge-chaos-1"
FAULT_NAMES = "kill-worker, kill-client, kill-powerd, kill-supernode, stop-worker, stop-supernode, cut-link"


def chaos(
    fleet: Annotated[Path, typer.Argument(metavar="FLEET", help="The inventory of a fleet with `chaos: allowed`.")],
    *,
    run: Annotated[
        Path | None, typer.Option("--run", metavar="EXPERIMENT", help="Experiment to run meanwhile; none by default.")
    ] = None,
    faults: Annotated[
        str | None, typer.Option(metavar="FAULT,...", help=f"Faults to choose from; all by default: {FAULT_NAMES}.")
    ] = None,
    every: Annotated[str, typer.Option(metavar="TIME", help="Time between two faults, such as 60 or 2m.")] = "60",
    for_: Annotated[
        str, typer.Option("--for", metavar="TIME", help="Time in which faults begin, such as 20m.")
    ] = "20m",
    hold: Annotated[str, typer.Option(metavar="TIME", help="Duration of a stop or a cut, such as 20s.")] = "20s",
    seed: cli.Seed = 0,
    yes: cli.Yes = False,
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="DIR", help="Folder to write; by default chaos-<time>.")
    ] = None,
    playbooks: Playbooks = None,
    limit: Limit = None,
    as_json: cli.AsJson = False,
) -> None:
    """Disturb the boards of a test fleet by a random schedule, and report what held.

    Every fault is undone, also after Ctrl-C, and by a timer of the board if the connection is lost. Exit code 1 if
    something did not hold.

    Example: fedge chaos inventory.yml --run exp.yaml --faults kill-worker,cut-link --for 10m --yes
    """
    from experiments.fleet import chaos_attack, chaos_faults

    chosen = chaos_faults.parse_faults(faults) if faults else tuple(chaos_faults.FAULTS)
    times = [chaos_faults.parse_duration_s(*one) for one in (("--every", every), ("--for", for_), ("--hold", hold))]
    every_s, for_s, hold_s = times
    if every_s > for_s:
        raise BadInput("--every", f"{every}, longer than --for {for_}", "a shorter one")
    found = _read_test_fleet(fleet, playbooks, limit)
    planned = chaos_faults.plan_faults(found.boards, chosen, every_s=every_s, for_s=for_s, seed=seed)
    question = f"{len(planned)} faults on {', '.join(found.boards)} within {for_}; go on?"
    if not yes and not ask_confirmation(question, "--yes as well: every fault is undone"):
        raise typer.Exit(1)
    out = _make_folder(folder or Path(f"chaos-{time.strftime('%Y%m%d-%H%M%S')}"))
    target = chaos_attack.AttackedFleet(found, out / "ansible", make_progress_console(), hold_s)
    command = [] if run is None else _build_run_command(run, target, out)
    head = {"began": datetime.now(UTC).isoformat(timespec="seconds"), "seed": seed}
    outcomes, interrupted = _attack(target, planned, command, quiet=as_json)
    _write_report(out, head, outcomes, as_json=as_json)
    if interrupted:
        raise KeyboardInterrupt
    if any(one.problems for one in outcomes):
        raise typer.Exit(1)


def _read_test_fleet(inventory: Path, playbooks: Path | None, limit: str | None) -> SelectedFleet:
    """Read a fleet whose boards are marked as ones for tests."""
    from experiments.fleet import chaos_faults, selected_fleet

    if not inventory.exists():
        raise BadInput("FLEET", f"{inventory}, where nothing is", "the inventory of a fleet")
    found = selected_fleet.read_fleet(selected_fleet.build_options(inventory, playbooks, limit))
    chaos_faults.check_marks(found)
    return found


def _make_folder(folder: Path) -> Path:
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise BadInput("--folder", str(folder), "a folder that is new or empty")
    write_output("--folder", folder, lambda path: path.mkdir(parents=True, exist_ok=True), "folder")
    return folder


def _build_run_command(experiment: Path, target: AttackedFleet, out: Path) -> list[str]:
    options = target.fleet.options
    words = [str(experiment), "--folder", str(out / "run"), "--inventory", str(options.inventory)]
    return [sys.executable, "-m", "experiments.cli", "fleet", "run", *words, "--playbooks", str(options.playbooks)]


def _attack(
    target: AttackedFleet, planned: tuple[PlannedFault, ...], command: list[str], *, quiet: bool
) -> tuple[list[BoardFaultOutcome], bool]:
    """Attack the fleet, with the run of a command beside it if there is one."""
    from experiments.fleet import chaos_attack
    from fedge.child_processes import handle_signals

    def report(one: BoardFaultOutcome) -> None:
        back = "is not back" if one.back_s is None else f"was back within {one.back_s:.0f} s"
        if not quiet:
            print_line(f"{one.fault}: {one.board} {one.verdict if one.refusal else back}")

    before = chaos_attack.inspect_start(target)
    with ExitStack() as scope:
        scope.enter_context(handle_signals())
        log = target.folder.with_name("run.log")
        observe = scope.enter_context(chaos_attack.follow_run(command, log, target.now_s)) if command else None
        outcomes, interrupted = chaos_attack.attack_fleet(target, planned, before, observe_run=observe, report=report)
    progress = observe() if observe else None
    return chaos_attack.finish_outcomes(target, outcomes, before, progress), interrupted


def _write_report(out: Path, head: Mapping[str, object], outcomes: list[BoardFaultOutcome], *, as_json: bool) -> None:
    """Print the tables, and write them as JSON and as a page."""
    from experiments.fleet.chaos_faults import count_outcomes, list_counts, list_outcomes, outcomes_to_dicts
    from experiments.report.page import Section, write_page
    from fedge.telemetry.run_folder import write_json

    counts = count_outcomes(outcomes)
    tables = (list_outcomes(outcomes), list_counts(counts))
    summary = [asdict(one) for one in counts]
    record = {"format": FORMAT, **head, "summary": summary, "faults": list(outcomes_to_dicts(outcomes))}
    write_json(out / "chaos.json", record)
    tried, held = (sum(one.tried for one in counts), sum(one.held for one in counts))
    facts = (f"{tried} faults", f"{held} held", *(f"{name} {value}" for name, value in head.items()))
    sections = [Section(table.title, "", html=table.html) for table in tables]
    write_page(out / "chaos.html", "Faults on a test fleet", sections, str(out), facts=facts)
    if as_json:
        print_json(record)
        return
    for table in tables:
        table.print(make_console())
    print_line(f"report: {out / 'chaos.html'}")

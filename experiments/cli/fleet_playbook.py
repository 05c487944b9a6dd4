"""``fedge fleet provision | up | down | upgrade | logs``: one playbook each, shown while it runs, told at its end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from experiments.cli import fleet_options
from experiments.cli.fleet_options import FleetOptions, SelectedFleet
from experiments.fleet.inventory import format_names
from experiments.fleet.playbook_progress import PlaybookProgress, format_elapsed, summarize_playbook
from experiments.fleet.playbook_runner import PlaybookCall, PlaybookOutcome, execute_playbook
from fedge.errors import BadInput

DONE, FAILED = 0, 1
MAX_HOSTS_NAMED = 6
BYTE_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def provision_fleet(options: FleetOptions, check: bool) -> int:
    """Put everything on the server and the boards, or say what would change; the inventory is checked first."""
    fleet = fleet_options.read_checked_fleet(options)
    return run_playbook("provision", fleet, replace(fleet.build_call("site.yml"), check=check))


def run_plain_playbook(name: str, playbook: str, options: FleetOptions) -> int:
    """Run a playbook that takes nothing beside the fleet."""
    fleet = fleet_options.read_fleet(options)
    return run_playbook(name, fleet, fleet.build_call(playbook))


def remove_fleet(options: FleetOptions, agreed: Callable[[str], bool]) -> int:
    """Take everything away, after a question that names the hosts."""
    fleet = fleet_options.read_fleet(options)
    if not agreed(removal_question(fleet)):
        _say(_console(), "nothing was removed")
        return FAILED
    return run_playbook("remove", fleet, fleet.build_call("remove.yml"))


def removal_question(fleet: SelectedFleet) -> str:
    """Who loses what."""
    server = fleet.inventory.server.name
    hosts = [name for name in (server, *fleet.boards) if name in fleet.hosts]
    also = f" On {server} the SuperLink's database goes too; the runs stay, for root alone." if server in hosts else ""
    return f"Remove fedge from {format_names(hosts, MAX_HOSTS_NAMED)}?{also}"


def fetch_logs(options: FleetOptions, out: Path, since: str | None) -> int:
    """Fetch the hosts' logs and the boards' traces into ``out``, a folder per host, and say what came."""
    if out.exists() and not out.is_dir():
        raise BadInput("--out", f"{out}, which is a file", "a folder, new or not")
    fleet = fleet_options.read_fleet(options)
    given = {"collect_to": str(out.resolve()), **({"collect_since": since} if since else {})}
    code = run_playbook("logs", fleet, replace(fleet.build_call("collect.yml"), variables=given))
    console = _console()
    hosts = (name for name in (fleet.inventory.server.name, *fleet.boards) if name in fleet.hosts)
    for line in describe_fetched_logs(out, tuple(hosts)):
        _say(console, line)
    return code


def describe_fetched_logs(out: Path, hosts: tuple[str, ...]) -> Iterator[str]:
    """A line per host: how many files of it are in the folder, and how large they are."""
    for host in hosts:
        files = [path for path in sorted((out / host).rglob("*")) if path.is_file()]
        if files:
            amount = format_bytes(sum(path.stat().st_size for path in files))
            yield f"{host}: {len(files)} {'file' if len(files) == 1 else 'files'}, {amount}, in {out / host}"


def format_bytes(amount_bytes: float) -> str:
    unit, name = next(((unit, name) for unit, name in BYTE_UNITS if amount_bytes >= unit), (1.0, "bytes"))
    return f"{amount_bytes / unit:.3g} {name}"


def log_path(environ: Mapping[str, str], name: str, now_s: float, pid: int) -> Path:
    """Where Ansible's whole output goes: a file of its own per command, in the user's folder for such things."""
    state = environ.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now_s))
    return Path(state) / "fedge" / f"{name}-{stamp}-{pid}.log"


def run_playbook(name: str, fleet: SelectedFleet, call: PlaybookCall) -> int:
    """Play it, show it, and tell the end of it."""
    console, started_s = _console(), time.monotonic()
    log = log_path(os.environ, name, time.time(), os.getpid())
    try:
        with PlaybookProgress(name, console) as progress:
            outcome = execute_playbook(call, log, progress.update)
    except KeyboardInterrupt:
        _say(console, f"stopped; what was done until then stays, and the same command goes on from there; log: {log}")
        raise
    for line in summarize_outcome(outcome, check=call.check, boards=frozenset(fleet.boards)):
        _say(console, line)
    _say(console, f"took {format_elapsed(time.monotonic() - started_s)}; all of Ansible's output: {log}")
    return DONE if outcome.code == 0 else FAILED


def summarize_outcome(outcome: PlaybookOutcome, *, check: bool, boards: frozenset[str]) -> list[str]:
    """What is told at the end: the summary, or why no host was even asked."""
    lines = summarize_playbook(outcome.state, check=check, boards=boards)
    if outcome.code != 0 and not outcome.state.failures_by_host:
        return [f"Ansible ended with code {outcome.code}: {outcome.words or 'see its output'}"]
    return lines


def _console() -> Console:
    return Console(file=sys.stdout)


def _say(console: Console, line: str) -> None:
    console.print(line, soft_wrap=True, highlight=False, markup=False)

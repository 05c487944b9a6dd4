"""``fedge fleet provision | up | down | upgrade | logs``: one playbook each, shown while it runs, told at its end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from experiments.fleet import inventory
from experiments.fleet.inventory import Inventory
from experiments.fleet.playbooks import Call, Outcome, play
from experiments.fleet.progress import Progress, clock, summary
from fedge.errors import BadInput

PLAYBOOKS = Path(__file__).resolve().parents[2] / "ansible"
"""The checkout's own."""
INVENTORY_VARIABLE = "FEDGE_INVENTORY"
DONE, FAILED = 0, 1
UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


@dataclass(frozen=True, slots=True)
class Fleet:
    """Which fleet: its inventory, the folder of the playbooks, and a pattern where only some of its hosts are meant."""

    inventory: Path
    playbooks: Path
    limit: str | None


def fleet_of(inventory: Path | None, playbooks: Path | None, limit: str | None) -> Fleet:
    """The fleet of the options, with what stands for those that are not given."""
    folder = (playbooks or PLAYBOOKS).resolve()
    if not folder.is_dir():
        right = "the folder ansible/ of fedge's checkout, which is not part of an installed package"
        raise BadInput("--playbooks", f"{folder}, where nothing is", right)
    named = os.environ.get(INVENTORY_VARIABLE)
    return Fleet(inventory or (Path(named) if named else folder / "inventory.yml"), folder, limit)


def provision(fleet: Fleet, check: bool) -> int:
    """Put everything on the server and the boards, or say what would change; the inventory is checked first."""
    found = _limited(inventory.read(fleet.inventory, fleet.playbooks), fleet)
    refuse_problems(found, fleet)
    return _run("provision", fleet, found, Call(fleet.playbooks, "site.yml", fleet.inventory, fleet.limit, check))


def simple(name: str, playbook: str, fleet: Fleet) -> int:
    """Run a playbook that takes nothing beside the fleet."""
    found = _limited(inventory.read(fleet.inventory, fleet.playbooks), fleet)
    return _run(name, fleet, found, Call(fleet.playbooks, playbook, fleet.inventory, fleet.limit))


def logs(fleet: Fleet, out: Path, since: str | None) -> int:
    """Fetch the boards' logs and traces into ``out``, a folder per board, and say what came."""
    found = _limited(inventory.read(fleet.inventory, fleet.playbooks), fleet)
    if out.exists() and not out.is_dir():
        raise BadInput("--out", f"{out}, which is a file", "a folder, new or not")
    given = {"collect_to": str(out.resolve()), **({"collect_since": since} if since else {})}
    call = Call(fleet.playbooks, "collect.yml", fleet.inventory, fleet.limit, variables=given)
    code = _run("logs", fleet, found, call)
    console = _console()
    for line in came(out, (found.server.name, *found.board_names)):
        _say(console, line)
    return code


def asking(name: str, playbook: str, fleet: Fleet) -> tuple[Call, Path]:
    """A playbook that somebody else plays and shows: the call, and where its log goes."""
    inventory.require(fleet.inventory, fleet.playbooks)
    call = Call(fleet.playbooks, playbook, fleet.inventory.resolve(), fleet.limit)
    return call, log_path(os.environ, name, time.time(), os.getpid())


def refuse_problems(found: Inventory, fleet: Fleet) -> None:
    """Raise ``BadInput`` with all that is wrong with an inventory, before any host is touched."""
    told = inventory.problems(found, fleet.playbooks, datetime.now(UTC))
    if len(told) == 1:
        raise BadInput(told[0].where, told[0].got, told[0].right)
    if told:
        listed = "".join(f"\n  {problem}" for problem in told)
        raise BadInput(str(fleet.inventory), f"{len(told)} things that cannot work", f"mend them first:{listed}")


def _limited(found: Inventory, fleet: Fleet) -> Inventory:
    """The inventory with those boards alone that the limit names."""
    if fleet.limit is None:
        return found
    meant = inventory.hosts(inventory.listing(fleet.inventory, fleet.playbooks, fleet.limit))
    return replace(found, boards=tuple(board for board in found.boards if board.name in meant))


def came(out: Path, hosts: tuple[str, ...]) -> Iterator[str]:
    """A line per host: how many files of it are in the folder, and how large they are."""
    for host in hosts:
        files = [path for path in sorted((out / host).rglob("*")) if path.is_file()]
        if files:
            amount = size(sum(path.stat().st_size for path in files))
            yield f"{host}: {len(files)} {'file' if len(files) == 1 else 'files'}, {amount}, in {out / host}"


def size(amount_bytes: float) -> str:
    unit, name = next(((unit, name) for unit, name in UNITS if amount_bytes >= unit), (1.0, "bytes"))
    return f"{amount_bytes / unit:.3g} {name}"


def log_path(environ: Mapping[str, str], name: str, now_s: float, pid: int) -> Path:
    """Where Ansible's whole output goes: a file of its own per command, in the user's folder for such things."""
    state = environ.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now_s))
    return Path(state) / "fedge" / f"{name}-{stamp}-{pid}.log"


def _run(name: str, fleet: Fleet, found: Inventory, call: Call) -> int:
    """Play it, show it, and tell the end of it."""
    console, started_s = _console(), time.monotonic()
    log = log_path(os.environ, name, time.time(), os.getpid())
    call = replace(call, inventory=fleet.inventory.resolve())
    try:
        with Progress(name, console) as progress:
            outcome = play(call, log, progress.tell)
    except KeyboardInterrupt:
        _say(console, f"stopped; what was done until then stays, and the same command goes on from there; log: {log}")
        raise
    for line in end(outcome, check=call.check, boards=frozenset(found.board_names)):
        _say(console, line)
    _say(console, f"took {clock(time.monotonic() - started_s)}; all of Ansible's output: {log}")
    return DONE if outcome.code == 0 else FAILED


def end(outcome: Outcome, *, check: bool, boards: frozenset[str]) -> list[str]:
    """What is told at the end: the summary, or why no host was even asked."""
    lines = summary(outcome.state, check=check, boards=boards)
    if outcome.code != 0 and not outcome.state.failed:
        return [f"Ansible ended with code {outcome.code}: {outcome.words or 'see its output'}"]
    return lines


def _console() -> Console:
    return Console(file=sys.stdout)


def _say(console: Console, line: str) -> None:
    console.print(line, soft_wrap=True, highlight=False, markup=False)

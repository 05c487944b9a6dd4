"""A fleet on loopback: a board's programs are disturbed while it works for a run, and the run goes on."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

from contracts.desk import listening, worker_command
from contracts.loopback_fleet import Fleet, flower, loopback_fleet
from contracts.processes import wait_for
from faults.fault_points import KILL, STOP, TERMINATE, Attack, require
from faults.run_subjects import (
    LIMIT_S,
    LONGEST_STOP_S,
    RandomInstant,
    check_cause,
    disturb_after_round,
    list_descendants,
)
from faults.warm_commands import WarmCommands

from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow

ROUNDS = 3
BOARDS = {"board-1": "orin-nano-jp6", "board-2": "xavier-nx"}
EXPERIMENT = """
name: tiny
seed: 3
rounds: {rounds}
backend: fleet
fleet: [{{device: orin-nano, name: board, count: 2}}]
workload: {{task: digits-cnn, local_epochs: 0.1}}
exploration: {{probes: 1, probe_s: 0.1}}
superlink: {{address: "{address}", connect_timeout_s: 60}}
reply_timeout_s: 180
"""
FLEET_FAULTS = (
    f"{KILL} superlink",
    f"{KILL} supernode",
    f"{KILL} worker",
    f"{STOP} client app",
    f"{KILL} client app",
    f"{KILL} trainer",
    f"{STOP} supernode",
    f"{TERMINATE} supernode",
)


@contextmanager
def open_fleet(scratch: Path) -> Iterator[Attack]:
    """The SuperLink, a board's SuperNode or worker, which systemd would start again, its client app or trainer."""
    with ExitStack() as scope:
        fedge = scope.enter_context(WarmCommands())
        fleet = scope.enter_context(loopback_fleet([*BOARDS.values()], scratch / "fleet"))
        config = scratch / "tiny.yaml"
        config.write_text(EXPERIMENT.format(rounds=ROUNDS, address=fleet.address), encoding="utf-8")
        before = {name: desk.files for name, desk in fleet.desks.items()}

        def attack(chance: Random, folder: Path, fault: str) -> bool:
            board, (kind, _, victim) = chance.choice([*BOARDS]), fault.partition(" ")
            run, log = folder / "run", folder / "log"
            fedge.start(["run", config, "--folder", run], log)
            after = RandomInstant(chance.randrange(ROUNDS), chance.uniform(0.0, 2.0))
            stop_s = chance.uniform(0.0, LONGEST_STOP_S) if kind == STOP else None
            hit, code = disturb_after_round(
                fedge, after, lambda: find_on_board(fleet, board, victim), log, kind, stop_s
            )
            if victim in {"supernode", "superlink", "worker"} and kind != STOP and hit:
                time.sleep(chance.uniform(0.0, LONGEST_STOP_S))
                start_again(fleet, victim, board, scope, scratch / folder.name)
            code = fedge.wait() if code is None else code
            check_cause(log, code, fault)
            if code != 0:
                code = fedge.run(["resume", run], folder / "after")
                require(code == 0, (folder / "after").read_text(encoding="utf-8"))
            check_rows(read_rows(run, ClientRow))
            for name, desk in fleet.desks.items():
                wait_for(lambda desk=desk, name=name: desk.files == before[name], f"{name} is as before", LIMIT_S)
            return hit

        yield attack


def find_on_board(fleet: Fleet, board: str, victim: str) -> list[int]:
    if victim == "client app":
        return list_descendants(fleet.nodes[board].pid, "flwr-clientapp")
    desk = fleet.desks[board]
    pids = {"worker": desk.supervisor, "superlink": fleet.links[0].pid, "supernode": fleet.nodes[board].pid}
    return [desk.trainer if victim == "trainer" else pids[victim]]


def start_again(fleet: Fleet, victim: str, board: str, scope: ExitStack, home: Path) -> None:
    """Start what was ended as its service does, until the scope ends; SuperNodes that ended with the SuperLink too."""
    if victim == "worker":
        desk = fleet.desks[board]
        worker = listening(worker_command(desk.settings), desk.settings.worker_socket, desk.log)
        fleet.desks[board] = replace(desk, supervisor=scope.enter_context(worker))
        return
    if victim == "superlink":
        command = ["flower-superlink", *map(str, list(fleet.links[0].args)[1:])]  # type: ignore[arg-type]  # a list
        fleet.links[0] = scope.enter_context(flower(command, home / "link", "Uvicorn running on"))
        time.sleep(LONGEST_STOP_S)
    for name in fleet.nodes if victim == "superlink" else [board]:
        ended = fleet.nodes[name]
        if victim == "superlink" and ended.poll() is None:
            continue
        if ended.poll() is None:
            ended.send_signal(signal.SIGTERM)
        ended.wait(LIMIT_S)
        command = ["flower-supernode", *map(str, list(ended.args)[1:])]  # type: ignore[arg-type]  # a list
        fleet.nodes[name] = scope.enter_context(flower(command, home / name, "SuperNode"))


def check_rows(rows: list[ClientRow]) -> None:
    """Require one row of each board in each round, with a cause where it failed, and a result in most."""
    wanted = {(number, board) for number in range(1, ROUNDS + 1) for board in BOARDS}
    counted = Counter((row.round, row.board) for row in rows)
    require(counted == Counter(wanted), f"rows {sorted(counted.items())}")
    silent = [row for row in rows if row.status != "done" and not row.error]
    require(not silent, f"no cause: {silent}")
    done = [row for row in rows if row.status == "done"]
    require(
        len(done) >= len(rows) // 2, f"{len(done)} of {len(rows)} rows have a result: {[row.error for row in rows]}"
    )

"""Runs under faults: whatever happens, ``fedge resume`` or the same command again ends in the rows of a whole run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from contracts.processes import wait_for
from faults.fault_points import (
    CLOCK,
    FILE_SIZE,
    FULL_DISK,
    INTERRUPT,
    KILL,
    MEMORY,
    READ_ONLY,
    STOP,
    TERMINATE,
    Attack,
    require,
)
from faults.warm_commands import WarmCommands, find_processes

from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, EventRow, RoundRow, SampleRow

ROUNDS = 4
EXPERIMENT = """
name: tiny
seed: 3
rounds: {rounds}
backend: {backend}
fleet: [{{device: nano, count: 2}}, {{device: xavier-nx, count: 1}}]
workload: {{task: digits-cnn, local_epochs: 0.1}}
"""
VARIANTS = (
    (),
    ("strategy=FedAdam", "policy=maxn"),
    ("strategy.name=FedAsync",),
    ("policy=maxn", "late.action=discount", "late.grace=0"),
)
SIGNALS = {KILL: signal.SIGKILL, TERMINATE: signal.SIGTERM, INTERRUPT: signal.SIGINT}
LIMIT_S = 600.0
MOST_RESTARTS = 4
ALONE = ("--jobs", "1")
TOO_BUSY = "this machine is too busy"
"""What a simulation says that Flower could not start in time; the next try may."""
NO_RUN = ("no such folder", "a folder without run.yaml")
"""What `fedge resume` says where no run has begun yet."""


@dataclass(frozen=True, slots=True)
class WholeRun:
    """The end of a run that nothing befell: its rows by kind, its model, its size on disk and its wall time."""

    rows: tuple[tuple[object, ...], ...]
    model: bytes
    size_bytes: int
    wall_s: float


def read_all(folder: Path) -> tuple[tuple[object, ...], ...]:
    return tuple(tuple(read_rows(folder, kind)) for kind in (RoundRow, ClientRow, EventRow, SampleRow))


def read_whole(folder: Path, wall_s: float) -> WholeRun:
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return WholeRun(read_all(folder), (folder / "model.safetensors").read_bytes(), size, wall_s)


def check_end(folder: Path, whole: WholeRun) -> None:
    """Require the rows and the model of the run that nothing befell."""
    for kind, rows, wanted in zip(
        ("rounds", "clients", "events", "samples"), read_all(folder), whole.rows, strict=True
    ):
        require(rows == wanted, f"{kind}: {len(rows)} rows, which are not the {len(wanted)} of a whole run")
    require((folder / "model.safetensors").read_bytes() == whole.model, "another model than that of a whole run")


def check_told(folder: Path, log: Path, whole: WholeRun) -> None:
    """Require the row of every round that was told, and no others than a whole run's."""
    told = [int(number) for number in re.findall(r"^round (\d+)/", log.read_text(encoding="utf-8"), re.MULTILINE)]
    rows = read_rows(folder, RoundRow) if (folder / "run.yaml").is_file() else []
    require(len(rows) >= max(told, default=0), f"round {max(told, default=0)} was told; the store has {len(rows)}")
    require(tuple(rows) == whole.rows[0][: len(rows)], "rows of rounds that a whole run does not have")


def check_cause(log: Path, code: int | None, fault: str) -> None:
    """Require that a command that failed said why, in a line for its user.

    A signal that comes before the command can handle it, or a library that aborts for want of memory, is its own cause.
    """
    said = log.read_text(encoding="utf-8", errors="replace")
    require(code is not None, "it hangs")
    over = said.partition("\nreport: ")[2]  # an interruption of the interpreter's own end
    require(
        "Traceback" not in said or (fault == INTERRUPT and "KeyboardInterrupt" in over), f"a traceback: {said[-400:]}"
    )
    allowed = (
        {-SIGNALS[fault]} if fault in SIGNALS else {-signal.SIGABRT, -signal.SIGSEGV} if fault == MEMORY else set()
    )
    require(code in {0, 1, 2, 130, 143} | allowed, f"it ended with {code}: {said[-500:]}")
    cause = [line for line in said.splitlines() if line.startswith("fedge: ")]
    require(code in {0, 130, 143} | allowed or cause, f"it ended with {code} and no cause: {said[-500:]}")


class TinyRuns:
    """Runs in the warm process, and of each variant the whole run, on ``local`` in one process."""

    def __init__(self, fedge: WarmCommands, scratch: Path, *options: str) -> None:
        self.fedge, self.scratch, self._wholes = fedge, scratch, dict[tuple[str, ...], WholeRun]()
        self._options = options
        self.config = scratch / "tiny.yaml"
        self.config.write_text(EXPERIMENT.format(rounds=ROUNDS, backend="local"), encoding="utf-8")

    def words(self, folder: Path, variant: tuple[str, ...], options: tuple[str, ...] | None = None) -> list[str]:
        sets = [word for one in variant for word in ("--set", one)]
        more = self._options if options is None else options
        return ["run", str(self.config), "--folder", str(folder), *more, *sets]

    def whole(self, variant: tuple[str, ...]) -> WholeRun:
        """Return the run that nothing befalls; made when first asked for."""
        if variant not in self._wholes:
            folder = self.scratch / f"whole-{len(self._wholes)}"
            log, begun_s = folder.with_suffix(".log"), time.monotonic()
            code = self.fedge.run(self.words(folder, variant, ALONE), log)
            require(code == 0, log.read_text(encoding="utf-8"))
            self._wholes[variant] = read_whole(folder, time.monotonic() - begun_s)
        return self._wholes[variant]

    def go_on(self, folder: Path, variant: tuple[str, ...], log: Path) -> None:
        """Do what the messages say until the run is done, and require that it gets there."""
        code = self.fedge.run(["resume", folder], log)
        if code == 2 and any(text in log.read_text(encoding="utf-8") for text in NO_RUN):
            code = self.fedge.run(self.words(folder, variant), log)
        tries = 1
        while code == 1 and TOO_BUSY in log.read_text(encoding="utf-8") and tries < MOST_RESTARTS:
            tries += 1
            code = self.fedge.run(["resume", folder], log)
        require(code == 0, f"going on ended with {code}: {log.read_text(encoding='utf-8')[-600:]}")


@contextmanager
def open_local(scratch: Path) -> Iterator[Attack]:
    """The launcher of a run in one process."""
    with WarmCommands() as fedge:
        runs = TinyRuns(fedge, scratch, *ALONE)

        def attack(chance: Random, folder: Path, fault: str) -> bool:
            variant = chance.choice(VARIANTS)
            whole, run, point = runs.whole(variant), folder / "run", f"{folder.name}-{chance.random()}"
            log, after = folder / "log", folder / "after"
            with DISK_FAULTS.get(fault, leave_disk)(run, chance, whole) as release:
                hit, code = trouble(runs, variant, chance, Trouble(fault, run, log, point, whole.wall_s))
                if fault != KILL:
                    check_cause(log, code, fault)
                release()
                check_told(run, log, whole)
                wait_for(lambda: not find_processes(point), "no process is left")
                if code != 0:
                    restarts = 0
                    while chance.random() < 0.3 and restarts < MOST_RESTARTS:
                        restarts += 1
                        kill_at(fedge, ["resume", run], folder / "killed-again", chance.uniform(0, whole.wall_s))
                    runs.go_on(run, variant, after)
                check_end(run, whole)
            return hit

        yield attack


@dataclass(frozen=True, slots=True)
class Trouble:
    """A fault and the run that it befalls."""

    fault: str
    folder: Path
    log: Path
    point: str
    wall_s: float


def trouble(runs: TinyRuns, variant: tuple[str, ...], chance: Random, what: Trouble) -> tuple[bool, int | None]:
    """Start a run and let the fault befall it; return whether it came in time, and the run's exit code."""
    fedge, words = runs.fedge, runs.words(what.folder, variant)
    order = {
        FILE_SIZE: {"file_bytes": int(10 ** chance.uniform(4.0, 5.5))},
        MEMORY: {"memory_mb": chance.randrange(0, 120)},
        CLOCK: {"clock": chance.randrange(10**6)},
    }.get(what.fault, {})
    pid = fedge.start(words, what.log, point=what.point, **order)
    if what.fault in SIGNALS or what.fault == STOP:
        code = fedge.wait(chance.uniform(0.0, 1.1 * what.wall_s))
        if code is not None:
            return False, code
        with suppress(ProcessLookupError):
            os.kill(pid, SIGNALS.get(what.fault, signal.SIGSTOP))
        if what.fault == STOP:
            time.sleep(chance.uniform(0.0, 0.3))
            os.kill(pid, signal.SIGCONT)
        return True, fedge.wait()
    code = fedge.wait()
    return code != 0 or what.fault == CLOCK, code


def kill_at(fedge: WarmCommands, words: list[str | Path], log: Path, after_s: float) -> None:
    """Start a command and kill it after so many seconds, unless it is over by then."""
    pid = fedge.start(words, log)
    if fedge.wait(after_s) is None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        fedge.wait()


@contextmanager
def leave_disk(folder: Path, chance: Random, whole: WholeRun) -> Iterator[Callable[[], None]]:
    yield lambda: None


@contextmanager
def fill_disk(folder: Path, chance: Random, whole: WholeRun) -> Iterator[Callable[[], None]]:
    """A disk for the run alone that is full at some time; the function that is given makes it large."""
    pages = max(2, chance.randrange(0, whole.size_bytes * 5 // 4 // 4096))
    with mounted(folder, f"size={4 * pages}k"):
        yield lambda: remount(folder, "size=64m")


@contextmanager
def protect_disk(folder: Path, chance: Random, whole: WholeRun) -> Iterator[Callable[[], None]]:
    """A disk that cannot be written; the function that is given makes it writable."""
    with mounted(folder, "ro"):
        yield lambda: remount(folder, "rw")


DISK_FAULTS = {FULL_DISK: fill_disk, READ_ONLY: protect_disk}


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "fedge-fault", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


def can_mount() -> bool:
    """Return whether this process may mount file systems: CAP_SYS_ADMIN, as root has it outside most containers."""
    held = re.search(r"CapEff:\s+([0-9a-f]+)", Path("/proc/self/status").read_text(encoding="utf-8"))
    return held is not None and bool(int(held[1], 16) >> 21 & 1)


# Processes that a run starts ------------------------------------------------------------------------------------------

VICTIMS = {
    "launcher": "",
    "superlink": "bin/flower-superlink",
    "superexec": "bin/flower-superexec",
    "serverapp": "bin/flwr-simulation",
    "actor": "ClientAppActor",
    "raylet": "raylet/raylet",
    "gcs": "gcs_server",
    "ray agent": "runtime_env/agent",
    "ray monitor": "_private/monitor.py",
    "stream": "bin/flwr run",
    "guard": "experiments.backends.run_processes",
    "fork server": "multiprocessing.forkserver",
    "worker": "multiprocessing.forkserver",
}
"""A part of the command line of each process that a fault may befall; Ray's programs overwrite their environment.
Workers have that of the fork server, which is the launcher's child.
"""
LONGEST_STOP_S = 3.0


def find_victims(victim: str, launcher: int, folder: Path) -> list[int]:
    """Return the processes of a run that the fault may befall."""
    if not VICTIMS[victim]:
        return [launcher]
    if victim == "worker":
        servers = find_victims("fork server", launcher, folder)
        return [pid for server in servers for pid in list_descendants(server, VICTIMS[victim]) if pid != server]
    return [pid for pid, line in list_run_processes(launcher, folder).items() if VICTIMS[victim] in line]


def list_run_processes(launcher: int, folder: Path) -> dict[int, str]:
    """Return the command lines of a run's processes without the launcher, by its children and their working folder."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            line = (process / "cmdline").read_text(errors="replace").replace("\0", " ")
            here = (process / "cwd").readlink().is_relative_to(folder)
            if state not in "ZX" and (here or int(parent) == launcher):
                found[int(process.name)] = line
    return found


def list_descendants(ancestor: int, program: str) -> list[int]:
    """Return the processes below another one whose command line has ``program`` in it."""
    parents, lines = {}, {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            stat = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
            lines[int(process.name)] = (process / "cmdline").read_text(errors="replace").replace("\0", " ")
            parents[int(process.name)] = int(stat[1])
    family = {ancestor}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sorted(pid for pid in family if pid in lines and program in lines[pid])


@contextmanager
def open_processes(scratch: Path, *options: str) -> Iterator[Attack]:
    """A run whose launcher, or one of the processes that it started, is disturbed after some round.

    A fault is its kind and the process: "kill actor".
    """
    with WarmCommands() as fedge:
        runs = TinyRuns(fedge, scratch, *options)

        def attack(chance: Random, folder: Path, fault: str) -> bool:
            variant, (kind, _, victim) = chance.choice(VARIANTS), fault.partition(" ")
            whole, run, log = runs.whole(variant), folder / "run", folder / "log"
            pid = fedge.start(runs.words(run, variant), log)
            after = RandomInstant(chance.randrange(ROUNDS), chance.uniform(0.0, 1.0))
            stop_s = chance.uniform(0.0, LONGEST_STOP_S) if kind == STOP else None
            hit, code = disturb_after_round(fedge, after, lambda: find_victims(victim, pid, run), log, kind, stop_s)
            if code is None:
                code = fedge.wait()
            if fault != "kill launcher":
                check_cause(log, code, kind if victim == "launcher" else fault)
            check_told(run, log, whole)
            wait_for(lambda: not list_run_processes(pid, run), "no process is left", LIMIT_S)
            if code != 0:
                runs.go_on(run, variant, folder / "after")
            check_end(run, whole)
            return hit

        yield attack


@dataclass(frozen=True, slots=True)
class RandomInstant:
    """A time after the end of a round; round 0 ends when the process that is killed is there."""

    round: int
    after_s: float


def disturb_after_round(
    fedge: WarmCommands,
    instant: RandomInstant,
    find: Callable[[], list[int]],
    log: Path,
    kind: str,
    stop_s: float | None,
) -> tuple[bool, int | None]:
    """Send a signal to one of the processes found at the instant; one that is stopped goes on after ``stop_s``.

    Returns:
        Whether there was such a process, and a code if the run ended.
    """
    number = instant.round
    ends_s = time.monotonic() + LIMIT_S
    while time.monotonic() < ends_s:
        code = fedge.wait(0.05)
        if code is not None:
            return False, code
        told = number == 0 or f"\nround {number}/" in f"\n{log.read_text(encoding='utf-8') if log.exists() else ''}"
        if told and find():
            time.sleep(instant.after_s)
            if victims := find():
                with suppress(ProcessLookupError):
                    os.kill(victims[-1], SIGNALS.get(kind, signal.SIGSTOP))
                    if stop_s is not None:
                        time.sleep(stop_s)
                        os.kill(victims[-1], signal.SIGCONT)
                    return True, None
    return False, None


@contextmanager
def open_local_workers(scratch: Path) -> Iterator[Attack]:
    with open_processes(scratch, "--jobs", "2") as attack:
        yield attack


@contextmanager
def open_sim(scratch: Path) -> Iterator[Attack]:
    with open_processes(scratch, "--backend", "sim") as attack:
        yield attack


LOCAL_FAULTS = (KILL, TERMINATE, KILL, FILE_SIZE, KILL, INTERRUPT, KILL, MEMORY, KILL, STOP, KILL, CLOCK)
DISKS = (FULL_DISK, READ_ONLY, FULL_DISK)
SIM_FAULTS = (
    *(f"{KILL} {victim}" for victim in VICTIMS if victim != "worker"),
    f"{TERMINATE} launcher",
    f"{INTERRUPT} launcher",
    *(f"{STOP} {victim}" for victim in ("launcher", "superlink", "serverapp", "actor", "raylet")),
)
WORKERS_FAULTS = (
    f"{KILL} worker",
    f"{KILL} launcher",
    f"{STOP} worker",
    f"{TERMINATE} launcher",
    f"{TERMINATE} worker",
    f"{KILL} fork server",
    f"{TERMINATE} fork server",
)

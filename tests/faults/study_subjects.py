"""Commands that write points, tables and rows one by one: killed and started again they repeat none and lose none."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import numpy as np
from characterised.running import swept_plan
from contracts.processes import wait_for
from contracts.store_rows import client_row, round_row, traced
from faults.fault_points import FILE_SIZE, INTERRUPT, KILL, STOP, TERMINATE, Attack, require
from faults.run_subjects import EXPERIMENT, SIGNALS, check_cause
from faults.warm_commands import WarmCommands, find_processes

from fedge.characterisation.profiling_journal import profiling_record_path
from fedge.characterisation.sweep_store import JOURNAL_FILE, UNFINISHED_FILES, SweepResult, parse_journal, read_result
from fedge.telemetry import store
from fedge.telemetry.store import RunTables
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, RoundRow, SampleRow

MOST_STARTS = 60
STOP_S = 0.3


def start_and_disturb(
    fedge: WarmCommands, words: list[str], log: Path, fault: str, **order: object
) -> tuple[int | None, bool]:
    """Start a command and let the fault befall it, a signal after ``after_s``.

    Returns:
        Its exit code, and whether the fault came before its end. A process that is left shows as ``NotHeld``.
    """
    after_s = float(str(order.pop("after_s")))
    point = f"{log}-{after_s}"
    pid = fedge.start(words, log, point=point, **order)
    signalled = fault in SIGNALS or fault == STOP
    code, hit = fedge.wait(after_s if signalled else 600.0), False
    if code is None and signalled:
        hit = True
        with suppress(ProcessLookupError):
            os.kill(pid, SIGNALS.get(fault, signal.SIGSTOP))
            if fault == STOP:
                time.sleep(STOP_S)
                os.kill(pid, signal.SIGCONT)
        code = fedge.wait()
    wait_for(lambda: not find_processes(point), "no process is left")
    return code, hit or code != 0


def draw_order(chance: Random, fault: str, most_s: float) -> dict[str, object]:
    """Return when, or with what limit, the fault comes."""
    limits: dict[str, object] = {"file_bytes": int(10 ** chance.uniform(3.3, 4.7))} if fault == FILE_SIZE else {}
    return {"after_s": chance.uniform(0.0, most_s), **limits}


# Sweep ----------------------------------------------------------------------------------------------------------------


def sweep_words(config: Path, out: Path) -> list[str]:
    return ["sweep", str(config), "--folder", str(out), "--jobs", "1"]


def find_points(out: Path) -> dict[str, tuple[int, int]]:
    """Return the finished points, each with what changes when it is written again."""
    records = {path.parent.name: path.stat() for path in out.glob("points/[!.]*/point.json")}
    return {name: (record.st_ino, record.st_mtime_ns) for name, record in records.items()}


def read_figures(out: Path) -> object:
    """Return a sweep's summary without what the machine's speed decides."""

    def drop_wall_time(value: object) -> object:
        if isinstance(value, dict):
            return {key: drop_wall_time(one) for key, one in value.items() if "wall" not in key and key != "folder"}
        return [drop_wall_time(one) for one in value] if isinstance(value, list) else value

    return drop_wall_time(json.loads((out / "sweep.json").read_text(encoding="utf-8")))


@contextmanager
def open_sweep(scratch: Path) -> Iterator[Attack]:
    """``fedge sweep`` of two policies with two seeds."""
    text = EXPERIMENT.format(rounds=1, backend="local").replace("digits-cnn", "none")
    (scratch / "small.yaml").write_text(text, encoding="utf-8")
    config, whole = scratch / "sweep.yaml", scratch / "whole"
    config.write_text("{experiment: small.yaml, grid: {policy: [balanced, maxn]}, seeds: 2}\n", encoding="utf-8")
    with WarmCommands() as fedge:
        begun = scratch / "log"
        require(fedge.run(sweep_words(config, whole), begun) == 0, begun.read_text(encoding="utf-8"))

        def attack(chance: Random, folder: Path, fault: str) -> bool:
            out, hits, code = folder / "out", 0, None
            for start in range(MOST_STARTS):
                before, disturbed = find_points(out), hits == 0 or chance.random() < 0.4
                now = fault if disturbed else ""
                log = folder / f"log-{start}"
                order = draw_order(chance, now, 8.0)
                code, hit = start_and_disturb(fedge, sweep_words(config, out), log, now, **order)
                hits += hit
                if fault != KILL:
                    check_cause(log, code, fault)
                points = find_points(out)
                require({name: points.get(name) for name in before} == before, "a finished point was written again")
                if code == 0:
                    break
            require(code == 0, "it does not get to its end")
            require(read_figures(out) == read_figures(whole), "other figures than those of a whole sweep")
            return hits > 0

        yield attack


# Profile --------------------------------------------------------------------------------------------------------------


def profile_words(out: Path) -> list[str]:
    given = "--board emulated:orin-nano --workload resnet18-imagenet --modes 6 --explorer random"
    return ["profile", *given.split(), "--out", str(out)]


@contextmanager
def open_profile(scratch: Path) -> Iterator[Attack]:
    """``fedge profile`` of an emulated board."""
    whole = scratch / "orin-nano/train/resnet18-imagenet.csv"
    with WarmCommands() as fedge:
        begun = scratch / "log"
        require(fedge.run(profile_words(whole), begun) == 0, begun.read_text(encoding="utf-8"))

        def attack(chance: Random, folder: Path, fault: str) -> bool:
            out, hits, code = folder / "orin-nano/train/resnet18-imagenet.csv", 0, None
            for start in range(MOST_STARTS):
                now = fault if hits == 0 or chance.random() < 0.4 else ""
                log = folder / f"log-{start}"
                code, hit = start_and_disturb(fedge, profile_words(out), log, now, **draw_order(chance, now, 2.0))
                hits += hit
                if fault != KILL:
                    check_cause(log, code, fault)
                if code == 0:
                    break
            require(code == 0, f"it does not get to its end: {log.read_text(encoding='utf-8')[-400:]}")
            for path in (out, profiling_record_path(out)):
                wanted = whole.parent / path.name
                require(path.read_bytes() == wanted.read_bytes(), f"{path.name} is not that of a whole profile")
            return hits > 0

        yield attack


# Characterisation -----------------------------------------------------------------------------------------------------


def list_arrays(result: SweepResult) -> list[np.ndarray]:
    found = []
    for point in result.points:
        for records in (point.read_minibatches(), point.read_sensor_trace()):
            found += [getattr(records, name) for name in records.__slots__]
    return found


def find_done(out: Path) -> set[str]:
    path = out / JOURNAL_FILE
    return set(parse_journal(path, path.read_bytes())[0].done) if path.exists() else set()


def check_measured(out: Path, whole: SweepResult) -> None:
    """Require the points and arrays of the sweep that nothing befell, each once."""
    result = read_result(out)
    lines = [line for line in (out / JOURNAL_FILE).read_text().splitlines() if '"event": "done"' in line]
    require(len(lines) == len(swept_plan().points) == len({line.split('"key": ')[1][:14] for line in lines}), "keys")
    require([one.point for one in result.points] == [one.point for one in whole.points], "other points")
    require([one.epochs for one in result.points] == [one.epochs for one in whole.points], "other epochs")
    for found, wanted in zip(list_arrays(result), list_arrays(whole), strict=True):
        require(np.array_equal(found, wanted, equal_nan=found.dtype.kind == "f"), "other arrays")
    require(not list(out.rglob(UNFINISHED_FILES)), "unfinished files are left")


@contextmanager
def open_characterisation(scratch: Path) -> Iterator[Attack]:
    """The sweep of ``fedge characterise`` on a fake rig."""
    call = {"call": "characterised.running:sweep"}
    with WarmCommands() as fedge:
        require(fedge.run([scratch / "whole", scratch / "one"], scratch / "log", **call) == 0, "the whole sweep")
        whole = read_result(scratch / "whole")

        def attack(chance: Random, folder: Path, fault: str) -> bool:
            out, measured, hits, code = folder / "out", folder / "measured", 0, None
            measured.touch()
            for _ in range(MOST_STARTS):
                before, counted = find_done(out), Counter(measured.read_text().split())
                now = fault if hits == 0 or chance.random() < 0.7 else ""
                order = draw_order(chance, now, 0.3) | call
                code, hit = start_and_disturb(fedge, [str(out), str(measured)], folder / "log", now, **order)
                hits += hit
                again = Counter(measured.read_text().split()) - counted
                require(not before & set(again), "a finished point was measured again")
                if code == 0:
                    break
            require(code == 0, "it does not get to its end")
            check_measured(out, whole)
            return hits > 0

        yield attack


# Store ----------------------------------------------------------------------------------------------------------------


def write_endlessly(folder: str) -> None:
    """Append rows of round after round, and tell each round once its rows are stored."""
    store.FULL_ROWS = 25
    tables = RunTables(Path(folder))
    for number in itertools.count(len(tables.rounds)):
        tables.append([client_row(number, board) for board in "ab"])
        tables.append([traced(number, "a", 7)])
        tables.append([round_row(number)])
        os.write(1, b"%d\n" % number)


@contextmanager
def open_store(scratch: Path) -> Iterator[Attack]:
    """The writer of a store."""
    with WarmCommands() as fedge:

        def attack(chance: Random, folder: Path, fault: str) -> bool:
            log = folder / "log"
            order = draw_order(chance, fault, 1.0) | {"call": "faults.study_subjects:write_endlessly"}
            code, _ = start_and_disturb(fedge, [str(folder)], log, fault, **order)
            require(code == -signal.SIGKILL or fault != KILL, log.read_text(encoding="utf-8"))
            check_stored(folder, [int(line) for line in log.read_text("utf-8").splitlines() if line.isdigit()])
            return True

        yield attack


def check_stored(folder: Path, told: list[int]) -> None:
    """Require every row of the rounds told, once, and whole rounds after a restart."""
    if not (folder / "store").is_dir():
        require(not told, "no store")
        return
    rounds = [row.round for row in read_rows(folder, RoundRow)]
    require(rounds == [*range(len(rounds))], f"rounds {rounds[:3]}...")
    require(len(rounds) > max(told, default=-1), f"round {max(told, default=-1)} was told; {len(rounds)} are stored")
    clients = [row.round for row in read_rows(folder, ClientRow)]
    require(clients[: 2 * len(rounds)] == [number for number in rounds for _ in "ab"], "rows of clients")
    samples = [row.round for row in read_rows(folder, SampleRow)]
    require(samples[: 7 * len(rounds)] == [number for number in rounds for _ in range(7)], "samples")
    tables = RunTables(folder)
    tables.forget_after(rounds[-1] if rounds else -1)
    tables.close()
    require(len(read_rows(folder, ClientRow)) == 2 * len(rounds), "rows of a round that is forgotten")
    require(len(read_rows(folder, SampleRow)) == 7 * len(rounds), "samples of a round that is forgotten")


SIGNALLED = (KILL, KILL, KILL, TERMINATE, INTERRUPT, STOP)
WRITERS = (KILL, KILL, KILL, FILE_SIZE)

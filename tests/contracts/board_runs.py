"""Run folders for tests of the board page: rows by arithmetic, any number of boards, some of them in trouble."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from fedge.telemetry.store import RunTables
from fedge.telemetry.store_records import ClientRow, EventRow, RoundRow, SampleRow

ROUND_S, IDLE_W = 20.0, 2.0
KINDS = ("nano", "xavier-nx", "agx-orin-64gb")


def names(boards: int) -> dict[str, str]:
    """Board -> kind, in the fleet's order."""
    counts = {kind: len(range(place, boards, len(KINDS))) for place, kind in enumerate(KINDS)}
    return {f"{kind}-{i}": kind for kind, count in counts.items() for i in range(1, count + 1)}


def client(number: int, board: str, device: str, place: int, status: str = "done", **more: Any) -> ClientRow:
    """A board that works for 8 s to 17 s; one that failed has told nothing."""
    work_s = 8.0 + place % 10
    told: dict[str, Any] = dict.fromkeys(ClientRow.__dataclass_fields__)
    told |= {
        "round": number,
        "board": board,
        "device": device,
        "status": status,
        "start_s": (number - 1) * ROUND_S,
        "end_s": (number - 1) * ROUND_S + work_s + 2,
        "deadline_s": 22.0,
        "down_s": 1.0,
        "work_s": work_s,
        "up_s": 1.0,
        "wait_s": ROUND_S - work_s - 2,
        "why": "least joules",
        "cores": 4,
        "cpu_mhz": 710.4 + number,
        "gpu_mhz": 460.8,
        "mem_mhz": 1600.0,
        "steps": 100,
        "asked_steps": 100,
        "probes": 0,
        "probe_s": 0.0,
        "probe_j": 0.0,
        "samples": 800,
        "step_s": work_s / 100,
        "predicted_step_s": 1.1 * work_s / 100,
        "power_w": 5.0 + place % 7,
        "predicted_power_w": 0.95 * (5.0 + place % 7),
        "idle_w": IDLE_W,
        "work_j": (5.0 + place % 7) * work_s,
        "radio_j": 1.0,
        "energy_j": (5.0 + place % 7) * work_s + 1.0 + IDLE_W * (ROUND_S - work_s),
        "temperature_c": 40.0 + place % 20,
        "throttled": False,
    }
    if status == "failed":
        nothing = ("cores", "cpu_mhz", "gpu_mhz", "mem_mhz", "step_s", "power_w", "temperature_c")
        told |= dict.fromkeys(nothing) | {"error": "no answer", "work_s": 0.0, "down_s": 0.0, "up_s": 0.0, "steps": 0}
        told |= {"wait_s": ROUND_S, "energy_j": IDLE_W * ROUND_S, "work_j": 0.0, "radio_j": 0.0}
    if status == "late":
        told |= {"error": "not done in time", "steps": 60}
    return ClientRow(**{**told, **more})


def status_of(number: int, place: int) -> str:
    """Every 41st board fails in a round, every 37th is late."""
    if (place + number) % 41 == 40:
        return "failed"
    return "late" if (place + number) % 37 == 36 else "done"


def round_of(number: int, clients: Sequence[ClientRow]) -> RoundRow:
    counted = [row.status for row in clients]
    return RoundRow(
        round=number,
        start_s=(number - 1) * ROUND_S,
        end_s=number * ROUND_S,
        round_s=ROUND_S + number / 8,
        deadline_s=22.0,
        straggler=clients[-1].board if clients else "",
        selected=len(clients),
        done=counted.count("done"),
        late=counted.count("late"),
        failed=counted.count("failed"),
        energy_j=sum(row.energy_j for row in clients),
        train_energy_j=sum(row.work_j for row in clients),
        oracle_energy_j=None,
        maxn_round_s=16.0,
        maxn_energy_j=1.25 * sum(row.energy_j for row in clients),
        maxn_parked_energy_j=1.1 * sum(row.energy_j for row in clients),
        loss=1.0 / number,
        accuracy=1 - 0.5 / number,
        available=len(clients),
    )


def play(tables: RunTables, boards: int, number: int, sampled: bool = True) -> None:
    """Append one round; ``sampled``: with three stretches of power for every board."""
    rows = [
        client(number, name, kind, place, status_of(number, place))
        for place, (name, kind) in enumerate(names(boards).items())
    ]
    if sampled:
        tables.append([sample for row in rows for sample in samples_of(row)])
    tables.append(rows)
    failed = [row for row in rows if row.status == "failed"]
    tables.append([EventRow(row.end_s, number, row.board, "failed", "no answer within 600 s") for row in failed])
    tables.append([round_of(number, rows)])


def samples_of(row: ClientRow) -> list[SampleRow]:
    """Link, work and waiting; their joules are the row's."""
    link_w = IDLE_W + 0.5
    work_w = row.work_j / row.work_s if row.work_s else 0.0
    parts = [(row.down_s, link_w), (row.work_s, work_w), (row.up_s, link_w), (row.wait_s, IDLE_W)]
    found, at_s = [], row.start_s
    for span_s, power_w in parts:
        if span_s > 0:
            found.append(SampleRow(at_s, span_s, row.round, row.board, power_w, 40.0 + row.round))
            at_s += span_s
    return found


def begin(folder: Path, boards: int, rounds: int = 50, backend: str = "sim", played: int = 0, **more: Any) -> RunTables:
    """A run folder in which so many rounds were played."""
    folder.mkdir(parents=True)
    kinds = list(names(boards).values())
    fleet = [{"device": kind, "count": kinds.count(kind)} for kind in dict.fromkeys(kinds)]
    record = {"name": "demo", "rounds": rounds, "policy": {"name": "balanced"}, "backend": backend, "fleet": fleet}
    (folder / "run.yaml").write_text(yaml.safe_dump({**record, **more}), encoding="utf-8")
    tables = RunTables(folder)
    for number in range(1, played + 1):
        play(tables, boards, number)
    return tables


def finish(folder: Path, rounds: int) -> None:
    """Write the summary, as the launcher does at the end."""
    origin = {"label": "measured", "source": "a table"}
    labels = {"nano": {"count": 3, "truth": origin, "prior": {**origin, "label": "estimated"}}}
    (folder / "summary.json").write_text(json.dumps({"rounds": rounds, "labels": labels}), encoding="utf-8")

"""Run folders as the server would leave them, with rows made by arithmetic: what a report and the live view read."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedge.telemetry.store import RunTables
from fedge.telemetry.store_records import ClientRow, EventRow, RoundRow

ROUND_S, DEADLINE_S, IDLE_W = 20.0, 22.0, 2.0


def client_row(number: int, board: str, device: str, place: int, **more: Any) -> ClientRow:
    """A board that works for 8 s + 1 s per place and is predicted 10 % too slow."""
    work_s, start_s = 8.0 + place, (number - 1) * ROUND_S
    row = ClientRow(
        round=number,
        board=board,
        device=device,
        status="done",
        error=None,
        start_s=start_s,
        end_s=start_s + work_s + 2.0,
        deadline_s=DEADLINE_S,
        down_s=1.0,
        work_s=work_s,
        up_s=1.0,
        wait_s=ROUND_S - work_s - 2.0,
        feasible=True,
        why=f"least joules within {DEADLINE_S:g} s",
        cores=2,
        cpu_mhz=710.4,
        gpu_mhz=460.8,
        mem_mhz=1600.0,
        steps=100,
        probes=0,
        probe_s=0.0,
        probe_j=0.0,
        samples=800,
        step_s=work_s / 100,
        predicted_step_s=1.1 * work_s / 100,
        predicted_step_s_sd_log=0.1,
        power_w=10.0,
        predicted_power_w=9.0,
        predicted_power_w_sd_log=0.1,
        idle_w=IDLE_W,
        work_j=10.0 * work_s,
        radio_j=1.0,
        energy_j=10.0 * work_s + 1.0 + IDLE_W * (ROUND_S - work_s),
        maxn_work_s=work_s / 2,
        maxn_work_j=15.0 * work_s,
        oracle_work_s=work_s,
        oracle_work_j=9.0 * work_s,
        oracle_energy_j=30.0,
        maxn_energy_j=50.0,
        maxn_parked_energy_j=40.0,
        loss=0.5,
        accuracy=0.9,
        temperature_c=45.0,
        throttled=False,
        prior_time_ape=0.4 if number == 1 else None,
        prior_power_ape=0.2 if number == 1 else None,
        time_ape=0.3 / number,
        power_ape=0.1,
    )
    return dataclasses.replace(row, **more)


def failed_row(number: int, board: str) -> ClientRow:
    """A board that reported nothing: every figure that only a report could tell is None."""
    kept = ("round", "board", "start_s", "end_s", "deadline_s", "idle_w")
    row = client_row(number, board, "", 0)
    zeros = dict.fromkeys(("down_s", "work_s", "up_s", "work_j", "radio_j", "probe_s", "probe_j"), 0.0)
    empty = {field.name: None for field in dataclasses.fields(ClientRow)}
    known = {name: getattr(row, name) for name in kept}
    more = {"device": "", "status": "failed", "error": "no answer", "why": "", "steps": 0, "probes": 0, "samples": 0}
    return ClientRow(**{**empty, **zeros, **known, **more, "energy_j": 40.0, "wait_s": ROUND_S, "throttled": False})


def round_row(number: int, clients: Sequence[ClientRow], truth: bool) -> RoundRow:
    def total(column: str) -> float | None:
        values = [getattr(row, column) for row in clients]
        return None if not truth or None in values else sum(values)

    return RoundRow(
        round=number,
        start_s=(number - 1) * ROUND_S,
        end_s=number * ROUND_S,
        round_s=ROUND_S,
        deadline_s=DEADLINE_S,
        straggler=clients[-1].board,
        selected=len(clients),
        done=sum(row.status == "done" for row in clients),
        late=sum(row.status == "late" for row in clients),
        failed=sum(row.status == "failed" for row in clients),
        cancelled=sum(row.status == "cancelled" for row in clients),
        available=9,
        energy_j=100.0,
        train_energy_j=70.0,
        oracle_energy_j=total("oracle_energy_j"),
        maxn_round_s=16.0 if truth else None,
        maxn_energy_j=total("maxn_energy_j"),
        maxn_parked_energy_j=total("maxn_parked_energy_j"),
        loss=1.0 / number,
        accuracy=1 - 0.5 / number,
    )


NO_TRUTH = dict.fromkeys(
    (
        *("maxn_work_s", "maxn_work_j", "oracle_work_s", "oracle_work_j"),
        *("oracle_energy_j", "maxn_energy_j", "maxn_parked_energy_j", "prior_time_ape", "prior_power_ape"),
    )
)


@dataclasses.dataclass(frozen=True, slots=True)
class RunMaker:
    """Writes a run folder; each argument is one way in which runs differ."""

    root: Path

    def __call__(
        self,
        name: str = "demo",
        fleet: Sequence[dict[str, Any]] = ({"device": "nano", "count": 2}, {"device": "xavier-nx", "count": 1}),
        rounds: int = 3,
        truth: bool = True,
        policy: str = "balanced",
        change: Callable[[ClientRow], ClientRow] = lambda row: row,
        events: Sequence[EventRow] = (),
        summary: dict[str, Any] | None = None,
    ) -> Path:
        folder = self.root / name
        folder.mkdir(parents=True)
        record = {"name": "demo", "rounds": max(1, rounds), "policy": policy, "fleet": [*fleet]}
        (folder / "run.yaml").write_text(yaml.safe_dump(record), encoding="utf-8")
        names = [
            (f"{entry.get('name', entry['device'])}-{i}", entry["device"])
            for entry in fleet
            for i in range(1, entry["count"] + 1)
        ]
        played = {
            number: [
                change(client_row(number, board, device, place, **({} if truth else NO_TRUTH)))
                for place, (board, device) in enumerate(names)
            ]
            for number in range(1, rounds + 1)
        }
        tables = RunTables(folder)
        tables.append([row for rows in played.values() for row in rows])
        tables.append([round_row(number, rows, truth) for number, rows in played.items()])
        tables.append(events)
        tables.close()
        if summary is not None:
            (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
        return folder


@pytest.fixture
def make_run(tmp_path: Path) -> RunMaker:
    return RunMaker(tmp_path)


@pytest.fixture
def fail() -> Callable[[ClientRow], ClientRow]:
    """Makes the first board fail in round 2."""
    return lambda row: failed_row(2, row.board) if row.round == 2 and row.board.endswith("-1") else row

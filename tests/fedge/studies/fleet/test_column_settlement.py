"""The books of a round in columns are those of the coordinator, client by client."""

from __future__ import annotations

import math

import numpy as np
import pytest
from contracts.reports import IDLE_W, LINK, answer
from hypothesis import given
from hypothesis import strategies as st

from fedge.devices.battery import BatteryCharge
from fedge.experiment import BatterySpec, LateReplySpec
from fedge.studies.fleet.column_rounds import SimulatedWork, settle_columns
from fedge.telemetry.client_rows import RoundStart
from fedge.telemetry.settlement import settle_round

CLIENTS = st.lists(
    st.tuples(
        st.floats(1.0, 80.0),  # seconds of work
        st.floats(3.0, 30.0),  # watts of work
        st.one_of(st.none(), st.floats(0.1, 100.0)),  # goes away after
        st.one_of(st.none(), st.floats(1.0, 2000.0)),  # charge in joules
    ),
    min_size=1,
    max_size=8,
)
BATTERY = BatterySpec(capacity_wh=1.0, charging_w=1.0, floor=0.0)


@given(CLIENTS, st.sampled_from(["accept", "drop"]), st.one_of(st.none(), st.integers(1, 4)))
def test_columns_are_settled_as_the_coordinator_settles_reports(
    clients: list[tuple[float, float, float | None, float | None]], action: str, wanted: int | None
) -> None:
    late = LateReplySpec(action=action, grace=0.1)  # type: ignore[arg-type]
    names = [f"b{place}" for place in range(len(clients))]
    answers = {
        name: answer(name, work_s, power_w) for name, (work_s, power_w, _, _) in zip(names, clients, strict=True)
    }
    leaves_s = {name: 100.0 + c[2] for name, c in zip(names, clients, strict=True) if c[2] is not None}
    charges = {name: BatteryCharge(BATTERY, c[3]) for name, c in zip(names, clients, strict=True) if c[3] is not None}
    opening = RoundStart(1, 100.0, 30.0, dict.fromkeys(names, IDLE_W), wanted, leaves_s, charges)
    expected = settle_round(opening, answers, late)
    found = settle_columns(as_columns(clients), late, 30.0, wanted)

    assert found.round_s == pytest.approx(expected.end_s - expected.start_s)
    assert [row.status == "done" for row in expected.clients] == found.done.tolist()
    assert [row.status == "failed" for row in expected.clients] == found.failed.tolist()
    assert found.energy_j.tolist() == pytest.approx([row.energy_j for row in expected.clients])
    left_j = [expected.charges[name].left_j if name in expected.charges else math.inf for name in names]
    assert found.left_j.tolist() == pytest.approx(left_j, abs=1e-6)


def as_columns(clients: list[tuple[float, float, float | None, float | None]]) -> SimulatedWork:
    work_s, power_w = np.array([c[0] for c in clients]), np.array([c[1] for c in clients])
    has_battery = np.array([c[3] is not None for c in clients])
    full = np.ones(len(clients))
    return SimulatedWork(
        LINK.down_s * full,
        work_s=work_s,
        up_s=LINK.up_s * full,
        work_j=work_s * power_w,
        idle_w=IDLE_W * full,
        radio_w=LINK.radio_j / (LINK.down_s + LINK.up_s) * full,
        away_s=np.array([math.inf if c[2] is None else c[2] for c in clients]),
        left_j=np.array([math.inf if c[3] is None else c[3] for c in clients]),
        charging_w=np.where(has_battery, BATTERY.charging_w, 0.0),
        capacity_j=np.where(has_battery, 3600.0, np.inf),
    )

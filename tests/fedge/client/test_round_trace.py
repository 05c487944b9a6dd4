"""An emulated board's trace tells what the board did: its phases' joules wherever it is cut, its heat, its clocks."""

import math

import pytest
from contracts.reports import LINK, LOW, MAXN
from contracts.traced_rounds import THERMAL, traced_answer, works
from hypothesis import given
from hypothesis import strategies as st

from fedge.client.round_trace import build_emulated_trace
from fedge.devices.thermal_model import ThermalModel
from fedge.telemetry.round_columns import compute_completed_work
from fedge.telemetry.trace_operations import check_trace, clip_trace
from fedge.types import Measurement, RoundReport, Trace

SAME = 1e-9
WORK = ([Measurement(LOW, 4, 1.0, 4.0)], None, Measurement(MAXN, 5, 1.0, 9.0, warm_up_s=0.3, switch_s=0.05))


def report_of(work: tuple) -> RoundReport:
    report = traced_answer("a", work).report
    assert report is not None
    return report


def traced(work: tuple = WORK, most: int = 4000, thermal: ThermalModel = THERMAL) -> Trace:
    return build_emulated_trace(report_of(work), LOW, thermal, 30.0, most)


@given(works, st.floats(0.0, 1.1))
def test_until_any_moment_it_has_the_joules_that_the_books_count(work, share):
    report, trace = report_of(work), check_trace(traced(work))
    until_s = share * report.busy_s
    spent = compute_completed_work(report, until_s)
    expected_j = spent.work_j + spent.radio_j + report.idle_w * (spent.down_s + spent.up_s)

    assert clip_trace(trace, 0.0, until_s).energy_j == pytest.approx(expected_j, rel=SAME, abs=1e-7)
    assert math.fsum(trace.span_s) == pytest.approx(report.busy_s, rel=SAME)


def test_its_stretches_are_the_whole_seconds_of_the_round_and_its_clocks_those_of_the_mode():
    trace = traced()

    assert trace.start_s == pytest.approx((0, 0.5, 1, 2, 3, 4, 4.5, 5, 6, 7, 8, 9, 9.85, 10, 11))
    assert trace.gpu_mhz == (*(LOW.gpu_mhz,) * 6, *(MAXN.gpu_mhz,) * 6, *(LOW.gpu_mhz,) * 3)
    assert trace.power_w[0] == trace.power_w[-1] == 2.0 + LINK.radio_j / (LINK.down_s + LINK.up_s)
    assert set(trace.gpu_load) == {None}
    assert trace.rails_w == {}


def test_it_warms_as_the_boards_own_thermal_mass_does():
    trace, (probes, _, last) = traced(), WORK
    after_probe_c = THERMAL.temperature_after_c(30.0, 4.0, probes[0].work_s)

    assert trace.temperature_c[0] == 30.0
    assert trace.temperature_c[2] == pytest.approx(THERMAL.temperature_after_c(30.0, 4.0, 1.0), abs=0.006)
    assert trace.temperature_c[-1] == pytest.approx(
        THERMAL.temperature_after_c(after_probe_c, 9.0, last.work_s), abs=0.006
    )

"""Power over time: the area under what is drawn is the energy of the store's samples."""

import plotly.graph_objects as go
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments.report.run import energy_section
from experiments.report.run.loaded_runs import load_run
from experiments.report.run.run_page import write_report
from fedge.telemetry.store_records import SampleRow

STRETCHES = st.lists(
    st.tuples(st.floats(0.001, 30.0), st.floats(0.0, 5.0), st.floats(0.0, 60.0)), min_size=1, max_size=20
)


def samples(board, stretches, begin_s=0.0):
    """Stretches one after the other, each with the gap before it."""
    found = []
    for span_s, gap_s, watts in stretches:
        begin_s += gap_s
        found.append(SampleRow(at_s=begin_s, span_s=span_s, round=1, board=board, power_w=watts))
        begin_s += span_s
    return found


COUNT = iter(range(10**6))


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STRETCHES, STRETCHES, st.floats(-5.0, 5.0))
def test_the_area_under_every_line_is_the_boards_energy(sampled, ones, others, begin_s):
    rows = [*samples("nano-1", ones, begin_s), *samples("xavier-nx-1", others)]
    run = load_run(sampled(rows, name=f"run-{next(COUNT)}"))
    found = energy_section.read_power_curves(run)
    for board in ("nano-1", "xavier-nx-1"):
        joules = sum(row.power_w * row.span_s for row in rows if row.board == board)
        assert found.energy_j(board) == pytest.approx(joules, rel=1e-9, abs=1e-9)
    drawn = found.cell_s * sum(sum(line) for line in energy_section.power_by_kind(run, found).values())
    assert drawn == pytest.approx(sum(row.power_w * row.span_s for row in rows), rel=1e-9, abs=1e-9)


def test_where_a_board_told_nothing_there_is_a_gap(sampled, monkeypatch):
    monkeypatch.setattr(energy_section, "count_cells", lambda boards: 4)
    run = load_run(sampled(samples("nano-1", [(2.0, 0.0, 10.0), (2.0, 4.0, 4.0)])))
    assert energy_section.read_power_curves(run).boards["nano-1"] == [10, None, None, 4]


def test_samples_of_a_round_that_is_not_finished_are_left_out(sampled):
    rows = [SampleRow(0.0, 2.0, 1, "nano-1", 3.0), SampleRow(2.0, 2.0, 9, "nano-1", 50.0)]
    assert energy_section.read_power_curves(load_run(sampled(rows))).energy_j("nano-1") == pytest.approx(6.0)


def test_a_menu_shows_one_board_and_a_stack_the_fleet(sampled):
    rows = [*samples("xavier-nx-1", [(5.0, 0.0, 8.0)]), *samples("nano-2", [(5.0, 0.0, 2.0)])]
    section = energy_section.build_power_section(load_run(sampled(rows)))
    fleet, boards = section.charts
    assert [one["name"] for one in fleet.data] == ["nano", "xavier-nx"]
    assert [frame.label for frame in boards.frames] == ["nano-2", "xavier-nx-1"]
    assert boards.frames[1].summary == "40.0 J, maximum 8.00 W"
    assert "area under the curves is 50.0 J" in section.lead
    go.Figure(data=fleet.data, layout=fleet.layout)
    go.Figure(data=boards.frames[0].data, layout=boards.frames[0].layout)


def test_a_run_without_samples_says_so(make_run, tmp_path):
    write_report([make_run()], tmp_path / "page.html")
    assert "This run has no samples" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("boards", "cells"), [(1, 600), (250, 600), (1_000, 150), (100_000, 20)])
def test_large_fleets_have_coarser_lines(boards, cells):
    assert energy_section.count_cells(boards) == cells

"""A figure that is not known is left out, and names stay different in the characters that all exporters take."""

import dataclasses
import re

from contracts.exporter import client_row, fleet_of, round_of, round_row
from hypothesis import given
from hypothesis import strategies as st

from server.exporters.run_metrics import MetricCollector, build_collector, sanitise_name


def test_a_board_that_failed_has_its_energy_alone():
    [told] = MetricCollector(by_kind=False).collect_rounds(round_of(2))

    assert {name for name in told.figures if name.endswith("/nano-1")} == {
        *("board_energy_j/nano-1", "board_time_ape/nano-1", "board_power_ape/nano-1")
    }


def test_a_round_with_late_boards_is_not_held_against_maxn():
    on_time, late = round_row(1, 2), dataclasses.replace(round_row(2, 2), late=1)

    first, second = MetricCollector(by_kind=False).collect_rounds([on_time, late])

    assert first.figures["round/saving_vs_maxn"] == 0.5
    assert "round/saving_vs_maxn" not in second.figures


def test_several_tasks_of_a_board_in_one_round_are_its_mean():
    rows = [client_row(1, "nano-1", "nano", place) for place in (0, 4)]

    [told] = MetricCollector(by_kind=False).collect_rounds([*rows, round_row(1, 1)])

    assert told.figures["board_work_s/nano-1"] == 10.0


def test_boards_are_named_up_to_64_of_them():
    assert [build_collector(fleet_of(boards)).by_kind for boards in (64, 65)] == [False, True]


@given(st.text(max_size=8), st.text(max_size=8))
def test_names_stay_apart_in_plain_characters(first, second):
    assert re.fullmatch(r"[A-Za-z0-9_. -]*", sanitise_name(first))
    if first != second and "-" not in first + second:
        assert sanitise_name(first) != sanitise_name(second)

"""Rows that no board can have meant are found, and a smooth model's own misfit is not taken for one."""

import dataclasses

import numpy as np
import pytest
from contracts.boards import MAXN
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.devices.tables.mode_table import read_mode_table
from fedge.knowledge.table_background import find_board_spec, resolve_maxn
from fedge.studies.implausible_rows import MIN_ROWS, _find_neighbours, find_plausible_rows
from fedge.types import Modes, ProfileTable


def spoilt(table: ProfileTable, rows: list[int], time: float = 1.0, power: float = 1.0) -> ProfileTable:
    step_s, power_w = table.step_s.copy(), table.power_w.copy()
    step_s[rows] *= time
    power_w[rows] *= power
    return dataclasses.replace(table, step_s=step_s, power_w=power_w)


@pytest.fixture(scope="module")
def table() -> ProfileTable:
    from contracts.boards import another_workload, grid

    from fedge.physics.time_power_model import compute_power_w, compute_step_s

    truth, modes = another_workload(np.random.default_rng(9)), grid()
    seconds, watts = compute_step_s(truth, MAXN, modes), compute_power_w(truth, MAXN, modes)
    return ProfileTable("board", "net", 16, modes, seconds, watts, "0" * 64, "net.csv")


def test_every_row_of_a_board_that_follows_the_model_is_plausible(table):
    assert find_plausible_rows(table, MAXN).all()


@pytest.mark.parametrize(("time", "power"), [(0.4, 1.0), (2.0, 1.0), (1.0, 0.5), (1.0, 1.4)])
def test_exactly_the_spoilt_rows_are_found(table, time, power):
    rows = [17, 200, 411, 629]

    found = ~find_plausible_rows(spoilt(table, rows, time, power), MAXN)

    assert np.flatnonzero(found).tolist() == rows


def test_ten_percent_is_not_enough_to_be_implausible(table):
    assert find_plausible_rows(spoilt(table, [17, 200], 1.1, 0.9), MAXN).all()


def test_a_noisy_table_has_wider_limits(table):
    noise = np.exp(0.1 * np.random.default_rng(0).standard_normal(len(table.modes)))

    noisy = dataclasses.replace(table, step_s=table.step_s * noise)

    assert find_plausible_rows(noisy, MAXN).mean() > 0.99


def test_a_corner_that_the_model_misses_as_a_whole_is_kept(table):
    corner = np.flatnonzero((table.modes.knobs[:, 0] <= 3) & (table.modes.knobs[:, 1] <= 900.0)).tolist()

    kept = find_plausible_rows(spoilt(table, corner, 1.4), MAXN)

    inner = [row for row in corner if table.modes.knobs[row, 0] == 2 and table.modes.knobs[row, 1] == 500.0]
    assert kept[inner].all()


def test_a_table_too_small_to_tell_is_plausible_throughout(table):
    few = dataclasses.replace(
        spoilt(table, [3], 5.0),
        modes=Modes(table.modes.knobs[: MIN_ROWS - 1]),
        step_s=spoilt(table, [3], 5.0).step_s[: MIN_ROWS - 1],
        power_w=table.power_w[: MIN_ROWS - 1],
    )

    assert find_plausible_rows(few, MAXN).all()


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 4), min_size=1, max_size=40, unique=True))
@settings(max_examples=50)
def test_neighbours_are_one_step_apart_in_one_knob(places):
    modes = Modes(np.array(places, dtype=np.float64) * 10.0 + 1.0)
    ranks = [sorted({place[knob] for place in places}) for knob in range(4)]
    steps = [[ranks[knob].index(place[knob]) for knob in range(4)] for place in places]

    expected = [
        {j for j, there in enumerate(steps) if sum(abs(a - b) for a, b in zip(here, there, strict=True)) == 1}
        for here in steps
    ]

    assert [set(near) for near in _find_neighbours(modes)] == expected


def test_few_rows_of_real_tables_are_implausible(profiles_root):
    shares = {}
    for path in sorted(profiles_root.glob("*/train/*.csv")):
        table = read_mode_table(path)
        found = ~find_plausible_rows(table, resolve_maxn(table, find_board_spec(table.device)))
        shares[f"{table.device}/{table.workload}"] = found.mean()
        print(f"{path.parent.parent.name}/{path.stem}: {found.sum()} of {len(found)} rows implausible")

    assert max(shares.values()) < 0.03

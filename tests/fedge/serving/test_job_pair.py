"""A pair is what its tables say of the modes that all of them have; a grid knows the row of every mode."""

import itertools

import numpy as np
import pytest
from contracts.jobs import KNOBS, modes, pair

from fedge.costs.table_calibration import FULCRUM_GRID
from fedge.errors import BadInput
from fedge.serving.job_pair import build_knob_grid, build_pair, list_mode_keys, select_pair_modes
from fedge.types import Modes, ProfileTable


def table(knobs: np.ndarray, *, batch_size: int = 16, workload: str = "net") -> ProfileTable:
    """A mode's seconds and watts are its own knobs, so that each is known again."""
    seconds = knobs @ np.array([1.0, 1e-3, 1e-5, 1e-7])
    return ProfileTable("a board", workload, batch_size, Modes(knobs), seconds, batch_size + seconds, "", workload)


def test_a_pair_has_the_modes_of_all_tables_and_each_row_belongs_to_its_mode():
    knobs, rng = modes().knobs, np.random.default_rng(0)
    train = table(knobs[rng.permutation(36)[:30]])
    infer = [table(knobs[rng.permutation(36)[:33]], batch_size=size, workload="served") for size in (16, 1, 4)]

    both = build_pair(train, infer)

    shared = set.intersection(*({*map(tuple, one.modes.knobs)} for one in (train, *infer)))
    assert {*map(tuple, both.modes.knobs)} == shared
    seconds = both.modes.knobs @ np.array([1.0, 1e-3, 1e-5, 1e-7])
    np.testing.assert_allclose(both.train_s, seconds)
    np.testing.assert_allclose(both.infer_s, np.tile(seconds, (3, 1)))
    np.testing.assert_allclose(both.infer_w - seconds, np.array([[1.0], [4.0], [16.0]]) * np.ones(len(shared)))
    assert (both.batch_sizes, both.name) == ((1, 4, 16), "net+served")


def test_clocks_that_differ_by_a_conversion_of_units_are_one_mode():
    knobs = modes().knobs
    off = knobs + np.array([0.0, 3e-7, -3e-7, 3e-7])

    assert len(build_pair(table(knobs), [table(off, workload="served")]).modes) == 36
    assert list_mode_keys(Modes(knobs)) == list_mode_keys(Modes(off))


def test_training_alone_is_restricted_to_fulcrums_modes_where_the_table_has_nearly_all():
    grid = np.array(list(itertools.product(*FULCRUM_GRID)))
    more = np.concatenate([grid, grid + np.array([0.0, 50.0, 0.0, 0.0])])

    assert len(build_pair(table(more), []).modes) == 441
    assert len(build_pair(table(more[1:]), []).modes) == 440
    assert len(build_pair(table(more[100:]), []).modes) == 782
    assert build_pair(table(more), []).has_inference is False


def test_a_job_alone_has_no_rows_of_the_other():
    alone = build_pair(None, [table(modes().knobs)])

    assert (alone.has_training, alone.has_inference, alone.train_s.shape, alone.name) == (False, True, (0,), "net")


def test_no_table_and_tables_without_a_common_mode_are_refused():
    with pytest.raises(BadInput, match="no table"):
        build_pair(None, [])
    with pytest.raises(BadInput, match="no mode in common"):
        build_pair(table(modes().knobs), [table(modes().knobs + 1.0)])


@pytest.mark.parametrize(("trains", "infers"), [(True, True), (True, False), (False, True)])
def test_a_restricted_pair_says_the_same_of_what_is_kept(trains, infers):
    whole = pair(trains=trains, infers=infers)
    kept = np.arange(36) % 3 > 0

    some = select_pair_modes(whole, kept)

    np.testing.assert_array_equal(some.modes.knobs, whole.modes.knobs[kept])
    np.testing.assert_array_equal(some.train_w, whole.train_w[kept] if trains else whole.train_w)
    np.testing.assert_array_equal(some.infer_s, whole.infer_s[:, kept] if infers else whole.infer_s)
    assert (some.has_training, some.has_inference, some.name, some.batch_sizes) == (
        trains,
        infers,
        whole.name,
        whole.batch_sizes,
    )
    with pytest.raises(BadInput, match="no mode that is left"):
        select_pair_modes(whole, np.zeros(36, dtype=np.bool_))


def test_a_grid_finds_every_mode_in_any_order_of_the_rows():
    shuffled = Modes(modes().knobs[np.random.default_rng(1).permutation(36)])
    grid = build_knob_grid(shuffled)

    assert grid.values == tuple(tuple(map(float, values)) for values in KNOBS)
    for at in itertools.product(*(range(len(values)) for values in KNOBS)):
        wanted = [values[i] for values, i in zip(KNOBS, at, strict=True)]
        np.testing.assert_array_equal(shuffled.knobs[grid.row(at)], wanted)


def test_a_combination_that_was_not_measured_is_the_nearest_one_that_was():
    modes = Modes(np.array([(c, 1000.0, g, 2000.0) for c in (2.0, 4.0, 6.0) for g in (100.0, 200.0, 300.0)]))
    kept = [row for row in range(9) if row not in {4, 8}]

    grid = build_knob_grid(Modes(modes.knobs[kept]))

    rows = grid.rows[:, 0, :, 0]
    assert rows.ravel().tolist() == [0, 1, 2, 3, 1, 4, 5, 6, 4]

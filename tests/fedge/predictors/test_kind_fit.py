"""Fits of a kind: who uses them, and candidates whose evidence is no number."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from contracts.boards import MAXN, coefficients, grid

from fedge.errors import BadInput
from fedge.physics.model_fit import pool_measurements
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.physics.time_power_model import knob_shares, tabulate_shares
from fedge.predictors.candidate_blend import PooledFit, group_priors
from fedge.predictors.kind_fit import MIN_PEER_ROWS, UpdatedBlend, UpdatedFit, fit_boards, has_enough_peers
from fedge.types import Measurement

MODES = grid()
KNOWN = PriorKnowledge(MAXN, (coefficients(),), idle_w=12.0)


def measure(rows: range, board: str | None) -> tuple[Measurement, ...]:
    return tuple(Measurement(MODES[row], 10, 1.0 + 0.01 * row, 10.0, board=board) for row in rows)


def fit_one(measurements: tuple[Measurement, ...]) -> PooledFit | UpdatedFit:
    fit = fit_boards([KNOWN], [lambda: group_priors(KNOWN)], [measurements])[0]
    assert isinstance(fit, PooledFit | UpdatedFit)
    return fit


@pytest.mark.parametrize(
    ("own", "peers", "enough"),
    [(0, MIN_PEER_ROWS - 1, False), (0, MIN_PEER_ROWS, True), (8, 16, True), (9, 16, False), (9, 18, True)],
)
def test_own_measurements_are_added_to_a_fit_of_enough_others(own, peers, enough):
    mine, theirs = measure(range(own), None), measure(range(own, own + peers), "a")

    assert has_enough_peers(mine, theirs) is enough
    assert isinstance(fit_one((*mine, *theirs)), UpdatedFit if enough else PooledFit)


def test_repeats_of_a_mode_count_once():
    assert has_enough_peers(measure(range(8), None) * 3, measure(range(16), "a"))


def test_boards_that_are_told_the_same_share_one_fit():
    theirs = measure(range(40, 60), "a")
    first, second = fit_one((*measure(range(2), None), *theirs)), fit_one((*measure(range(5), None), *theirs))

    assert isinstance(first, UpdatedFit)
    assert isinstance(second, UpdatedFit)
    assert first.kind is second.kind


def test_boards_without_measurements_share_the_prediction_of_time_but_not_that_of_power():
    boards = [dataclasses.replace(KNOWN, idle_w=idle_w) for idle_w in (12.0, 40.0)]
    priors = [group_priors(known) for known in boards]
    x = tabulate_shares(knob_shares(MAXN, MODES))
    (time, power), (same_time, other_power) = (
        fit_boards([known], [lambda groups=groups: groups], [()])[0].predict(x)
        for known, groups in zip(boards, priors, strict=True)
    )

    assert same_time is time
    np.testing.assert_array_equal(time.predict_sd(np.array([3, 1])), time.predict_sd(None)[[3, 1]])
    assert (other_power.mean > power.mean).all()


def test_a_candidate_whose_evidence_is_no_number_has_no_weight_and_none_at_all_is_bad_input():
    fit = fit_one(measure(range(20), "a"))
    assert isinstance(fit, UpdatedFit)
    kind, own = fit.time.kind, pool_measurements(measure(range(3), None), MAXN)
    alike = fit.kind.correlate(own.time.x)
    rows = [one.add_rows([own.time], [own.correlation], [alike])[0] for one in kind.posteriors]
    first, rest = rows[0], rows[1:]
    assert len(kind.log_weights) > 1
    broken = first.log_evidence.copy()
    broken[0] = np.nan

    blend = UpdatedBlend(kind, [dataclasses.replace(first, log_evidence=broken), *rest])

    assert (0, 0) not in blend.members
    assert blend.weights.sum() == pytest.approx(1.0)
    nothing = [dataclasses.replace(one, log_evidence=np.full_like(one.log_evidence, np.nan)) for one in rows]
    with pytest.raises(BadInput, match="finite"):
        UpdatedBlend(kind, nothing)


def test_a_board_that_is_updated_with_others_gets_the_bits_that_it_gets_alone():
    theirs = measure(range(40, 60), "a")
    boards = [
        (*measure(range(first, first + count), None), *theirs) for first, count in ((0, 1), (3, 1), (5, 3), (9, 3))
    ]

    together = fit_boards([KNOWN] * len(boards), [lambda: group_priors(KNOWN)] * len(boards), boards)

    table = tabulate_shares(knob_shares(MAXN, MODES))
    for fit, board in zip(together, boards, strict=True):
        for one, other in zip(fit.predict(table), fit_one(board).predict(table), strict=True):
            assert (one.mean == other.mean).all()
            assert (one.predict_sd(None) == other.predict_sd(None)).all()

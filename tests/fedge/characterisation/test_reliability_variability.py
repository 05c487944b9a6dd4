"""What varies within a board and between boards of a kind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from contracts.characterised_points import Noise, Truth, sweep, varied

from fedge.characterisation.reliability import compute_variability
from fedge.characterisation.sweep_plan import SweepPoint

POINT = SweepPoint("nano-1", "net")
EXACT = Noise(step=0.0, power=0.0)


def _truth(point: SweepPoint) -> Truth:
    return Truth(
        compute_s=0.01 + 0.001 * point.repeat + (0.005 if point.board == "nano-2" else 0.0),
        stall_s=0.0,
        copy_s=0.0,
        overhead_s=0.0,
    )


def test_repeats_and_boards_vary_as_the_formulas_say() -> None:
    points = [replace(one, board=board) for board in ("nano-1", "nano-2") for one in varied(POINT, "repeat", range(3))]
    found = {(one.scope, one.board, one.quantity): one for one in compute_variability(sweep(points, _truth, EXACT))}
    assert set(found) == {
        (*who, quantity)
        for who in (("within", "nano-1"), ("within", "nano-2"), ("between", "nano"))
        for quantity in ("e2e_s", "energy_j")
    }
    within, between = found["within", "nano-1", "e2e_s"], found["between", "nano", "e2e_s"]
    assert within.values == pytest.approx((1.0, 1.1, 1.2))
    assert within.spread == pytest.approx(0.2)
    assert within.cv == pytest.approx(np.std([1.0, 1.1, 1.2], ddof=1) / 1.1)
    assert (between.names, between.values) == (("nano-1", "nano-2"), pytest.approx((1.1, 1.6)))
    assert between.spread == pytest.approx(0.5 / 1.1)
    assert len(between.points) == 6


def test_a_setting_measured_once_does_not_vary() -> None:
    assert compute_variability(sweep(varied(POINT, "workers", [0, 1]), _truth)) == ()


def test_boards_of_different_kinds_are_not_compared() -> None:
    assert compute_variability(sweep([POINT, replace(POINT, board="tx2-1")], _truth)) == ()

"""A title says one figure where it is known, and the interval where hardly more than its direction is."""

from __future__ import annotations

import math

from fedge.characterisation.confidence_interval import Estimate
from fedge.characterisation.finding_text import describe_changes, describe_shares, make_certain_change, make_share


def test_a_change_that_is_known_is_one_figure() -> None:
    assert (
        describe_changes([make_certain_change(Estimate(0.56, 0.55, 0.57, 9), "e2e_s")])
        == "cuts the epoch's time by 44 %"
    )
    assert (
        describe_changes([make_certain_change(Estimate(1.32, 1.26, 1.38, 9), "power_w")]) == "raises the power by 32 %"
    )


def test_a_change_of_which_hardly_more_than_the_direction_is_known_is_its_interval() -> None:
    assert (
        describe_changes([make_certain_change(Estimate(0.78, 0.61, 0.99, 9), "energy_j")])
        == "cuts the energy by 1 to 39 %"
    )
    assert (
        describe_changes([make_certain_change(Estimate(0.11, -0.2, 0.76, 3), "stall_s")])
        == "cuts the stall by 24 to over 99 %"
    )
    assert describe_changes([make_certain_change(Estimate(1.5, 1.1, 4.0, 3), "e2e_s")]) == (
        "makes the epoch's time 1.1 to 4 times as long"
    )


def test_a_part_of_an_epoch_that_is_not_known_is_its_interval() -> None:
    known, vague = Estimate(0.59, 0.55, 0.63, 9), Estimate(0.64, -0.3, 1.6, 2)
    alone = Estimate(0.36, -math.inf, math.inf, 1)
    assert describe_shares(
        [make_share(known, "waiting for data"), make_share(vague, "computing"), make_share(alone, "copying")]
    ) == ("59 % waiting for data, 0 to 100 % computing, 36 % copying")

"""Choices by rooflines that never saw the judged case, held against an oracle that read its measured table."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from contracts.roofline_boards import NETWORKS, SPEC, tables

from fedge.analysis.roofline.roofline_validation import (
    RooflinePrediction,
    find_oracle_row,
    oracle_saving_share,
    predict_left_out,
    score_choice,
)
from fedge.costs.layers.network_record import find_known_network
from fedge.devices.catalogue import find
from fedge.devices.tables.mode_table import read_mode_table

BAD_ROWS = {("resnet50-imagenet", 32), ("resnet50-imagenet", 64)}
"""Cases whose tables hold rows that no board can have meant, MAXN's own among them; they are not judged."""


@cache
def measured_cases(root: Path) -> tuple[RooflinePrediction, ...]:
    folder = root / "agx-orin" / "infer"
    names = ("mobilenetv3l-gld23k", "resnet50-imagenet")
    networks = {name: network for name in names if (network := find_known_network(name)) is not None}
    read = [read_mode_table(folder / f"{name}.csv", batch_size=size) for name in names for size in (1, 4, 16, 32, 64)]
    judged = [one for one in read if (one.workload, one.batch_size) not in BAD_ROWS]
    return tuple(predict_left_out(read, networks, find("agx-orin"), judged=judged))


@pytest.mark.long
def test_measured_energy_saved_is_most_of_the_oracles_in_eight_cases(profiles_root):
    verdicts = [score_choice(one) for one in measured_cases(profiles_root)]
    assert len(verdicts) == 8
    assert oracle_saving_share(verdicts) >= 0.7


@pytest.mark.long
def test_measured_time_is_never_more_than_two_percent_beyond_what_is_allowed(profiles_root):
    assert all(score_choice(one).slowdown <= 1.05 * 1.02 for one in measured_cases(profiles_root))


@pytest.mark.slow
def test_on_a_board_without_noise_the_choice_is_nearly_the_oracles():
    verdicts = [score_choice(one) for one in predict_left_out(tables(), NETWORKS, SPEC)]
    assert oracle_saving_share(verdicts) > 0.9
    assert all(one.slowdown <= 1.06 for one in verdicts)


def test_the_oracle_is_the_cheapest_of_the_fast_enough():
    table = tables(sizes=(16,))[0]
    top = int(np.argmin(table.step_s))
    best = find_oracle_row(table, top)
    joules = table.step_s * table.power_w
    within = [row for row in range(len(joules)) if table.step_s[row] <= 1.05 * table.step_s[top]]
    assert best in within
    assert joules[best] == min(joules[row] for row in within)


def test_what_is_left_out_is_what_the_protocol_says(monkeypatch):
    seen: list[list[tuple[str, int]]] = []

    def spy(kept: list, networks: object, *rest: object) -> object:
        seen.append([(one.workload, one.batch_size) for one in kept])
        from fedge.analysis.roofline.pagoda_fit import fit_per_mode

        return fit_per_mode(kept, NETWORKS)

    monkeypatch.setattr("fedge.analysis.roofline.roofline_validation.fit_per_mode", spy)
    every = tables(sizes=(1, 16))
    for left_out, expected in (
        ("case", [("light", 16), ("heavy", 1), ("heavy", 16)]),
        ("network", [("heavy", 1), ("heavy", 16)]),
        ("none", [("light", 1), ("light", 16), ("heavy", 1), ("heavy", 16)]),
    ):
        seen.clear()
        predict_left_out(every, NETWORKS, SPEC, left_out, "pagoda")
        assert seen[0] == expected

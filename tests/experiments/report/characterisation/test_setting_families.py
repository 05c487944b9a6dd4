"""Families: what differs in one knob alone is a line; the nearest to where the plan has its knobs comes first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from experiments.report.characterisation.characterisation_summary import SettingSummary, summarise_settings
from experiments.report.characterisation.setting_families import (
    build_families,
    describe_fixed_knobs,
    find_axes,
    format_axis_value,
    split_by_scale,
)
from fedge.characterisation.point_statistics import compute_point_stats
from fedge.characterisation.sweep_plan import SweepPoint
from fedge.characterisation.sweep_store import SweepResult
from fedge.types import PowerMode

Made = Callable[..., tuple[SettingSummary, ...]]


@pytest.fixture
def made(sweep: Callable[..., SweepResult]) -> Made:
    def settings(points: Sequence[SweepPoint], **base: object) -> tuple[SettingSummary, ...]:
        result = sweep(points, steps=12)
        return summarise_settings([compute_point_stats(one, result.plan.course) for one in result.points], base)

    return settings


def test_every_knob_that_was_turned_is_an_axis(settings: tuple[SettingSummary, ...]) -> None:
    assert find_axes(settings) == ("workers", "mode", "gpu_mhz")


def test_repeats_are_one_setting(settings: tuple[SettingSummary, ...]) -> None:
    assert sorted(len(one.repeats) for one in settings) == [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 3]


def test_modes_that_differ_in_one_clock_are_seen_along_this_clock_alone(made: Made, base: SweepPoint) -> None:
    assert base.mode is not None
    modes = [replace(base.mode, gpu_mhz=clock) for clock in (420.75, 675.75, 1377.0)]
    assert find_axes(made([replace(base, mode=mode) for mode in modes])) == ("gpu_mhz",)


def test_a_line_has_its_values_in_order_and_says_its_board(settings: tuple[SettingSummary, ...]) -> None:
    families = build_families(settings, "workers")
    assert [one.values for one in families] == [(0, 1, 2, 4), (0, 1, 2, 4)]
    assert [one.name for one in families] == ["agx-xavier-1", "agx-xavier-2"]


def test_the_plans_base_is_nearer_than_what_most_points_have(made: Made, base: SweepPoint) -> None:
    points = [replace(base, workers=w, storage=s) for w, s in ((0, "sd"), (1, "sd"), (2, "sd"), (0, "ssd"), (1, "ssd"))]
    assert [one.name for one in build_families(made(points), "workers")] == ["sd", "ssd"]
    assert [one.name for one in build_families(made(points, storage="ssd"), "workers")] == ["ssd", "sd"]


def test_where_many_knobs_differ_only_those_away_from_the_base_are_named(made: Made, base: SweepPoint) -> None:
    turns = [{}, {"storage": "sd"}, {"batch_size": 8}, {"cache": "warm"}]
    points = [replace(base, workers=workers, **turn) for turn in turns for workers in (0, 1, 2)]
    names = [one.name for one in build_families(made(points), "workers")]
    assert names == ["all else the same", "batch 8", "sd", "warm cache"]


def test_a_board_is_compared_with_its_own_usual_clocks(made: Made, base: SweepPoint) -> None:
    nano = PowerMode(4, 1479.0, 921.6, 1600.0)
    points = [replace(base, workers=w) for w in (0, 1)]
    points += [replace(base, board="nano-1", mode=nano, workers=w) for w in (0, 1)]
    assert [one.name for one in build_families(made(points), "workers")] == ["agx-xavier-1", "nano-1"]


def test_workloads_with_unlike_epochs_do_not_share_an_axis(made: Made, base: SweepPoint) -> None:
    points = [replace(base, workload=name, workers=w, batch_size=64) for name in ("lenet", "resnet") for w in (2, 4)]
    alike = made(points)
    assert len(split_by_scale(build_families(alike, "workers"))) == (1 if _longest(alike) < 8 * _shortest(alike) else 2)
    shorter = [replace(one, stats=_hundredth(one)) if one.point.workload == "lenet" else one for one in alike]
    assert [[one.name for one in some] for some in split_by_scale(build_families(shorter, "workers"))] == [
        ["lenet"],
        ["resnet"],
    ]


def _hundredth(one: SettingSummary):
    return replace(one.stats, e2e_s=one.stats.e2e_s.scale(0.01))


def _longest(settings: Sequence[SettingSummary]) -> float:
    return max(one.stats.e2e_s.value for one in settings)


def _shortest(settings: Sequence[SettingSummary]) -> float:
    return min(one.stats.e2e_s.value for one in settings)


def test_a_power_mode_is_called_by_its_preset(settings: tuple[SettingSummary, ...]) -> None:
    names = {format_axis_value(one, "mode") for one in settings}
    assert names == {"MAXN", "8c/2265.6/675.75/2133", "MODE_15W"}


def test_what_is_compared_from_stands_first(made: Made, base: SweepPoint) -> None:
    points = [replace(base, cache=cache) for cache in ("warm", "dropped")]
    assert build_families(made(points), "cache")[0].values == ("dropped", "warm")


def test_what_nobody_set_is_not_called_a_setting(made: Made, base: SweepPoint) -> None:
    plain = replace(base, mode=None, storage="default", workers=0, cache="warm", dvfs=False)
    settings = made([plain, replace(plain, workers=2)])
    assert describe_fixed_knobs(build_families(settings, "workers")[0], settings) == "batch 16, prefetch 2, warm cache"

    settings = made([plain, replace(plain, batch_size=4), replace(plain, dvfs=True)])
    assert (
        describe_fixed_knobs(build_families(settings, "batch_size")[0], settings) == "no workers, warm cache, DVFS off"
    )

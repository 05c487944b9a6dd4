"""Families: what differs in one knob alone is a line; the nearest to where the plan has its knobs comes first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from experiments.report.characterisation.families import axes_of, families_of, held, similar, value_name
from experiments.report.characterisation.names import whole_word
from experiments.report.characterisation.settings import Setting, settings_of
from fedge.characterisation.judging.statistics import stats_of
from fedge.characterisation.point import Point
from fedge.characterisation.result import Result
from fedge.types import PowerMode

Made = Callable[..., tuple[Setting, ...]]


@pytest.fixture
def made(sweep: Callable[..., Result]) -> Made:
    def settings(points: Sequence[Point], **base: object) -> tuple[Setting, ...]:
        result = sweep(points, steps=12)
        return settings_of([stats_of(one, result.plan.course) for one in result.points], base)

    return settings


def test_every_knob_that_was_turned_is_an_axis(settings: tuple[Setting, ...]) -> None:
    assert axes_of(settings) == ("workers", "mode", "gpu_mhz")


def test_repeats_are_one_setting(settings: tuple[Setting, ...]) -> None:
    assert sorted(len(one.repeats) for one in settings) == [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 3]


def test_modes_that_differ_in_one_clock_are_seen_along_this_clock_alone(made: Made, base: Point) -> None:
    assert base.mode is not None
    modes = [replace(base.mode, gpu_mhz=clock) for clock in (420.75, 675.75, 1377.0)]
    assert axes_of(made([replace(base, mode=mode) for mode in modes])) == ("gpu_mhz",)


def test_a_line_has_its_values_in_order_and_says_its_board(settings: tuple[Setting, ...]) -> None:
    families = families_of(settings, "workers")
    assert [one.values for one in families] == [(0, 1, 2, 4), (0, 1, 2, 4)]
    assert [one.name for one in families] == ["agx-xavier-1", "agx-xavier-2"]


def test_the_plans_base_is_nearer_than_what_most_points_have(made: Made, base: Point) -> None:
    points = [replace(base, workers=w, storage=s) for w, s in ((0, "sd"), (1, "sd"), (2, "sd"), (0, "ssd"), (1, "ssd"))]
    assert [one.name for one in families_of(made(points), "workers")] == ["sd", "ssd"]
    assert [one.name for one in families_of(made(points, storage="ssd"), "workers")] == ["ssd", "sd"]


def test_where_many_knobs_differ_only_those_away_from_the_base_are_named(made: Made, base: Point) -> None:
    turns = [{}, {"storage": "sd"}, {"batch_size": 8}, {"cache": "warm"}]
    points = [replace(base, workers=workers, **turn) for turn in turns for workers in (0, 1, 2)]
    names = [one.name for one in families_of(made(points), "workers")]
    assert names == ["all else the same", "batch 8", "cache warm", "sd"]


def test_a_board_is_compared_with_its_own_usual_clocks(made: Made, base: Point) -> None:
    nano = PowerMode(4, 1479.0, 921.6, 1600.0)
    points = [replace(base, workers=w) for w in (0, 1)]
    points += [replace(base, board="nano-1", mode=nano, workers=w) for w in (0, 1)]
    assert [one.name for one in families_of(made(points), "workers")] == ["agx-xavier-1", "nano-1"]


def test_workloads_with_unlike_epochs_do_not_share_an_axis(made: Made, base: Point) -> None:
    points = [replace(base, workload=name, workers=w, batch_size=64) for name in ("lenet", "resnet") for w in (2, 4)]
    alike = made(points)
    assert len(similar(families_of(alike, "workers"))) == (1 if _longest(alike) < 8 * _shortest(alike) else 2)
    shorter = [replace(one, stats=_hundredth(one)) if one.point.workload == "lenet" else one for one in alike]
    assert [[one.name for one in some] for some in similar(families_of(shorter, "workers"))] == [["lenet"], ["resnet"]]


def _hundredth(one: Setting):
    return replace(one.stats, e2e_s=one.stats.e2e_s.times(0.01))


def _longest(settings: Sequence[Setting]) -> float:
    return max(one.stats.e2e_s.value for one in settings)


def _shortest(settings: Sequence[Setting]) -> float:
    return min(one.stats.e2e_s.value for one in settings)


def test_a_power_mode_is_called_by_its_preset(settings: tuple[Setting, ...]) -> None:
    names = {value_name(one, "mode") for one in settings}
    assert names == {"MAXN", "8c/2265.6/675.75/2133", "MODE_15W"}


def test_what_is_compared_from_stands_first(made: Made, base: Point) -> None:
    points = [replace(base, cache=cache) for cache in ("warm", "dropped")]
    assert families_of(made(points), "cache")[0].values == ("dropped", "warm")


def test_what_nobody_set_is_not_called_a_setting(made: Made, base: Point) -> None:
    plain = replace(base, mode=None, storage="default", workers=0, cache="warm", dvfs=False)
    settings = made([plain, replace(plain, workers=2)])
    assert held(families_of(settings, "workers")[0], settings) == "batch 16, prefetch 2, cache warm"

    settings = made([plain, replace(plain, batch_size=4), replace(plain, dvfs=True)])
    assert held(families_of(settings, "batch_size")[0], settings) == "0 workers, cache warm, DVFS off"


def test_a_setting_in_one_line_names_what_was_chosen_alone(base: Point) -> None:
    plain = replace(base, mode=None, storage="default", workers=0, cache="warm", dvfs=False)
    assert whole_word(plain) == f"{base.board}, {base.workload}, training, batch 16, 0 workers, cache warm"
    assert "prefetch 2, sd, cache" in whole_word(replace(plain, workers=1, storage="sd"))

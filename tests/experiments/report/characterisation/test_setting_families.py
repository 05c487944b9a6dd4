"""Families: what differs in one knob alone is a line; the nearest to where the plan has its knobs comes first."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.report.characterisation.characterisation_summary import (
    FigureBasis,
    SettingSummary,
    choose_basis,
    has_later_epochs,
    summarise_settings,
)
from experiments.report.characterisation.setting_charts import select_extremes
from experiments.report.characterisation.setting_families import (
    SettingFamily,
    are_disjoint,
    build_families,
    describe_change,
    describe_fixed_knobs,
    describe_stall,
    find_axes,
    format_axis_value,
    split_by_scale,
)
from fedge.characterisation.point_statistics import compute_point_stats
from fedge.characterisation.sweep_plan import SweepPoint
from fedge.characterisation.sweep_store import SweepResult
from fedge.confidence_interval import Estimate, make_unbounded_estimate
from fedge.types import PowerMode

Made = Callable[..., tuple[SettingSummary, ...]]


@pytest.fixture
def made(sweep: Callable[..., SweepResult]) -> Made:
    def settings(points: Sequence[SweepPoint], **base: object) -> tuple[SettingSummary, ...]:
        result = sweep(points, steps=12)
        return summarise_settings([compute_point_stats(one, result.plan.course) for one in result.points], base)

    return settings


def test_every_knob_that_was_turned_is_an_axis(settings):
    assert find_axes(settings) == ["workers", "mode", "gpu_mhz"]


def test_repeats_are_one_setting(settings):
    assert sorted(len(one.repeats) for one in settings) == [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 3]


def test_modes_that_differ_in_one_clock_are_seen_along_this_clock_alone(made, base):
    assert base.mode is not None
    modes = [replace(base.mode, gpu_mhz=clock) for clock in (420.75, 675.75, 1377.0)]
    assert find_axes(made([replace(base, mode=mode) for mode in modes])) == ["gpu_mhz"]


def test_a_line_has_its_values_in_order_and_says_its_board(settings):
    families = build_families(settings, "workers")
    assert [one.values for one in families] == [(0, 1, 2, 4), (0, 1, 2, 4)]
    assert [one.name for one in families] == ["agx-xavier-1", "agx-xavier-2"]


def test_the_plans_base_is_nearer_than_what_most_points_have(made, base):
    points = [replace(base, workers=w, storage=s) for w, s in ((0, "sd"), (1, "sd"), (2, "sd"), (0, "ssd"), (1, "ssd"))]
    assert [one.name for one in build_families(made(points), "workers")] == ["sd", "ssd"]
    assert [one.name for one in build_families(made(points, storage="ssd"), "workers")] == ["ssd", "sd"]


def test_where_many_knobs_differ_only_those_away_from_the_base_are_named(made, base):
    turns = [{}, {"storage": "sd"}, {"batch_size": 8}, {"cache": "warm"}]
    points = [replace(base, workers=workers, **turn) for turn in turns for workers in (0, 1, 2)]
    names = [one.name for one in build_families(made(points), "workers")]
    assert names == ["all else the same", "batch 8", "sd", "warm cache"]


def test_a_board_is_compared_with_its_own_usual_clocks(made, base):
    nano = PowerMode(4, 1479.0, 921.6, 1600.0)
    points = [replace(base, workers=w) for w in (0, 1)]
    points += [replace(base, board="nano-1", mode=nano, workers=w) for w in (0, 1)]
    assert [one.name for one in build_families(made(points), "workers")] == ["agx-xavier-1", "nano-1"]


def test_workloads_with_unlike_epochs_do_not_share_an_axis(made, base):
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


def test_a_power_mode_is_called_by_its_preset(settings):
    names = {format_axis_value(one, "mode") for one in settings}
    assert names == {"MAXN", "8c/2265.6/675.75/2133", "MODE_15W"}


def test_what_is_compared_from_stands_first(made, base):
    points = [replace(base, cache=cache) for cache in ("warm", "dropped")]
    assert build_families(made(points), "cache")[0].values == ("dropped", "warm")


def test_what_nobody_set_is_not_called_a_setting(made, base):
    plain = replace(base, mode=None, storage="default", workers=0, cache="warm", dvfs=False)
    settings = made([plain, replace(plain, workers=2)])
    assert describe_fixed_knobs(build_families(settings, "workers")[0], settings) == "batch 16, prefetch 2, warm cache"

    settings = made([plain, replace(plain, batch_size=4), replace(plain, dvfs=True)])
    assert (
        describe_fixed_knobs(build_families(settings, "batch_size")[0], settings) == "no workers, warm cache, DVFS off"
    )


EPOCH = FigureBasis(whole=True)


def family(setting: SettingSummary, values: dict[object, tuple[float, float]], axis: str = "workers") -> SettingFamily:
    """One line: of every value on the axis the epoch's time and its stall."""
    made = [
        replace(
            setting,
            stats=replace(
                setting.stats,
                point=replace(setting.point, **{axis: value}),
                e2e_s=make_unbounded_estimate(e2e_s),
                stall_s=make_unbounded_estimate(stall_s),
            ),
        )
        for value, (e2e_s, stall_s) in values.items()
    ]
    return SettingFamily(axis, "a name", tuple(made))


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ((10.0, 5.0), "Time falls by 50 % from 0 to 4 loader workers"),
        ((10.0, 12.0), "Time rises by 20 % from 0 to 4 loader workers"),
        ((10.0, 31.0), "Time grows 3.1 times from 0 to 4 loader workers"),
        ((10.0, 10.1), "Time changes by less than 2 % from 0 to 4 loader workers"),
        ((10.0, 0.0), "Time falls to nothing from 0 to 4 loader workers"),
        ((0.0, 3.0), "Time by loader workers"),
    ],
)
def test_a_change_along_numbers_is_told(settings, times, said):
    one = family(settings[0], {0: (times[0], 0.0), 4: (times[1], 0.0)})
    assert describe_change("Time", [one], "e2e_s", EPOCH) == said


def test_several_lines_are_told_as_a_range(settings):
    lines = [family(settings[0], {0: (10.0, 0.0), 4: (last, 0.0)}) for last in (5.0, 8.0)]
    assert describe_change("Time", lines, "e2e_s", EPOCH) == "Time falls by 20 to 50 % from 0 to 4 loader workers"
    lines.append(family(settings[0], {0: (10.0, 0.0), 4: (13.0, 0.0)}))
    assert describe_change("Time", lines, "e2e_s", EPOCH) == "Time changes by −50 % to +30 % from 0 to 4 loader workers"


def test_words_are_told_where_they_differ_most(settings):
    near = family(settings[0], {"sd": (10.0, 1.0), "ssd": (9.0, 1.0)}, "storage")
    far = replace(family(settings[0], {"sd": (30.0, 20.0), "ssd": (10.0, 1.0)}, "storage"), name="far")
    assert describe_change("Time", [near], "e2e_s", EPOCH) == "Time is least with ssd, 11 % more with sd"
    assert (
        describe_change("Time", [near, far], "e2e_s", EPOCH)
        == "Time is least with ssd, 3.0 times as much with sd (far)"
    )
    assert describe_stall([near, far]) == "Stall is 67 % of an epoch with sd, 10 % with ssd (far)"


def test_the_share_of_stall_is_told_at_both_ends(settings):
    one = family(settings[0], {0: (10.0, 6.0), 2: (5.0, 1.0), 4: (4.0, 0.0)})
    assert describe_stall([one]) == "Stall is 60 % of an epoch at 0, 0 % at 4"


def test_epochs_of_one_size_are_told_per_epoch(settings):
    assert choose_basis(settings).unit_name == "epoch"
    assert choose_basis([]).unit_name == "epoch"


def test_epochs_that_were_cut_to_different_sizes_are_told_per_1000_samples(settings):
    first = settings[0]
    larger = replace(first, stats=replace(first.stats, point=replace(first.point, batch_size=32)))
    basis = choose_basis([first, larger])
    assert basis.unit_name == "1,000 samples"
    whole = first.get_mean("e2e_s")
    assert whole is not None
    assert basis.get_mean(first, "e2e_s") == pytest.approx(whole * 1000 / first.stats.samples)
    assert basis.get_mean(first, "power_w") == first.get_mean("power_w")


def test_the_first_epoch_is_told_apart_unless_it_is_all_there_is(settings):
    assert has_later_epochs(settings)
    assert not has_later_epochs([replace(one, stats=replace(one.stats, epochs=(0,))) for one in settings])


def test_a_title_doubts_what_intervals_do_not_tell_apart(settings):
    line = family(settings[0], {0: (10.0, 0.0), 4: (12.0, 0.0)})
    wide = [
        replace(one, stats=replace(one.stats, e2e_s=Estimate(one.stats.e2e_s.value, 8.0, 14.0, 5)))
        for one in line.settings
    ]
    said = describe_change("Time", [replace(line, settings=tuple(wide))], "e2e_s", EPOCH)
    assert said == "Time rises by 20 % from 0 to 4 loader workers (intervals overlap)"
    assert are_disjoint(Estimate(1.0, 0.9, 1.1, 5), Estimate(2.0, 1.9, 2.1, 5))


NUMBERS = st.floats(-1e6, 1e6) | st.just(float("nan"))


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=300), st.integers(6, 80))
def test_the_extremes_of_every_series_are_among_the_rows(values, most):
    series = list(np.array(values).T)
    rows = select_extremes(series, most)
    assert len(rows) <= max(most, 1)
    assert list(rows) == sorted(set(rows.tolist()))
    assert {0, len(values) - 1} <= set(rows.tolist())
    for one in series:
        if not np.isnan(one).all():
            assert np.nanmax(one[rows]) == np.nanmax(one)
            assert np.nanmin(one[rows]) == np.nanmin(one)


def test_a_short_series_stays_whole():
    assert list(select_extremes([np.arange(5.0)], 5)) == [0, 1, 2, 3, 4]


def test_a_series_without_rows_has_none():
    assert list(select_extremes([np.empty(0)], 10)) == []


def test_too_few_rows_for_the_extremes_are_refused():
    with pytest.raises(ValueError, match="6 can"):
        select_extremes([np.arange(99.0), np.arange(99.0)], 5)

"""Titles say what is seen, with its figure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.report.characterisation.basis import Basis, basis_of, first_apart
from experiments.report.characterisation.families import Family, families_of
from experiments.report.characterisation.settings import Setting
from experiments.report.characterisation.telling import apart, change, stalls
from fedge.characterisation.judging.estimate import Estimate, exactly

EPOCH = Basis(whole=True)


def family(setting: Setting, values: dict[object, tuple[float, float]], axis: str = "workers") -> Family:
    """One line: of every value on the axis the epoch's time and its stall."""
    made = [
        replace(
            setting,
            stats=replace(
                setting.stats,
                point=replace(setting.point, **{axis: value}),
                e2e_s=exactly(e2e_s),
                stall_s=exactly(stall_s),
            ),
        )
        for value, (e2e_s, stall_s) in values.items()
    ]
    return Family(axis, "a name", tuple(made), 0)


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
def test_a_change_along_numbers_is_told(settings: tuple[Setting, ...], times: tuple[float, float], said: str) -> None:
    one = family(settings[0], {0: (times[0], 0.0), 4: (times[1], 0.0)})
    assert change("Time", [one], "e2e_s", EPOCH) == said


def test_several_lines_are_told_as_a_range(settings: tuple[Setting, ...]) -> None:
    lines = [family(settings[0], {0: (10.0, 0.0), 4: (last, 0.0)}) for last in (5.0, 8.0)]
    assert change("Time", lines, "e2e_s", EPOCH) == "Time falls by 20 to 50 % from 0 to 4 loader workers"
    lines.append(family(settings[0], {0: (10.0, 0.0), 4: (13.0, 0.0)}))
    assert change("Time", lines, "e2e_s", EPOCH) == "Time changes by −50 % to +30 % from 0 to 4 loader workers"


def test_words_are_told_where_they_differ_most(settings: tuple[Setting, ...]) -> None:
    near = family(settings[0], {"sd": (10.0, 1.0), "ssd": (9.0, 1.0)}, "storage")
    far = replace(family(settings[0], {"sd": (30.0, 20.0), "ssd": (10.0, 1.0)}, "storage"), name="far")
    assert change("Time", [near], "e2e_s", EPOCH) == "Time is least with ssd, 11 % more with sd"
    assert change("Time", [near, far], "e2e_s", EPOCH) == "Time is least with ssd, 3.0 times as much with sd (far)"
    assert stalls([near, far]) == "Storage: stall is 67 % of an epoch with sd, 10 % with ssd (far)"


def test_the_share_of_stall_is_told_at_both_ends(settings: tuple[Setting, ...]) -> None:
    one = family(settings[0], {0: (10.0, 6.0), 2: (5.0, 1.0), 4: (4.0, 0.0)})
    assert stalls([one]) == "Loader workers: stall is 60 % of an epoch at 0, 0 % at 4"


def test_epochs_of_one_size_are_told_per_epoch(settings: tuple[Setting, ...]) -> None:
    assert basis_of(settings).words == "epoch"
    assert basis_of([]).words == "epoch"


def test_epochs_that_were_cut_to_different_sizes_are_told_per_1000_samples(settings: tuple[Setting, ...]) -> None:
    first = settings[0]
    larger = replace(first, stats=replace(first.stats, point=replace(first.point, batch_size=32)))
    basis = basis_of([first, larger])
    assert basis.words == "1,000 samples"
    whole = first.value("e2e_s")
    assert whole is not None
    assert basis.value(first, "e2e_s") == pytest.approx(whole * 1000 / first.stats.samples)
    assert basis.value(first, "power_w") == first.value("power_w")


def test_real_families_have_titles(settings: tuple[Setting, ...]) -> None:
    lines = families_of(settings, "workers")
    assert stalls(lines).startswith("Loader workers: stall is 5")
    assert change("Time of an epoch", lines, "e2e_s", EPOCH).startswith("Time of an epoch falls by 5")


def test_the_first_epoch_is_told_apart_unless_it_is_all_there_is(settings: tuple[Setting, ...]) -> None:
    assert first_apart(settings)
    assert not first_apart([replace(one, stats=replace(one.stats, epochs=(0,))) for one in settings])


def test_a_title_doubts_what_intervals_do_not_tell_apart(settings: tuple[Setting, ...]) -> None:
    line = family(settings[0], {0: (10.0, 0.0), 4: (12.0, 0.0)})
    wide = [
        replace(one, stats=replace(one.stats, e2e_s=Estimate(one.stats.e2e_s.value, 8.0, 14.0, 5)))
        for one in line.settings
    ]
    said = change("Time", [replace(line, settings=tuple(wide))], "e2e_s", EPOCH)
    assert said == "Time rises by 20 % from 0 to 4 loader workers (intervals overlap)"
    assert apart(Estimate(1.0, 0.9, 1.1, 5), Estimate(2.0, 1.9, 2.1, 5))

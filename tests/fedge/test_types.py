"""What a client keeps of its measurements."""

from contracts.reports import MAXN
from hypothesis import given
from hypothesis import strategies as st

from fedge.types import MOST_MEASUREMENTS, Measurement, PowerMode, add_measurements

MODES = [PowerMode(MAXN.cores, MAXN.cpu_mhz, float(mhz), MAXN.mem_mhz) for mhz in range(100, 100 + MOST_MEASUREMENTS)]


def measured(modes: list[int], first: int = 0) -> list[Measurement]:
    return [Measurement(MODES[mode], 10, 1.0 + first + place, 9.0, 40.0) for place, mode in enumerate(modes)]


@given(st.lists(st.integers(0, 5), max_size=300), st.lists(st.integers(0, 9), max_size=20))
def test_beyond_the_limit_old_repeats_are_forgotten_and_no_mode(before, now):
    earlier, new = measured(before), measured(now, first=1000)
    kept = add_measurements(earlier, new)

    everything = [*earlier, *new]
    assert len(kept) == min(len(everything), MOST_MEASUREMENTS)
    assert {one.mode for one in kept} == {one.mode for one in everything}
    for mode in MODES[:10]:
        of_mode = [one for one in everything if one.mode == mode]
        left = [one for one in kept if one.mode == mode]
        newest = of_mode[len(of_mode) - len(left) + 1 :] if left else []
        assert left == [*of_mode[:1], *newest], "the first and the newest of a mode, in their order"
    assert list(kept) == [one for one in everything if one in kept]


def test_where_every_mode_is_another_the_oldest_measurement_goes():
    kept = add_measurements(measured([*range(MOST_MEASUREMENTS)]), measured([MOST_MEASUREMENTS - 1], first=1000))

    assert [one.step_s for one in kept if one.mode == MODES[-1]] == [1001.0]
    assert len(kept) == MOST_MEASUREMENTS

"""What to turn next: measured values are quoted, others modelled, and what the model cannot tell is not told."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from contracts.characterised_points import PLAN, Noise, Truth, sweep, varied
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.characterisation.point_statistics import PointStats, pool_repeats
from fedge.characterisation.setting_model import UNCHECKED_ERROR
from fedge.characterisation.sweep_plan import CharacterisationPlan, SweepPoint
from fedge.characterisation.tuning_advice import TuningAdvice, compute_pooled_advice
from fedge.types import PowerMode

TOP = PowerMode(8, 2265.6, 1377.0, 2133.0)
POINT = SweepPoint("agx-xavier-1", "net", mode=TOP)
EXACT = Noise(step=0.002, power=0.002)


def compute_advice(stats: Sequence[PointStats], plan: CharacterisationPlan) -> tuple[TuningAdvice, ...]:
    return compute_pooled_advice(pool_repeats(stats), plan)


def _loading(point: SweepPoint) -> Truth:
    stall_s = 0.012 if point.workers == 0 else max(0.012 / point.workers - 0.008, 0.0)
    return Truth(stall_s=stall_s, compute_s=0.007, fetch_s=0.002, preprocess_s=0.01)


def _about(found: tuple[TuningAdvice, ...], knob: str, quantity: str = "e2e_s") -> list[TuningAdvice]:
    return [one for one in found if (one.knob, one.quantity) == (knob, quantity)]


def test_workers_that_nobody_measured_are_modelled_with_the_reason():
    found = _about(compute_advice(sweep([POINT], _loading, EXACT), PLAN), "workers")
    assert [(one.now, one.then, one.label) for one in found] == [(0, 2, "estimated")]
    assert found[0].saving == pytest.approx(0.6, abs=0.05)
    assert found[0].why.startswith("the training waits 12.0 ms of every 20.0 ms for its batch; 2 workers would hide")
    assert "the model's error: 10 % of the epoch" in found[0].why
    assert found[0].expected.n == 0


def test_workers_that_were_measured_are_quoted():
    found = _about(compute_advice(sweep(varied(POINT, "workers", [0, 1, 2]), _loading, EXACT), PLAN), "workers")
    own = [one for one in found if one.now == 0]
    assert [(one.then, one.label) for one in own] == [(2, "measured")]
    assert own[0].why.startswith("this sweep has seen it: ")
    assert own[0].saving == pytest.approx(0.6, abs=0.01)
    assert own[0].expected.n > 1


@settings(max_examples=20)
@given(st.floats(0.0001, 0.03), st.floats(0.001, 0.03), st.integers(0, 3), st.integers(0, 50))
def test_no_advice_saves_less_than_the_models_own_error(load_s, compute_s, workers, seed):
    def truth(point: SweepPoint) -> Truth:
        stall_s = load_s if point.workers == 0 else max(load_s / point.workers - compute_s, 0.0)
        return Truth(stall_s=stall_s, compute_s=compute_s, fetch_s=load_s / 4, preprocess_s=load_s * 3 / 4)

    for one in compute_advice(sweep([replace(POINT, workers=workers)], truth, EXACT, seed=seed, steps=20), PLAN):
        assert one.saving > (UNCHECKED_ERROR if one.knob in {"workers", "batch_size", "cache"} else 0.02)
        assert one.label == "estimated"


def test_one_turns_from_where_the_sweep_did_and_from_the_fastest():
    points = [*varied(POINT, "workers", [0, 1, 2]), replace(POINT, pinned=True), replace(POINT, storage="sd")]
    found = compute_advice(sweep(points, _loading, EXACT), PLAN)
    assert {one.point for one in found} <= {points[0].key, points[2].key}
    assert found[0].point == points[0].key


def test_clocks_go_up_one_step_of_the_boards_table_and_not_beyond_it():
    low = replace(POINT, mode=replace(TOP, gpu_mhz=114.75, cpu_mhz=1190.4), workers=2)
    truth = Truth(stall_s=0.0, compute_s=0.05, fetch_s=0.001, preprocess_s=0.002)
    (up,) = _about(compute_advice(sweep([low], lambda _: truth, EXACT), PLAN), "gpu_mhz")
    assert (up.now, up.then) == (114.75, 216.75)
    assert up.expected.low < up.expected.value < up.expected.high < up.present
    assert not _about(compute_advice(sweep([replace(POINT, workers=2)], lambda _: truth, EXACT), PLAN), "gpu_mhz")


def test_a_higher_clock_shortens_what_a_worker_adds_to_each_batch_too():
    """One worker's batch takes 40 ms, 20 of them more than fetching and preparing it without workers."""
    slow = replace(POINT, mode=replace(TOP, cpu_mhz=1190.4))

    def truth(point: SweepPoint) -> Truth:
        return Truth(stall_s=0.009 if point.workers else 0.02, compute_s=0.03, fetch_s=0.004, preprocess_s=0.016)

    both = varied(slow, "workers", [0, 1])
    found = _about(compute_advice(sweep(both, truth, EXACT), PLAN), "cpu_mhz")
    (saving,) = [one.saving for one in found if one.point == both[1].key]
    old, new = (0.8 * 2265.6 / mhz + 0.2 for mhz in (1190.4, 1267.2))
    assert saving == pytest.approx(1 - new / old, abs=0.003)


def test_twice_the_batch_is_foretold_where_two_sizes_tell_what_a_sample_costs():
    def truth(point: SweepPoint) -> Truth:
        return Truth(
            stall_s=0.0,
            compute_s=0.01 + 0.001 * point.batch_size,
            copy_s=0.0,
            overhead_s=0.0,
            fetch_s=0.0,
            preprocess_s=0.0,
        )

    sizes = varied(replace(POINT, workers=1), "batch_size", [4, 8])
    found = _about(compute_advice(sweep(sizes, truth, EXACT), PLAN), "batch_size")
    assert [one.then for one in found if one.now == 8] == [16]
    (twice,) = [one for one in found if one.then == 16]
    assert twice.saving == pytest.approx(1 - (0.026 / 16) / (0.018 / 8), abs=0.02)
    assert not _about(compute_advice(sweep(sizes[:1], truth, EXACT), PLAN), "batch_size")


def test_files_from_the_cache_are_fetched_as_fast_as_they_were_anywhere():
    def truth(point: SweepPoint) -> Truth:
        fetch_s = 0.02 if point.storage == "sd" else 0.001
        return Truth(stall_s=fetch_s + 0.004, compute_s=0.008, fetch_s=fetch_s, preprocess_s=0.004)

    points = [replace(POINT, storage="sd"), replace(POINT, storage="ram", cache="warm")]
    (found,) = _about(compute_advice(sweep(points, truth, EXACT), PLAN), "cache")
    assert (found.now, found.then) == ("dropped", "warm")
    assert found.saving == pytest.approx(0.019 / 0.033, abs=0.03)
    assert "fetching a sample takes 1.25 ms" in found.why


def test_pinning_cannot_save_more_than_the_copying():
    stats = [
        replace(one, gpu_load=0.5)
        for one in sweep([replace(POINT, workers=2)], lambda _: Truth(stall_s=0.0, copy_s=0.002, fetch_s=0.0), EXACT)
    ]
    (found,) = _about(compute_advice(stats, PLAN), "pinned")
    assert found.expected.low == pytest.approx(found.present * (1 - 0.002 / 0.0095), rel=0.02)
    assert found.expected.high == found.present


def test_the_memorys_clock_and_cores_are_foretold_where_they_bind():
    low = replace(POINT, mode=PowerMode(2, 2265.6, 1377.0, 800.0), workers=4)
    truth = Truth(stall_s=0.02, compute_s=0.02, fetch_s=0.02, preprocess_s=0.06)
    found = compute_advice(sweep([low], lambda _: truth, EXACT), PLAN)
    (memory,) = _about(found, "mem_mhz")
    assert (memory.now, memory.then, memory.label) == (800.0, 1065.6, "estimated")
    assert memory.expected.low < memory.expected.value < memory.expected.high < memory.present
    (more,) = _about(found, "cores")
    assert (more.now, more.then) == (2, 3)
    assert "2 cores are shared by the training and 4 loader workers" in more.why


def test_a_storage_that_was_seen_elsewhere_is_foretold_by_how_much_faster_it_was_there():
    fetch_s = {"sd": 0.02, "ssd": 0.004}

    def truth(point: SweepPoint) -> Truth:
        each_s = fetch_s[point.storage]
        return Truth(stall_s=each_s if point.workers == 0 else 0.0, compute_s=0.01, fetch_s=each_s, preprocess_s=0.001)

    # the setting turned from is the one with most neighbours; sd with batch 16 is not measured on the ssd
    near = [replace(POINT, storage="sd", **more) for more in ({}, {"pinned": True}, {"dvfs": True})]
    other = [replace(POINT, storage=name, batch_size=8, runtime="docker:x") for name in ("sd", "ssd")]
    found = _about(compute_advice(sweep([*near, *other], truth, EXACT), PLAN), "storage")
    (faster,) = [one for one in found if one.now == "sd" and one.label == "estimated"]
    assert faster.then == "ssd"
    assert faster.saving == pytest.approx(0.016 / 0.031, abs=0.05)


def test_a_longer_queue_is_told_only_for_waiting_beyond_the_steady_state():
    beside = replace(POINT, workers=2)
    late = Truth(stall_s=0.004, compute_s=0.01, fetch_s=0.001, preprocess_s=0.004)
    found = _about(compute_advice(sweep([beside], lambda _: late, EXACT), PLAN), "prefetch")
    (longer,) = found
    assert (longer.now, longer.then) == (2, 4)
    assert longer.expected.low < longer.expected.value < longer.expected.high == longer.present
    steady = Truth(stall_s=0.0, compute_s=0.01, fetch_s=0.001, preprocess_s=0.004)
    assert not _about(compute_advice(sweep([beside], lambda _: steady, EXACT), PLAN), "prefetch")


def test_energy_at_a_lower_clock_is_foretold_by_what_the_sweep_shows_of_the_power():
    clocks = [replace(POINT, mode=replace(TOP, gpu_mhz=mhz), workers=2) for mhz in (1338.75, 1377.0)]

    def truth(point: SweepPoint) -> Truth:
        share = point.mode.gpu_mhz / 1377.0
        return Truth(stall_s=0.0, compute_s=0.02 / share, fetch_s=0.0001, preprocess_s=0.0001, power_w=20.0 * share**3)

    found = _about(compute_advice(sweep(clocks, truth, Noise(step=0.001, power=0.001)), PLAN), "gpu_mhz", "energy_j")
    lower = [one for one in found if one.now == 1338.75]
    assert [one.then for one in lower] == [1236.75]
    (one,) = lower
    assert one.label == "estimated"
    assert one.saving == pytest.approx(1 - (1236.75 / 1338.75) ** 2, abs=0.03)
    assert one.expected.high <= one.present
    assert "longer" in one.why

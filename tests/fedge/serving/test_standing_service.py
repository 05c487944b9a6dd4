"""A standing service beside training: the best batch against brute force, and measurements taken apart and put back."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.serving.standing_service import (
    FIRST_MARGIN,
    MARGIN,
    MAX_SHARE,
    InferenceCosts,
    ServiceDemand,
    add_service_load,
    add_service_to_predictions,
    build_service_table,
    estimate_service_time_factor,
    find_cheapest_row,
    latency_percentile_s,
    merge_all_service_uses,
    merge_service_use,
    min_latency_budget_s,
    remove_service_load,
)
from fedge.types import Measurement, Modes, PowerMode, Predictions, ServiceUse
from fedge.worker.latency_histogram import LatencyHistogram, bin_index

SIZES = (1, 4, 16, 64)
COUNT = 5
KNOBS = np.array([[4.0, 1000.0 + 100 * i, 500.0, 1600.0] for i in range(COUNT)])
seconds = st.floats(1e-3, 2.0)
watts = st.floats(2.0, 50.0)


@st.composite
def inferences(draw: st.DrawFn) -> InferenceCosts:
    """Batches that take longer the larger they are, in any other way."""
    first = draw(st.lists(st.floats(1e-3, 0.3), min_size=COUNT, max_size=COUNT))
    growth = draw(st.lists(st.floats(1.0, 4.0), min_size=len(SIZES) - 1, max_size=len(SIZES) - 1))
    infer_s = np.outer(first, np.cumprod([1.0, *growth]))
    power_w = draw(st.lists(watts, min_size=COUNT * len(SIZES), max_size=COUNT * len(SIZES)))
    return InferenceCosts(Modes(KNOBS), SIZES, infer_s, np.array(power_w).reshape(COUNT, len(SIZES)))


demands = st.builds(ServiceDemand, st.floats(0.5, 200.0), st.floats(0.02, 5.0), st.just(SIZES))


def measurement(mode: PowerMode, use: ServiceUse | None = None) -> Measurement:
    return Measurement(mode, 40, 0.2, 20.0, warm_up_s=0.3, power_se_log=0.02, service=use)


def use_of(share: float, batch_size: int = 4) -> ServiceUse:
    return ServiceUse(batch_size, 10.0, 10.0 * share, 100, 2, latency_s=0.5)


@given(inferences(), demands, st.lists(st.floats(0.0, 1.0), min_size=COUNT, max_size=COUNT), st.floats(1.0, 4.0))
def test_the_batch_size_is_the_one_that_brute_force_finds(inference, demand, train_s, longer):
    found = build_service_table(inference, demand, np.array(train_s), longer * np.array(train_s))

    for row in range(COUNT):
        holding = {}
        for column, size in enumerate(SIZES):
            took_s = inference.infer_s[row, column]
            wait_s = size / demand.rate_hz if size > 1 else 0.0
            share = took_s * demand.rate_hz / size
            usual_s = (wait_s + train_s[row] + took_s) * (1 + MARGIN)
            first_s = (longer * train_s[row] + took_s) * (1 + FIRST_MARGIN) if train_s[row] else 0.0
            if max(usual_s, first_s) <= demand.latency_s and share <= MAX_SHARE:
                holding[size] = share
        assert found.holds[row] == bool(holding)
        if holding:
            assert found.share[row] == pytest.approx(min(holding.values()))
            assert holding[int(found.batch_size[row])] == pytest.approx(min(holding.values()))


@given(inferences(), demands, st.floats(0.0, 1.0), st.floats(0.0, 4.0))
def test_a_budget_as_long_as_is_needed_is_held_and_a_shorter_one_by_no_mode(inference, demand, train_s, longer):
    first_s = longer * train_s
    least_s = min_latency_budget_s(inference, demand, train_s, first_s)

    enough = dataclasses.replace(demand, latency_s=1.0001 * least_s)
    short = dataclasses.replace(demand, latency_s=0.9999 * least_s if math.isfinite(least_s) else 1e9)
    assert build_service_table(inference, enough, train_s, first_s).holds.any() == math.isfinite(least_s)
    assert not build_service_table(inference, short, train_s, first_s).holds.any()


@given(inferences(), st.floats(0.01, 0.8), st.integers(0, COUNT - 1))
def test_taking_a_service_off_a_measurement_and_putting_it_back_gives_the_measurement(inference, share, row):
    service = dataclasses.replace(
        build_service_table(inference, ServiceDemand(1.0, 1e9, SIZES)),
        share=np.full(COUNT, share),
        power_w=inference.power_w[:, SIZES.index(4)],
    )
    bare = measurement(inference.modes[row])
    beside = add_service_load(bare, service, row, use_of(share))

    again = remove_service_load(beside, inference)

    assert beside.step_s == pytest.approx(bare.step_s / (1 - share))
    assert again.step_s == pytest.approx(bare.step_s)
    assert again.warm_up_s == pytest.approx(bare.warm_up_s)
    if share * service.power_w[row] <= 0.8 * beside.power_w:
        assert again.power_w == pytest.approx(bare.power_w)
        assert again.power_se_log == pytest.approx(bare.power_se_log)
    assert again.service is None
    assert add_service_load(again, service, row, use_of(share)).step_s == pytest.approx(beside.step_s)


@given(inferences(), demands)
def test_a_prediction_of_the_truth_alone_becomes_the_truth_beside_the_service(inference, demand):
    step_s, power_w = np.linspace(0.1, 0.5, COUNT), np.linspace(30.0, 8.0, COUNT)
    service = build_service_table(inference, demand, step_s)
    alone = Predictions(inference.modes, step_s, power_w, np.full(COUNT, 0.1), np.full(COUNT, 0.1))

    found = add_service_to_predictions(alone, service)

    left = 1.0 - service.share
    assert found.step_s == pytest.approx(step_s / left)
    assert found.power_w == pytest.approx(service.share * service.power_w + left * power_w)
    assert (found.step_s_sd_log >= 0.1).all()


def test_a_board_learns_that_its_batches_take_longer_than_expected():
    inference, demand = _inference(), ServiceDemand(10.0, 5.0, SIZES)
    expected = inference.batch_s(inference.modes[0], 4) * demand.rate_hz / 4
    long = measurement(
        inference.modes[0], dataclasses.replace(use_of(1.3 * expected), seconds=1e3, busy_s=1.3e3 * expected)
    )

    assert estimate_service_time_factor([], inference, demand) == 1.0
    assert estimate_service_time_factor([long], inference, demand) == pytest.approx(1.3, rel=0.02)
    assert estimate_service_time_factor([dataclasses.replace(long, board="another")], inference, demand) == 1.0
    assert build_service_table(inference, demand, factor=1.3).infer_s == pytest.approx(
        1.3 * build_service_table(inference, demand).infer_s
    )


def test_a_board_waits_in_the_cheapest_mode_that_holds_the_service():
    infer_s = np.array([[0.01], [0.02], [0.05], [0.9], [0.3]])
    inference = InferenceCosts(Modes(KNOBS), (1,), infer_s, np.full((COUNT, 1), 10.0))
    service = build_service_table(inference, ServiceDemand(2.0, 0.5, (1,)))

    assert service.holds.tolist() == [True, True, True, False, True]
    assert find_cheapest_row(service, np.array([5.0, 4.0, 3.0, 0.1, 3.0])) == 2


def test_two_stretches_are_one():
    first = ServiceUse(4, 10.0, 2.0, 30, 1, 1, 8, 0.4, ((3, 10), (7, 19)), 1.0, 0.5)
    more = ServiceUse(16, 5.0, 1.0, 10, 0, 0, 1, 0.6, ((7, 1), (9, 9)), 0.5, 0.5)

    whole = merge_service_use(first, more)

    assert whole == ServiceUse(16, 15.0, 3.0, 40, 1, 1, 9, 0.6, ((3, 10), (7, 20), (9, 9)), 0.875, 0.5)
    assert merge_all_service_uses([None, first, None, more]) == whole
    assert merge_all_service_uses([None, None]) is None


@given(st.lists(st.floats(1e-3, 10.0), min_size=1, max_size=60), st.sampled_from([50.0, 95.0, 99.0]))
def test_percentiles_are_those_of_the_histogram_that_was_told(latencies, q):
    seen = LatencyHistogram(1.0)
    for latency_s in latencies:
        seen.add(latency_s)
    bins = {place: sum(bin_index(one) == place for one in latencies) for place in map(bin_index, latencies)}
    use = ServiceUse(4, 10.0, 1.0, len(latencies), 0, worst_s=max(latencies), latencies=tuple(sorted(bins.items())))

    assert latency_percentile_s(use, q) == seen.percentile(q)


@given(st.lists(st.floats(0.9, 1.1), min_size=1, max_size=300), st.sampled_from([50.0, 95.0, 99.0]))
def test_a_percentile_is_over_the_budget_exactly_where_so_many_answers_were_late(latencies, q):
    seen = LatencyHistogram(1.0)
    for latency_s in latencies:
        seen.add(latency_s)
    bins = tuple(sorted(seen.bins.items()))
    use = ServiceUse(4, 10.0, 1.0, len(latencies), seen.late, worst_s=max(latencies), latencies=bins, latency_s=1.0)

    within = seen.late <= len(latencies) * (100 - q) / 100
    assert (latency_percentile_s(use, q) <= 1.0 + 1e-9) == within


def test_a_service_without_answers_has_no_percentiles():
    assert latency_percentile_s(ServiceUse(4, 10.0, 0.0, 0, 0), 99.0) is None


def _inference() -> InferenceCosts:
    infer_s = np.outer(np.linspace(0.02, 0.06, COUNT), [1.0, 2.0, 5.0, 18.0])
    return InferenceCosts(Modes(KNOBS), SIZES, infer_s, np.full((COUNT, len(SIZES)), 12.0))

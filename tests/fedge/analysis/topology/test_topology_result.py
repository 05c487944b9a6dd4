"""The search for the largest variants that fit, beside trying everything."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.analysis.topology.channel_plan import NetworkVariant
from fedge.analysis.topology.topology_result import (
    StepLimits,
    VariantFit,
    VariantSearch,
    compute_variant_front,
    find_largest_fitting,
    list_channel_shares,
)
from fedge.costs.layers.network_cost import LayerCost, NetworkCost
from fedge.worker.channel_cuts import LayerCut


@dataclass(frozen=True, slots=True)
class _Need:
    memory_mb: float
    step_s: float
    memory_sd_log: float = 0.1
    step_sd_log: float = 0.2
    label: str = "estimated"
    source: str = "a fake"


def _variant(share: float) -> NetworkVariant:
    layer = LayerCost("all", "linear", 1e6 * share, 0.0, 0.0, parameters=int(1e6 * share))
    cost = NetworkCost("net", (3,), (layer,), "made up")
    return NetworkVariant(
        "net", (3,), "l1", 1, share, share**2, share**2, {"all": LayerCut((round(1000 * share),))}, cost
    )


def _need(variant: NetworkVariant, batch_size: int) -> _Need:
    return _Need(100.0 + 10.0 * batch_size * variant.channel_share, 0.01 + 0.001 * batch_size * variant.parameter_share)


def _found(share: float, batch_size: int, fits: bool = True) -> VariantFit:
    variant = _variant(share)
    return VariantFit(variant, batch_size, _need(variant, batch_size), fits)


@given(count=st.integers(1, 400), threshold=st.integers(-1, 400), coarse=st.integers(1, 20))
def test_halving_finds_what_trying_all_finds_where_needs_rise(count, threshold, coarse):
    fitting = [i for i in range(count) if i <= threshold]
    assert find_largest_fitting(count, lambda i: i <= threshold, coarse) == (max(fitting) if fitting else None)


@given(fits=st.lists(st.booleans(), min_size=1, max_size=200), coarse=st.integers(1, 20))
def test_where_needs_do_not_rise_what_is_found_still_fits(fits, coarse):
    found = find_largest_fitting(len(fits), fits.__getitem__, coarse)
    looked_at = {round(i * (len(fits) - 1) / coarse) for i in range(coarse + 1)}
    if found is None:
        assert not any(fits[i] for i in looked_at)
    else:
        assert fits[found]
        assert not any(fits[i] for i in looked_at if i > found)


@given(
    memory_mb=st.floats(80.0, 1500.0),
    step_s=st.none() | st.floats(0.005, 0.2),
    z=st.floats(0.0, 2.0),
    batch_size=st.sampled_from([1, 8, 64]),
)
def test_the_largest_variant_is_that_of_brute_force(memory_mb, step_s, z, batch_size):
    search = VariantSearch(list_channel_shares(0.1), _variant, _need, StepLimits(memory_mb, step_s, z))
    every = [search.evaluate(i, batch_size) for i in range(len(search.shares))]
    best = max((one for one in every if one.fits), key=lambda one: one.variant.channel_share, default=None)
    assert search.find_largest(batch_size) == best


def test_a_margin_is_kept_between_the_prediction_and_the_limit():
    need = _Need(100.0, 1.0)
    assert StepLimits(105.0).is_met_by(need)
    assert not StepLimits(105.0, z=1.0).is_met_by(need)
    assert StepLimits(105.0, z=1.0).memory_with_margin_mb(need) == pytest.approx(110.517, abs=1e-3)
    assert not StepLimits(None, 1.1, 1.0).is_met_by(need)
    assert StepLimits(None, None, 3.0).is_met_by(need)


POINTS = st.tuples(st.sampled_from([0.2, 0.5, 1.0]), st.integers(1, 6), st.booleans())


@given(st.lists(POINTS, max_size=12, unique_by=lambda point: point[:2]))
def test_the_front_holds_what_nothing_beats_and_nothing_else(points):
    found = [_found(*point) for point in points]

    def beats(a: VariantFit, b: VariantFit) -> bool:
        ours = (a.variant.parameter_share, a.batch_size, -a.sample_s)
        theirs = (b.variant.parameter_share, b.batch_size, -b.sample_s)
        return ours != theirs and all(x >= y for x, y in zip(ours, theirs, strict=True))

    fitting = [one for one in found if one.fits]
    assert list(compute_variant_front(found)) == [
        one for one in fitting if not any(beats(other, one) for other in fitting)
    ]


def test_smaller_variants_follow_the_largest_and_all_fit():
    search = VariantSearch(list_channel_shares(0.1), _variant, _need, StepLimits(250.0))
    best = search.find_largest(32)
    assert best is not None
    below = search.list_smaller(best, 4)
    assert below[0] == best
    assert len(below) == 4
    shares = [one.variant.channel_share for one in below]
    assert shares == sorted(shares, reverse=True)
    assert all(one.fits for one in below)

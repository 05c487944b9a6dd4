"""Workloads without a table: priced by their layers, held against measured tables that were left out in turn."""

import dataclasses
import math

import numpy as np
import pytest
from contracts.boards import at_maxn
from hypothesis import given
from hypothesis import strategies as st

from fedge.costs.cost_profile import CostProfile, load_calibrated_inference, load_calibrated_training
from fedge.costs.cost_scaling import find_cost_profile
from fedge.costs.gpu_rates import GpuRates, RateObservation, count_optimiser_passes, find_gpu_generation, fit_rates
from fedge.costs.layer_estimate import collect_observations, estimate_network_cost, rescale_to_batch_size
from fedge.costs.layered_work import build_workload, find_known_layers, layer_work_from_spec, network_from_spec
from fedge.costs.layers.network_cost import sum_layers
from fedge.costs.layers.network_record import find_known_network, format_layers
from fedge.devices.catalogue import find, load_catalogue
from fedge.devices.tables.mode_table import read_mode_table
from fedge.errors import BadInput, UnknownName
from fedge.experiment import FleetEntry, NetworkSpec, WorkloadSpec
from fedge.modes import build_grid
from fedge.physics.time_power_model import TIME_NAMES, compute_power_w, compute_step_s
from fedge.types import LayerWork, OperationCounts, ProfileTable, Workload

SPECS = load_catalogue()
ORIN, NANO = SPECS["agx-orin-64gb"], SPECS["nano"]
SEVERAL = (
    ("agx-orin", "resnet18-imagenet"),
    ("agx-orin", "mobilenetv3l-gld23k"),
    ("agx-orin", "yolov8n-coco"),
    ("agx-xavier", "resnet50-tinyimagenet224"),
    ("agx-xavier", "vit-b16-cifar10"),
)
"""The tables of boards that have more than one."""
BOUND_TOP, BOUND_SHAPE = 0.20, 0.14


def _work(name: str, batch_size: int, kind: str = "train") -> Workload:
    layers = find_known_layers(name, kind)
    assert layers is not None
    return Workload(name, batch_size, kind, layers)


def _top_s(profile: CostProfile) -> float:
    return at_maxn(profile.coefficients, SPECS[profile.device].maxn)[0]


def _left_out(table: ProfileTable) -> CostProfile:
    device = find(table.device)
    others = [
        p
        for p in (*load_calibrated_training(), *load_calibrated_inference())
        if not (p.workload == table.workload and p.device == device.name and p.kind == "train")
    ]
    return estimate_network_cost(device, _work(table.workload, table.batch_size), SPECS, others)


@pytest.mark.parametrize(("board", "workload"), SEVERAL)
def test_a_left_out_table_is_foretold_in_its_top_mode_and_in_its_shape(profiles_root, board, workload):
    table = read_mode_table(profiles_root / board / "train" / f"{workload}.csv")
    predicted = compute_step_s(_left_out(table).coefficients, table.maxn, table.modes)
    top = int(np.argmax((table.modes.knobs / table.modes.knobs.max(axis=0)).sum(axis=1)))
    assert abs(predicted[top] / table.step_s[top] - 1.0) <= BOUND_TOP
    scaled = predicted * np.exp(np.median(np.log(table.step_s / predicted)))
    assert float(np.abs(scaled / table.step_s - 1.0).mean()) <= BOUND_SHAPE


@pytest.mark.parametrize("device", sorted(SPECS))
@pytest.mark.parametrize("kind", ["train", "infer"])
def test_every_board_gets_finite_labelled_seconds_and_watts(device, kind):
    spec = SPECS[device]
    cost = estimate_network_cost(spec, _work("resnet50-imagenet", 8, kind), SPECS)
    modes = build_grid(spec)
    seconds, watts = (
        compute_step_s(cost.coefficients, spec.maxn, modes),
        compute_power_w(cost.coefficients, spec.maxn, modes),
    )
    assert np.isfinite(seconds).all()
    assert (seconds > 0).all()
    assert np.isfinite(watts).all()
    assert (watts > 0).all()
    assert (cost.label, cost.kind, cost.device) == ("estimated", kind, device)
    assert cost.evidence is None


@given(small=st.integers(1, 64), more=st.integers(1, 64))
def test_more_samples_never_take_less_time(small, more):
    work = _work("resnet18-imagenet", small)
    larger = dataclasses.replace(work, batch_size=small + more)
    assert _top_s(estimate_network_cost(ORIN, larger, SPECS)) >= _top_s(estimate_network_cost(ORIN, work, SPECS))


def test_a_profile_at_another_batch_size_is_an_estimate_and_moves_with_the_size():
    profile = find_cost_profile(ORIN, "resnet18-imagenet", SPECS)
    moved = rescale_to_batch_size(profile, _work("resnet18-imagenet", 4), ORIN, SPECS)
    assert (moved.label, moved.batch_size, moved.evidence) == ("estimated", 4, None)
    ratio = _top_s(moved) / _top_s(profile)
    small, own = (estimate_network_cost(ORIN, _work("resnet18-imagenet", n), SPECS) for n in (4, profile.batch_size))
    expected = _top_s(small) / _top_s(own)
    assert 0.25 < ratio < 1.0
    assert ratio == pytest.approx(expected, rel=0.15)


def test_loading_between_minibatches_takes_the_time_of_the_images_decoded():
    layers = find_known_layers("resnet18-imagenet")
    assert layers is not None
    inline = dataclasses.replace(layers, loading="inline", image_mpixel=1.0)
    large = dataclasses.replace(inline, image_mpixel=2.0)
    seconds = [
        _top_s(estimate_network_cost(ORIN, Workload("mine", 16, layers=each), SPECS)) for each in (inline, large)
    ]
    assert seconds[1] - seconds[0] == pytest.approx(16 * 7e-3, rel=0.1)


def test_loading_that_a_profile_has_between_its_minibatches_counts_once_and_grows_with_the_samples():
    profile = find_cost_profile(ORIN, "yolov8n-coco", SPECS)
    own = estimate_network_cost(ORIN, _work("yolov8n-coco", profile.batch_size), SPECS)
    assert _top_s(own) == pytest.approx(_top_s(profile), rel=0.1)
    twice = estimate_network_cost(ORIN, _work("yolov8n-coco", 2 * profile.batch_size), SPECS)
    host_s = [math.exp(one.coefficients.time[TIME_NAMES.index("host_s")]) for one in (own, twice)]
    assert host_s[1] == pytest.approx(2 * host_s[0])


NOTHING = LayerWork("nothing", OperationCounts(0.0, 0.0, 0.0, 0.0, 0.0, 0))


@pytest.mark.parametrize(
    ("work", "told"),
    [
        (Workload("mine", 16), "layers are not known"),
        (Workload("mine", 16, layers=NOTHING), "computes nothing"),
        (_work("resnet50-imagenet", 16, "infer"), "a calibrated profile of kind infer"),
    ],
)
def test_what_cannot_be_priced_by_its_layers_is_refused(work, told):
    with pytest.raises(BadInput, match=told):
        estimate_network_cost(ORIN, work, SPECS, load_calibrated_training())


def test_the_error_of_a_family_that_was_not_measured_is_larger():
    known = find_known_layers("resnet50-imagenet")
    assert known is not None
    told = {
        name: estimate_network_cost(
            ORIN, Workload(name, 8, "train", dataclasses.replace(known, network=name)), SPECS
        ).source
        for name in ("resnet101", "densenet121")
    }
    assert "time off by 12 %" in told["resnet101"]
    assert "time off by 20 %" in told["densenet121"]


def _observed(seconds: float, device: str = "agx-orin-64gb") -> RateObservation:
    return RateObservation(device, "net", OperationCounts(1e9, 1e8, 1e8, 1e6, 1e7, 50), 16, True, seconds)


def test_fitted_rates_come_close_to_what_was_seen():
    seen = collect_observations([*load_calibrated_training(), *load_calibrated_inference()])
    rates = fit_rates(seen, SPECS)
    errors = [abs(np.log(rates.predict_s(one, SPECS[one.device]) / one.seconds)) for one in seen]
    assert max(errors) < 0.3
    assert float(np.mean(errors)) < 0.1


@given(st.floats(0.02, 0.5))
def test_one_observation_draws_the_prediction_towards_it(seconds):
    one = _observed(seconds)
    before, after = fit_rates([], SPECS).predict_s(one, ORIN), fit_rates([one], SPECS).predict_s(one, ORIN)
    assert abs(np.log(after / seconds)) <= abs(np.log(before / seconds)) + 1e-9


def test_boards_of_a_generation_share_what_was_seen_on_one_of_them():
    without = fit_rates([], SPECS)

    with_orin = fit_rates([_observed(0.5 * without.predict_s(_observed(1.0), ORIN))], SPECS)

    def ratio(device: str) -> float:
        other = dataclasses.replace(_observed(1.0, device), network="other")
        return with_orin.predict_s(other, SPECS[device]) / without.predict_s(other, SPECS[device])

    assert ratio("orin-nano") < ratio("agx-xavier") < 1.0
    assert ratio("orin-nano") < 0.9


def test_tensor_cores_speed_up_convolutions_in_single_precision_on_ampere_alone():
    rates, convolutions = fit_rates([], SPECS), OperationCounts(1e12, 0.0, 0.0, 0.0, 0.0, 1)

    def share_of_peak(device: str, *, mixed: bool = False) -> float:
        one = RateObservation(device, "net", convolutions, 1, training=False, seconds=math.nan, mixed=mixed)
        return 1e12 / (SPECS[device].gpu_gflops.value * 1e9) / rates.predict_s(one, SPECS[device])

    assert share_of_peak("agx-orin-64gb") == pytest.approx(1.5 * share_of_peak("agx-xavier"), rel=0.01)
    assert share_of_peak("agx-orin-64gb", mixed=True) == pytest.approx(
        share_of_peak("agx-xavier", mixed=True), rel=0.01
    )


def test_a_gpus_generation_is_that_of_its_data_sheet():
    assert {find_gpu_generation(spec) for spec in SPECS.values()} == {"Ampere", "Volta", "Pascal", "Maxwell"}
    assert find_gpu_generation(dataclasses.replace(ORIN, accelerators=())) == ""


def test_the_slope_of_the_rates_is_their_derivative():
    from fedge.costs.gpu_rates import _linearize

    seen = collect_observations(load_calibrated_training())
    rates = fit_rates(seen, SPECS)
    misfit, slopes = _linearize(rates, seen, SPECS)
    for place in range(len(rates.logs)):
        moved = rates.logs.copy()
        moved[place] += 1e-6
        after, _ = _linearize(GpuRates(moved, rates.factors), seen, SPECS)
        assert (misfit - after) / 1e-6 == pytest.approx(slopes[:, place], abs=1e-4)


def test_a_known_workload_carries_its_layers_at_another_batch_size_alone():
    entry = FleetEntry(device="nano")
    assert build_workload(entry, WorkloadSpec()) == Workload("resnet18-imagenet", 16)
    assert build_workload(entry, WorkloadSpec(batch_size=4)).layers == find_known_layers("resnet18-imagenet")


def test_an_entry_of_another_cost_works_at_that_cost_s_batch_size():
    work = build_workload(FleetEntry(device="nano", cost="vit-b16-cifar10"), WorkloadSpec(batch_size=4))
    assert (work.name, work.batch_size, work.layers) == ("vit-b16-cifar10", 32, None)
    with pytest.raises(UnknownName, match=r"fleet\.cost"):
        build_workload(FleetEntry(device="nano", cost="nobody's"), WorkloadSpec())


def test_an_experiment_s_own_network_is_priced_as_the_known_one_of_the_same_layers():
    network = find_known_network("resnet18-imagenet")
    spec = NetworkSpec(model="resnet18", image_mpixel=0.19, layers=format_layers(network), input=(3, 224, 224))
    assert network_from_spec(spec).layers == network.layers
    layers = layer_work_from_spec(spec)
    assert layers == find_known_layers("resnet18-imagenet")
    assert isinstance(layers, LayerWork)


def test_a_network_that_was_not_counted_is_refused():
    with pytest.raises(BadInput, match="nothing"):
        network_from_spec(NetworkSpec(model="resnet18"))
    with pytest.raises(BadInput, match="cannot be read"):
        network_from_spec(NetworkSpec(model="resnet18", layers="no layer"))


def test_a_step_takes_longer_with_more_state_and_less_in_halves_most_of_all_on_tensor_cores():
    def gpu_s(board, **layers):
        held = dataclasses.replace(find_known_layers("vit-b16-cifar10"), **layers)
        profile = estimate_network_cost(board, Workload("own", 32, layers=held), SPECS)
        return math.exp(profile.coefficients.time[TIME_NAMES.index("gpu_s")])

    for board in (ORIN, NANO):
        plain, adam, mixed = gpu_s(board), gpu_s(board, optimizer_state=2.0), gpu_s(board, mixed=True)
        assert plain < adam < 1.3 * plain
        assert mixed < plain
    gains = [gpu_s(board) / gpu_s(board, mixed=True) for board in (ORIN, NANO)]
    assert gains[0] > 1.2 * gains[1]


@given(st.floats(0.0, 4.0), st.integers(0, 1000))
def test_frozen_weights_have_no_update_whatever_the_optimiser_keeps(state, frozen):
    network = find_known_network("vit-b16-cifar10")
    layers = tuple(
        dataclasses.replace(layer, frozen=min(frozen, layer.parameters), training_passes=2.0)
        for layer in network.layers
        if layer.parameters
    )
    counted = sum_layers(dataclasses.replace(network, layers=layers), training=True, optimizer_state=state)
    updating = count_optimiser_passes(state)
    moved = sum(layer.weight_bytes * (2.0 + updating * (1.0 - layer.frozen / layer.parameters)) for layer in layers)
    assert counted.weight_bytes * (3.0 + updating) == pytest.approx(moved)

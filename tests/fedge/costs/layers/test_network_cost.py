"""Layers summed by what bounds them, and the cost of a narrower network."""

import importlib.util
from dataclasses import replace

import pytest

from fedge.costs.layers.network_cost import Convolution, LayerCost, NetworkCost, narrow_network, sum_layers
from fedge.costs.layers.network_record import find_known_network, format_layers, list_known_workloads, parse_layers


def _layer(kind: str, flop: float = 0.0, moved: float = 0.0, kernel: float = 0, groups: int = 1) -> LayerCost:
    convolution = Convolution(8, 8, kernel, 0, 1, groups, 16) if kernel else None
    return LayerCost("a", kind, flop, moved / 2, moved / 2, convolution=convolution)


def test_layers_are_sorted_by_what_bounds_them():
    network = NetworkCost(
        "net",
        (8, 16, 16),
        (
            _layer("conv", 100.0, 10.0, kernel=3),
            _layer("conv", 20.0, 4.0, kernel=1),
            _layer("conv", 7.0, 3.0, kernel=3, groups=8),
            _layer("conv", 5.0, 2.0, kernel=3, groups=2),
            _layer("linear", 30.0, 6.0),
            _layer("relu", 1.0, 8.0),
            _layer("view"),
        ),
        "made up",
    )
    found = sum_layers(network)
    assert (found.dense_flop, found.pointwise_flop) == (105.0, 50.0)
    assert (found.moved_bytes, found.depthwise_bytes) == (30.0, 3.0)
    assert found.operators == 6


def test_a_folded_normalisation_counts_with_what_it_moves_in_training():
    folded = LayerCost("bn", "batch_norm", 0.0, 0.0, 0.0, inputs=((1, 8, 4, 4),), output=(1, 8, 4, 4))
    assert sum_layers(NetworkCost("net", (8, 4, 4), (folded,), "")).moved_bytes == 4 * 2 * 128


@pytest.mark.parametrize("workload", list_known_workloads())
def test_layers_as_text_are_the_same_layers(workload):
    network = find_known_network(workload)
    assert parse_layers(format_layers(network)) == network.layers


@pytest.mark.parametrize(("passes", "frozen"), [(3.0, 0), (3.0, 5), (2.0, 9), (1.0, 0)])
def test_a_layers_frozen_parameters_survive_as_text(passes, frozen):
    layer = LayerCost("a", "linear", 1.0, 4.0, 4.0, parameters=9, training_passes=passes, frozen=frozen)
    assert parse_layers(format_layers(NetworkCost("net", (3,), (layer,), ""))) == (layer,)


def test_text_that_is_no_layer_is_refused():
    with pytest.raises(ValueError, match="zip"):
        parse_layers("nonsense")


def known(name: str = "resnet18-imagenet") -> NetworkCost:
    found = find_known_network(name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["resnet18-imagenet", "mobilenetv3l-gld23k", "resnet50-tinyimagenet224"])
def test_every_figure_falls_with_the_width_and_weights_nearly_with_its_square(name):
    full = known(name)
    half, quarter = narrow_network(full, 0.5), narrow_network(full, 0.25)
    for figure in ("flop", "weight_bytes", "activation_bytes", "parameters", "activations"):
        assert getattr(full, figure) > getattr(half, figure) > getattr(quarter, figure) > 0
    assert half.parameters == pytest.approx(full.parameters / 4, rel=0.3)  # the scores stay
    assert half.activations == pytest.approx(full.activations / 2, rel=0.02)


def test_input_and_scores_stay_and_depthwise_convolutions_stay_depthwise():
    half = narrow_network(known("mobilenetv3l-gld23k"), 0.5)
    assert half.convolutions[0].in_channels == 3
    depthwise = [c for c in known("mobilenetv3l-gld23k").convolutions if c.groups > 1]
    assert [c.groups for c in half.convolutions if c.groups > 1] == [-(-c.groups // 2) for c in depthwise]
    assert (half.layers[0].inputs[0][1], half.layers[-1].output[-1]) == (3, 1000)
    assert half.input_shape == known("mobilenetv3l-gld23k").input_shape


def test_a_dense_layer_with_as_many_outputs_as_inputs_loses_both():
    def layer(name: str, given: int, made: int) -> LayerCost:
        work = given * made
        return LayerCost(
            name, "linear", 2.0 * work, 4.0 * given, 4.0 * made, 4.0 * work, work, made, ((1, given),), (1, made)
        )

    full = NetworkCost("dense", (8,), (layer("a", 8, 64), layer("b", 64, 64), layer("c", 64, 10)), "made up")
    half = narrow_network(full, 0.5)
    assert [one.parameters for one in half.layers] == [8 * 32, 32 * 32, 32 * 10]
    assert half.layers[1].flop == 2.0 * 32 * 32


def test_a_network_with_frozen_layers_that_are_no_adapters_is_narrowed_as_any():
    full = known()
    frozen = [replace(layer, frozen=layer.parameters, training_passes=1.0) for layer in full.layers[:-1]]
    half = narrow_network(replace(full, layers=(*frozen, full.layers[-1])), 0.5)
    assert half.parameters == narrow_network(full, 0.5).parameters
    assert 0 < half.trained_parameters == half.layers[-1].parameters < full.layers[-1].parameters


def test_adapters_alone_lose_rank_frozen_or_not():
    frozen = LayerCost("q.base_layer", "linear", 100.0, 4.0, 4.0, parameters=50, frozen=50, training_passes=2.0)
    a = LayerCost("q.lora_A.default", "linear", 20.0, 4.0, 4.0, parameters=10, frozen=10, training_passes=2.0)
    b = LayerCost("q.lora_B.default", "linear", 20.0, 4.0, 4.0, parameters=10)
    half = narrow_network(NetworkCost("net", (3,), (frozen, a, b), ""), 0.5)
    assert [layer.parameters for layer in half.layers] == [50, 5, 5]
    assert half.trained_parameters == 5


def test_a_network_told_as_one_layer_is_narrowed_as_a_whole():
    whole = LayerCost("all", "printed", 800.0, 40.0, 40.0, 16.0, parameters=4, activations=10)
    half = narrow_network(NetworkCost("told", (3, 8, 8), (whole,), "printed"), 0.5)
    assert (half.flop, half.weight_bytes, half.activation_bytes) == (200.0, 4.0, 40.0)


@pytest.mark.slow
def test_it_counts_what_the_narrow_network_itself_has():
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not here")
    from fedge.worker import architectures, builtin_tasks, narrow_networks

    shape = builtin_tasks.builtin_shape("resnet18-imagenet")
    net = narrow_networks.narrow_network(architectures.MODELS["resnet18-imagenet"](shape), 0.5, shape)
    counted = narrow_network(known(), 0.5)
    assert counted.parameters == pytest.approx(sum(w.numel() for w in net.parameters()), rel=0.01)

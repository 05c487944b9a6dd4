"""A network read from an ONNX file costs what the traced module costs; files that cannot be counted are refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from fedge.costs.layers.network_source import build_module, load_network_cost
from fedge.costs.layers.onnx_graph import read_onnx
from fedge.errors import BadInput

onnx = pytest.importorskip("onnx", reason="needs the package onnx")
FLOAT, WHOLE = 1, 7


def written(
    path: Path,
    nodes: list[Any],
    inputs: dict[str, list[int | str]],
    weights: dict[str, tuple[int, ...]],
    sizes: dict[str, list[int]] | None = None,
    told: list[int] | None = None,
) -> Path:
    """A graph of these nodes, with zeros as weights; ``told`` is the output's shape where the file says it."""
    helper, numbers = onnx.helper, onnx.numpy_helper
    import numpy as np

    initial = [numbers.from_array(np.zeros(shape, np.float32), name) for name, shape in weights.items()]
    initial += [numbers.from_array(np.array(value, np.int64), name) for name, value in (sizes or {}).items()]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("out", FLOAT, told)],
        initial,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), str(path))
    return path


def node(kind: str, inputs: str, output: str, **settings: Any) -> Any:
    return onnx.helper.make_node(kind, inputs.split(), [output], **settings)


CLASSIFIER = {
    "w": (8, 3, 3, 3),
    "gain": (8,),
    "shift": (8,),
    "mean": (8,),
    "var": (8,),
    "dense": (10, 8),
    "bias": (10,),
}


def classifier(path: Path, batch: int | str = 1, side: int | str = 6) -> Path:
    nodes = [
        node("Conv", "x w", "a", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("BatchNormalization", "a gain shift mean var", "b"),
        node("Relu", "b", "c"),
        node("GlobalAveragePool", "c", "d"),
        node("Flatten", "d", "e"),
        node("Gemm", "e dense bias", "out", transB=1),
    ]
    return written(path, nodes, {"x": [batch, 3, side, side]}, CLASSIFIER)


@pytest.mark.parametrize("batch", [1, "batch"])
def test_a_small_classifier_is_counted_by_hand(tmp_path, batch):
    cost = read_onnx(classifier(tmp_path / "small.onnx", batch))
    conv, pooled = 8 * 3 * 3, 8
    assert [layer.kind for layer in cost.layers] == ["conv", "batch_norm", "relu", "mean", "linear"]
    assert cost.flop == conv * (2 * 27 + 1) + conv + conv + 2 * 8 * 10
    assert cost.activation_bytes == 4 * ((108 + conv) + 2 * conv + (conv + pooled) + (8 + 10))
    assert cost.weight_bytes == 4 * (216 + 8 + 80 + 10)
    assert cost.parameters == 216 + 16 + 80 + 10
    assert (cost.name, cost.input_shape, cost.unknown) == ("small", (3, 6, 6), ())
    (found,) = cost.convolutions
    assert (found.kernel, found.padding, found.stride, found.input_size, found.output_size) == (3, 1, 2, 6, 3)


@pytest.mark.parametrize(
    ("batch", "side", "told"),
    [
        ("batch", "side", r"input x: got batchx3xsidexside; .*only the batch may be left open"),
        (4, 6, "a batch fixed at 4"),
    ],
)
def test_sizes_that_are_open_and_larger_batches_are_refused(tmp_path, batch, side, told):
    with pytest.raises(BadInput, match=told):
        read_onnx(classifier(tmp_path / "net.onnx", batch, side))


def test_two_inputs_are_refused_by_name(tmp_path):
    path = written(tmp_path / "two.onnx", [node("Add", "x y", "out")], {"x": [1, 4], "y": [1, 4]}, {})
    with pytest.raises(BadInput, match=r"2 inputs \(x, y\)"):
        read_onnx(path)


@pytest.mark.parametrize("content", [b"", b"no graph at all", b"\x08\x01"])
def test_a_broken_file_is_one_line(tmp_path, content):
    path = tmp_path / "broken.onnx"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"broken\.onnx: got .*; a whole ONNX file") as caught:
        read_onnx(path)
    assert "\n" not in str(caught.value)


def test_a_cut_or_absent_file_is_one_line(tmp_path):
    path = classifier(tmp_path / "cut.onnx")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(BadInput, match="a whole ONNX file"):
        read_onnx(path)
    with pytest.raises(BadInput, match="no such file"):
        read_onnx(tmp_path / "absent.onnx")


def test_without_the_package_the_user_is_told_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(BadInput, match=r"pip install 'fedge\[onnx\]'"):
        read_onnx(tmp_path / "net.onnx")


def test_an_operator_without_a_rule_is_named(tmp_path):
    nodes = [node("Det", "x", "a"), node("Relu", "x", "b"), node("Add", "a b", "out")]
    cost = read_onnx(written(tmp_path / "odd.onnx", nodes, {"x": [1, 4, 4]}, {}))
    assert cost.unknown == ("Det",)
    assert [layer.kind for layer in cost.layers] == ["relu", "add"]


def test_shapes_that_depend_on_numbers_are_refused(tmp_path):
    nodes = [node("NonZero", "x", "places"), node("Cast", "places", "a", to=FLOAT), node("Relu", "a", "out")]
    with pytest.raises(BadInput, match="a shape that cannot be known beforehand"):
        read_onnx(written(tmp_path / "nonzero.onnx", nodes, {"x": [1, 4]}, {}))


def test_an_lstm_costs_the_same_as_in_torch(tmp_path):
    from torch import Tensor, nn

    from fedge.costs.layers.torch_trace import trace_module

    class Memory(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.memory = nn.LSTM(4, 8, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.memory(x)[0]

    weights = {"w": (1, 32, 4), "r": (1, 32, 8), "b": (1, 64)}
    nodes = [node("Transpose", "x", "steps", perm=[1, 0, 2]), node("LSTM", "steps w r b", "out", hidden_size=8)]
    found = read_onnx(written(tmp_path / "lstm.onnx", nodes, {"x": [1, 5, 4]}, weights)).layers[1]
    traced = next(layer for layer in trace_module(Memory(), (5, 4), "net").layers if layer.kind == "lstm")
    assert (found.flop, found.weight_bytes, found.parameters) == (traced.flop, traced.weight_bytes, traced.parameters)


def test_sizes_that_are_divided_on_the_way_are_computed_too(tmp_path):
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape second", "n"),
        node("Div", "n two", "half"),
        node("Concat", "one half last", "target", axis=0),
        node("Reshape", "x target", "a"),
        node("MatMul", "a w", "out"),
    ]
    sizes = {"second": [1], "two": [2], "one": [1], "last": [8]}
    (layer,) = read_onnx(written(tmp_path / "half.onnx", nodes, {"x": ["n", 4, 4]}, {"w": (8, 3)}, sizes)).layers
    assert (layer.kind, layer.flop, layer.output) == ("linear", 2 * 2 * 8 * 3, (1, 2, 3))


def test_a_product_written_as_a_sum_over_letters_is_counted_as_one(tmp_path):
    nodes = [node("Einsum", "x w", "out", equation="b i j, k j -> b i k")]
    (layer,) = read_onnx(written(tmp_path / "sum.onnx", nodes, {"x": [1, 3, 4]}, {"w": (5, 4)})).layers
    assert (layer.kind, layer.flop, layer.weight_bytes) == ("matmul", 2 * 3 * 4 * 5, 80)


@pytest.mark.parametrize(("operator", "shape"), [("MaxPool", [1, 1, 4, 4]), ("Conv", [1, 4, 4, 4])])
def test_an_operator_without_what_it_needs_is_one_line(tmp_path, operator, shape):
    path = written(tmp_path / "half.onnx", [node(operator, "x", "out")], {"x": shape}, {}, told=shape)
    with pytest.raises(BadInput, match=f"an operator {operator} that cannot be read"):
        read_onnx(path)


def test_what_is_scattered_moves_alone(tmp_path):
    nodes = [node("ScatterND", "table places x", "a"), node("Relu", "a", "out")]
    cost = read_onnx(written(tmp_path / "scatter.onnx", nodes, {"x": [1, 4]}, {"table": (9, 4)}, {"places": [[2]]}))
    assert [(layer.kind, layer.read_bytes) for layer in cost.layers] == [("scatter", 16), ("relu", 4 * 36)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["resnet18", pytest.param("mobilenet_v3_small", marks=pytest.mark.long), "squeezenet1_1"]
)
def test_an_exported_network_costs_what_the_traced_one_does(tmp_path, name):
    import torch

    pytest.importorskip("onnxscript", reason="torch.onnx needs onnxscript")
    module, shape = build_module(name)
    path = tmp_path / f"{name}.onnx"
    torch.onnx.export(module.eval(), (torch.zeros(1, *shape),), str(path), dynamo=True, verbose=False)
    found, traced = read_onnx(path), load_network_cost(name)
    assert found.unknown == ()
    assert found.flop == pytest.approx(traced.flop, rel=0.01)
    assert found.activation_bytes == pytest.approx(traced.activation_bytes, rel=0.01)
    assert found.weight_bytes == pytest.approx(traced.weight_bytes, rel=0.02)
    assert found.parameters == pytest.approx(traced.parameters, rel=0.02)
    assert found.convolutions == traced.convolutions

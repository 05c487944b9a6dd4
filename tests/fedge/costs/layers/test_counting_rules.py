"""Every rule counts what loops over the definition count, and the totals are those of the definition."""

from itertools import product as grid
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.costs.layers.counting_rules import RULES, Operation, count_operation

small = st.integers(1, 4)
side = st.integers(1, 6)


def convolution_by_loops(channels: int, outputs: tuple[int, ...], window: tuple[int, ...], groups: int) -> int:
    """Multiply, add to the sum; at the end add the bias."""
    flop = 0
    for _ in grid(*(range(size) for size in outputs[1:])):
        for _ in range(channels // groups):
            for _ in grid(*(range(size) for size in window)):
                flop += 2
        flop += 1
    return flop


@given(small, small, small, st.tuples(side, side), st.tuples(small, small))
def test_a_convolution_holds_a_multiplication_and_a_sum_per_weight_and_output_and_its_bias(
    per_group, out_per_group, groups, outside, window
):
    channels = per_group * groups
    outputs = (1, out_per_group * groups, *outside)
    weight = (outputs[1], per_group, *window)
    found = count_operation(
        Operation("conv", ((1, channels, 9, 9),), (weight,), (outputs,), window=window, groups=groups)
    )
    assert found.flop == convolution_by_loops(channels, outputs, window, groups)
    assert (found.read, found.written, found.weight) == (channels * 81, prod(outputs), prod(weight))


@given(small, small, st.tuples(small, small), st.tuples(small, small))
def test_a_transposed_convolution_multiplies_every_input_into_a_window_of_every_output_channel(
    inside, outside, image, window
):
    outputs = (1, outside, *(2 * size for size in image))
    found = count_operation(
        Operation("conv_transpose", ((1, inside, *image),), ((inside, outside, *window),), (outputs,), window=window)
    )
    by_loops = sum(2 for _ in range(inside * prod(image)) for _ in range(outside * prod(window)))
    assert found.flop == by_loops + prod(outputs)


@pytest.mark.parametrize("kind", ["linear", "matmul"])
@given(small, small, small)
def test_a_product_holds_a_multiplication_and_a_sum_per_output_and_inner_element(kind, m, n, k):
    found = count_operation(Operation(kind, ((m, k),), ((k, n),), ((m, n),), inner=k))
    assert found.flop == sum(2 for _ in range(m) for _ in range(n) for _ in range(k))
    assert (found.read, found.written, found.weight) == (m * k, m * n, k * n)


def windows_of(size: int, windows: int) -> list[range]:
    """Where torch places the windows of adaptive pooling: from floor(i n / w) to ceil((i + 1) n / w)."""
    return [range(i * size // windows, -((i + 1) * size // -windows)) for i in range(windows)]


@given(small, st.tuples(side, side), st.tuples(side, side))
def test_adaptive_pooling_counts_every_element_of_every_window(channels, inside, outside):
    found = count_operation(Operation("adaptive_avg_pool", ((1, channels, *inside),), (), ((1, channels, *outside),)))
    rows, columns = (windows_of(i, o) for i, o in zip(inside, outside, strict=True))
    assert found.flop == channels * sum(len(row) * len(column) for row in rows for column in columns)


@given(small, st.tuples(side, side), st.tuples(small, small))
def test_pooling_compares_one_less_than_it_averages(channels, outside, window):
    shapes = ((1, channels, 9, 9),), (), ((1, channels, *outside),)
    largest, mean = (count_operation(Operation(kind, *shapes, window=window)) for kind in ("max_pool", "avg_pool"))
    outputs = channels * prod(outside)
    assert (largest.flop, mean.flop) == (outputs * (prod(window) - 1), outputs * prod(window))
    assert (largest.read, largest.written) == (channels * 81, outputs)


@given(st.lists(side, min_size=1, max_size=3))
def test_element_wise_operators_read_each_activation_in_full_and_weights_once_per_batch(shape):
    whole, narrow = tuple(shape), (1,) * len(shape)
    elements = prod(whole)
    broadcast = count_operation(Operation("mul", (whole, narrow), (), (whole,)))
    by_weight = count_operation(Operation("add", (whole,), (whole,), (whole,)))
    assert (broadcast.flop, broadcast.read, broadcast.written, broadcast.weight) == (
        elements,
        2 * elements,
        elements,
        0,
    )
    assert (by_weight.read, by_weight.weight) == (elements, elements)


@given(small, side, side, small, small)
def test_attention_is_the_sum_of_the_operators_that_it_is_made_of(heads, queries, keys, width, value_width):
    q, k, v = (heads, queries, width), (heads, keys, width), (heads, keys, value_width)
    scores, out = (heads, queries, keys), (heads, queries, value_width)
    whole = count_operation(
        Operation("attention", (q, k, v), (), (out,), sizes=(heads, queries, keys, width, value_width))
    )
    parts = [
        count_operation(Operation("mul", (q,), (), (q,))),
        count_operation(Operation("mul", (k,), (), (k,))),
        count_operation(Operation("matmul", (q, k), (), (scores,), inner=width)),
        count_operation(Operation("softmax", (scores,), (), (scores,))),
        count_operation(Operation("matmul", (scores, v), (), (out,), inner=keys)),
    ]
    assert whole.flop == sum(part.flop for part in parts)
    assert whole.read == sum(part.read for part in parts)
    assert whole.written == sum(part.written for part in parts)


@given(st.integers(1, 5), st.lists(small, min_size=1, max_size=3), small)
def test_an_lstm_multiplies_input_and_state_into_four_gates_at_every_step_of_every_layer(steps, widths, hidden):
    sizes = (steps, *widths)
    found = count_operation(
        Operation("lstm", ((1, steps, widths[0]),), (), ((1, steps, hidden),), inner=hidden, sizes=sizes)
    )
    products = sum(2 * (4 * width * hidden + 4 * hidden * hidden) for _ in range(steps) for width in widths)
    gates = steps * len(widths) * hidden * (3 * 4 + 2 * 5 + 4 + 4)
    assert found.flop == products + gates


def test_a_kind_without_a_rule_is_an_error_and_not_zero():
    with pytest.raises(KeyError):
        count_operation(Operation("no such kind", ((1,),), (), ((1,),)))


@pytest.mark.parametrize("kind", sorted(RULES))
def test_no_rule_counts_less_than_nothing(kind):
    shape = (1, 4, 6, 6)
    operation = Operation(kind, (shape,), (), (shape,), window=(1, 1), inner=4, sizes=(1, 4, 4, 4, 4))
    found = count_operation(operation)
    assert min(found.flop, found.read, found.written, found.weight) >= 0

"""Encoded updates: their bytes, what comes back, what is kept for the next round, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.flower.update_codec import (
    PREFIX,
    UndecodableUpdate,
    compute_up_share,
    decode_result,
    decode_vector,
    encode_answer,
    encode_vector,
)
from fedge.types import Compression, Floats32, NamedArrays, RoundGoal, TrainResult
from fedge.wire import ReplyMessage, RequestMessage

KINDS = [Compression("fp16"), Compression("int8"), Compression("topk", 0.1), Compression("topk", 1.0)]
MODEL: NamedArrays = {
    "conv": np.linspace(-1.0, 1.0, 600, dtype=np.float32).reshape(20, 30),
    "mean": np.ones(20, np.float32),
    "count": np.array(3),
    "bias": np.zeros(20, np.float32),
}
TRAINABLE = ("conv", "bias")
updates = st.lists(st.floats(-100.0, 100.0, width=32), min_size=1, max_size=700)


def train(seed: int = 0) -> TrainResult:
    rng = np.random.default_rng(seed)
    moved = {name: MODEL[name] + rng.normal(0.0, 0.1, np.shape(MODEL[name])).astype("f4") for name in TRAINABLE}
    return TrainResult({**MODEL, **moved, "count": np.array(9)}, 0.5, 0.9)


def send(compression: Compression, trained: TrainResult, residual: Floats32 | None = None) -> TrainResult:
    goal = RoundGoal("maxn", 1, compression=compression)
    request = RequestMessage("train", goal=goal, trainable=TRAINABLE)
    _, sent = encode_answer(request, MODEL, residual, (ReplyMessage("nano-1"), trained))
    assert sent is not None
    return sent


@pytest.mark.parametrize("compression", KINDS, ids=str)
def test_the_bytes_that_are_sent_are_those_that_were_counted_from_the_shapes(compression):
    sent = send(compression, train())
    size = sum(value.nbytes for value in sent.arrays.values())
    assert size / sum(value.nbytes for value in MODEL.values()) == compute_up_share(compression, MODEL, TRAINABLE)


@pytest.mark.parametrize("compression", KINDS, ids=str)
def test_statistics_and_counters_arrive_as_they_are_and_the_order_is_the_models(compression):
    back = decode_result(MODEL, TRAINABLE, send(compression, train()))
    assert list(back.arrays) == list(MODEL)
    assert back.arrays["count"] == 9
    assert back.arrays["mean"].tolist() == MODEL["mean"].tolist()
    assert all(back.arrays[name].dtype == MODEL[name].dtype for name in MODEL)


@given(updates, st.sampled_from([Compression("fp16"), Compression("int8")]))
def test_a_rounded_update_is_off_by_at_most_half_a_step(values, compression):
    update = np.array(values, dtype=np.float32)
    error = np.abs(decode_vector(encode_vector(compression, update), len(update)) - update)
    step = np.abs(update) * 2.0**-10 + 1e-7 if compression.kind == "fp16" else np.abs(update).max() / 127.0
    assert (error <= 0.51 * step + 1e-6).all()


@given(updates, st.floats(0.01, 1.0))
def test_the_largest_values_are_sent_and_the_others_are_kept(values, keep):
    update = np.array(values, dtype=np.float32)
    back = decode_vector(encode_vector(Compression("topk", keep), update), len(update))
    sent = back != 0.0
    assert (back[sent] == update[sent]).all()
    assert np.abs(update[~sent]).max(initial=0.0) <= np.abs(update[sent]).min(initial=np.inf) or not sent.any()


def test_what_an_update_left_out_is_sent_with_later_ones():
    compression, residual, received = Compression("topk", 0.2), None, np.zeros(620, np.float32)
    still = TrainResult(MODEL, 0.5, 0.9)
    for trained in (train(), *(still,) * 8):
        sent = send(compression, trained, residual)
        residual = sent.residual
        received += decode_vector({k: v for k, v in sent.arrays.items() if k.startswith(PREFIX)}, 620)
    whole = np.concatenate([np.ravel(train().arrays[name] - MODEL[name]) for name in TRAINABLE])
    assert np.allclose(received, whole, atol=1e-6)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("compression", KINDS, ids=str)
def test_an_update_that_is_not_finite_is_sent_as_it_is_and_leaves_nothing_behind(compression, wrong):
    trained = train()
    trained.arrays["conv"][3, 4] = wrong
    sent = send(compression, trained, np.ones(620, np.float32))
    assert sent is trained
    assert sent.residual is None


@pytest.mark.parametrize(
    "arrays",
    [
        {"fp16": np.zeros(619, np.float16)},
        {"int8": np.zeros(620, np.int8)},
        {"int8": np.zeros(620, np.int8), "scale": np.zeros(1, np.float32)},
        {"place": np.array([620], np.int32), "value": np.ones(1, np.float32)},
        {"place": np.array([-1], np.int32), "value": np.ones(1, np.float32)},
        {"place": np.array([0.5]), "value": np.ones(1, np.float32)},
        {"place": np.zeros(2, np.int32), "value": np.ones(1, np.float32)},
        {"fp16": np.full(620, "x")},
        {"fp16": np.zeros(620, ">f2")},
        {"int8": np.zeros(620, np.complex64), "scale": np.zeros(3, np.float32)},
        {"int8": np.zeros(620, np.int8), "scale": np.full(3, None)},
        {"int8": np.zeros(620, np.int8), "scale": np.full(3, np.inf, np.float32)},
        {"place": np.zeros(1, np.int32), "value": np.array(["x"])},
        {"other": np.zeros(620)},
    ],
    ids="+".join,
)
def test_arrays_that_encode_no_update_of_the_model_are_refused(arrays):
    with pytest.raises(UndecodableUpdate, match="620 values"):
        decode_result(MODEL, TRAINABLE, TrainResult({PREFIX + name: value for name, value in arrays.items()}, 0.0, 0.0))

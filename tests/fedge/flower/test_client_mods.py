"""Flower's mods change what a client sends as they do in a Flower app; what they cannot be combined with is refused."""

import random
import re

import numpy as np
import pytest

pytest.importorskip("flwr", reason="mods are Flower's")
pytest.importorskip("torch", reason="its generator is seeded")

import torch
from contracts.reports import answer
from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from experiments.backends.strategy_check import check_strategy
from experiments.spec.resource_checks import check_memory
from fedge.errors import BadInput
from fedge.experiment import Experiment
from fedge.flower.client_mods import apply_mods
from fedge.flower.messages import to_array_record
from fedge.types import NamedArrays, TrainResult
from fedge.wire import ReplyMessage, RequestMessage

BEFORE: NamedArrays = {"w": np.zeros((2, 2), np.float32), "scale": np.float32(1.0), "steps": np.int64(3)}
AFTER: NamedArrays = {"w": np.full((2, 2), 5.0, np.float32), "scale": np.float32(1.0), "steps": np.int64(9)}
LOCAL_DP = {"name": "LocalDpMod", "options": {"clipping_norm": 2.0, "sensitivity": 0.1, "epsilon": 10, "delta": 1e-5}}
ADAPTIVE = {
    "name": "DifferentialPrivacyClientSideAdaptiveClipping",
    "options": {"noise_multiplier": 0.1, "num_sampled_clients": 2},
    "wraps": {"name": "FedAvg"},
}


def build(*mods: object, **changes: object) -> Experiment:
    fleet = [{"device": "nano", "count": 2}]
    named = [{"name": mod} if isinstance(mod, str) else mod for mod in mods]
    return Experiment.model_validate({"fleet": fleet, "mods": named, **changes})


def send(experiment: Experiment, number: int = 1, norm: float = 2.0) -> tuple[ReplyMessage, TrainResult]:
    settings = {"clipping_norm": norm, "server-round": 1.0}
    request = RequestMessage("train", number, settings=settings, trainable=("w", "scale"))
    reply, trained = apply_mods(experiment, request, BEFORE, (answer("nano-1", 5.0), TrainResult(AFTER, 0.5, 0.25)))
    assert trained is not None
    return reply, trained


def test_adaptive_clipping_shortens_the_change_to_the_strategys_norm_and_says_whether_it_had_to():
    _, trained = send(build("adaptiveclipping_mod"))

    assert np.linalg.norm(trained.arrays["w"]) == pytest.approx(2.0)
    assert trained.metrics == {"norm_bit": 1.0}
    assert (trained.loss, trained.accuracy) == (0.5, 0.25)
    assert trained.arrays["steps"] == 9, "a counter is not clipped"
    assert trained.arrays["scale"].shape == ()
    assert send(build("adaptiveclipping_mod"), norm=100.0)[1].metrics == {"norm_bit": 0.0}


def test_mods_run_in_the_order_of_the_file_and_noise_follows_from_seed_board_and_round():
    once, again = (send(build("fixedclipping_mod", LOCAL_DP))[1].arrays["w"] for _ in range(2))

    assert np.linalg.norm(once) <= 2.0 + 1e-6, "the noise of the inner mod is clipped by the outer one"
    assert np.array_equal(once, again)
    assert not np.array_equal(once, send(build("fixedclipping_mod", LOCAL_DP), number=2)[1].arrays["w"])
    assert np.linalg.norm(send(build(LOCAL_DP, "fixedclipping_mod"))[1].arrays["w"]) != pytest.approx(2.0, abs=1e-6)


def test_a_mod_that_fails_makes_the_client_fail():
    request = RequestMessage("train", 1, trainable=("w", "scale"))  # without the norm
    given = answer("nano-1", 5.0), TrainResult(AFTER, 0.5, 0.25)
    reply, trained = apply_mods(build("fixedclipping_mod"), request, BEFORE, given)

    assert trained is None
    assert reply.error.startswith("a mod failed: ")
    assert "clipping_norm" in reply.error


def draw_from_all(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    drawn = {"numpy": np.random.random(), "python": random.random(), "torch": float(torch.rand(1))}  # noqa: NPY002
    reply = call_next(message, context)
    next(iter(reply.content.metric_records.values())).update(drawn)
    return reply


def test_every_global_generator_is_seeded():
    drawn = [send(build(f"{__name__}:draw_from_all"), number)[1].metrics for number in (1, 1, 2)]

    assert drawn[0] == drawn[1]
    assert all(drawn[0][name] != drawn[2][name] for name in ("numpy", "python", "torch"))


def return_nothing(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    return None


def raise_error(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    raise RuntimeError("no key")


def drop_loss(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    reply = call_next(message, context)
    del reply.content.metric_records["metrics"]["loss"]
    return reply


def flatten(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    reply = call_next(message, context)
    weights, scale = reply.content.array_records["arrays"].to_numpy_ndarrays()
    reply.content["arrays"] = to_array_record({"w": weights.ravel(), "scale": scale})
    return reply


@pytest.mark.parametrize(
    ("mod", "reason"),
    [
        (raise_error, r"RuntimeError: no key \(test_client_mods.py:\d+\)"),
        (return_nothing, "it returned NoneType; a mod returns what call_next gave it, or a Message"),
        (drop_loss, "what it sends has no loss"),
        (
            flatten,
            re.escape(
                "it sends arrays of the shapes {'w': (4,), 'scale': (1,)}; the model has {'w': (2, 2), 'scale': (1,)}"
            ),
        ),
    ],
)
def test_what_a_mod_spoils_fails_its_client_alone(mod, reason):
    request = RequestMessage("train", 1, trainable=("w", "scale"))
    given = answer("nano-1", 5.0), TrainResult(AFTER, 0.5, 0.25)

    reply, trained = apply_mods(build(f"{__name__}:{mod.__name__}"), request, BEFORE, given)

    assert trained is None
    assert re.fullmatch(f"a mod failed: {reason}", str(reply.error)), reply.error


@pytest.mark.parametrize(
    ("mods", "changes", "complaint"),
    [
        (["secaggplus_mod"], {}, r"mods\[0\].name: got 'secaggplus_mod'; no such mod: .* former workflows"),
        (["clipping_mod"], {}, r"mods\[0\].name: got 'clipping_mod'; did you mean .*\? known: LocalDpMod"),
        ([{"name": "LocalDpMod", "options": {"epsilon": 1}}], {}, r"mods\[0\].options: .*what LocalDpMod takes"),
        ([{"name": "message_size_mod", "options": {"x": 1}}], {}, r"mods\[0\].options: .*a function without options"),
        (["adaptiveclipping_mod"], {}, r"mods: got adaptiveclipping_mod without .*strategy.name: Differential"),
        ([], {"strategy": ADAPTIVE}, r"mods: got none with Differential.*; adaptiveclipping_mod once"),
        (
            ["adaptiveclipping_mod"],
            {"strategy": {"name": "FedBuff", "options": {"buffer_size": 2}}},
            r"mods: got adaptiveclipping_mod without the strategy that sets its norm",
        ),
        (
            ["adaptiveclipping_mod"],
            {"strategy": ADAPTIVE, "late": {"action": "partial"}},
            r"late.action: got 'partial'; accept or drop: with Differential.* after it was clipped",
        ),
    ],
)
def test_what_cannot_be_combined_is_refused_in_one_line(mods, changes, complaint):
    with pytest.raises(BadInput, match=complaint) as raised:
        check_strategy(build(*mods, **changes))
    assert "\n" not in str(raised.value)


def test_mods_and_narrow_networks_do_not_go_together():
    memory = {"memory": {"widths": [1.0, 0.5]}}
    with pytest.raises(
        BadInput, match=r"workload.memory.widths: .*the mod LocalDpMod compares or clips .*; or no mods"
    ):
        check_memory(build(LOCAL_DP, workload=memory))

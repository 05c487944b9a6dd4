"""Emulated boards with a loader: their true minibatches, what they measure, and boards without one as ever."""

import dataclasses
import math
from functools import cache

import numpy as np
import pytest

from fedge import workloads
from fedge.client import emulated, emulated_resources
from fedge.client.client_setup import plan_conditions
from fedge.client.corrections import to_reference
from fedge.client.emulated import EmulatedClient, load_client
from fedge.client.emulated_resources import true_peak_mb
from fedge.client.memory_scaling import ScalingContext, build_narrow_offers, choose_first_attempt
from fedge.errors import BadInput
from fedge.experiment import Experiment, FleetEntry, LoaderSpec, ServingSpec, WorkloadSpec
from fedge.flower.update_codec import count_encoded_bytes, encode_answer
from fedge.types import Compression, RoundGoal, TrainingScale, TrainResult
from fedge.wire import ClientState, ReplyMessage, RequestMessage, from_json, to_json

pytest.importorskip("torch", reason="boards train, which needs torch")

SLOW = LoaderSpec(workers=1, storage="sd", cached=0.0, image_mpixel=1.0)

POINTS, FIGURES = 64, (13.459100799398339, 350.57369177386647, 73.22914883151043, 515.0640138722482)
"""What a plain board offers: pinned, so that what is done for boards with a loader leaves others alone."""


def _experiment(loader: LoaderSpec | None, serving: ServingSpec | None = None) -> Experiment:
    entry = FleetEntry(device="agx-xavier", loader=loader, serving=serving)
    work = WorkloadSpec(task="digits-cnn", cost="mobilenetv3l-gld23k", local_epochs=1)
    return Experiment(backend="local", fleet=(entry,), workload=work)


def _seat(loader: LoaderSpec | None) -> EmulatedClient:
    return load_client(_experiment(loader), 0)


def test_a_board_without_a_loader_is_what_it_was_with_one_left_out():
    plain, slow = _seat(None), _seat(SLOW)

    assert plain.loader is None
    np.testing.assert_array_equal(plain.surface.step_s, slow.loader.bare.step_s)
    np.testing.assert_array_equal(plain.surface.power_w, slow.loader.bare.power_w)
    np.testing.assert_array_equal(plain.surface.idle_w, slow.surface.idle_w)


def test_true_minibatches_hold_their_stalls_in_every_mode():
    plain, slow = _seat(None), _seat(SLOW)

    assert slow.loader is not None
    assert (slow.surface.step_s >= plain.surface.step_s * (1 - 1e-9)).all()
    many = slow.surface.modes.knobs[:, 0] >= 4  # on few cores a loader slows the computing itself as well
    assert (slow.surface.stall_share[many & (slow.surface.step_s > 1.2 * plain.surface.step_s)] > 0).all()
    assert (slow.surface.power_w >= slow.surface.idle_w).all()
    assert len(slow.truth.modes) == slow.candidate_mask.sum()


def test_a_round_measures_its_stalls_and_chooses_with_them():
    experiment = _experiment(SLOW)
    seat = load_client(experiment, 0)
    maxn_s = float(seat.surface.step_s[seat.surface.find_row(seat.kind.spec.maxn)])
    goal = RoundGoal("least-energy-within-deadline", seat.setup.steps, deadline_s=1.3 * (seat.setup.steps + 3) * maxn_s)
    ask = RequestMessage("train", 1, 0.0, goal.policy, goal=goal, model_bytes=1_000_000)

    answer, _ = emulated.answer_request(
        experiment, 0, ask, workloads.load_experiment_task(experiment).initial_arrays(1)
    )

    assert answer.error is None
    assert answer.state is not None
    for part in answer.report.parts:
        waits = seat.surface.stall_share[seat.surface.find_row(part.mode)]
        assert part.stall_s == pytest.approx(waits * part.step_s)
    assert any(part.stall_s > 0 for part in answer.report.parts)
    assert answer.report.prior_time_ape < 0.4
    assert from_json(type(answer.state), to_json(answer.state)) == answer.state


def test_loading_at_another_batch_size_is_that_of_its_samples():
    load = _seat(SLOW).loader

    half = load.at_scale(8, 0.5)

    waits = load.surface.stall_share > 0.2
    np.testing.assert_allclose(half.surface.step_s[waits], 0.5 * load.surface.step_s[waits], rtol=0.02)


def test_the_corrections_of_a_loader_and_of_a_service_beside_it_compose():
    """What is measured beside both becomes, correction by correction, the step that computes alone."""
    serving = ServingSpec(cost="mobilenetv3l-gld23k", rate_hz=20, latency_s=4)
    experiment = _experiment(SLOW, serving)
    client = load_client(experiment, 0)
    ask = RequestMessage("train", 1, 0.0, "maxn", model_bytes=1_000_000)

    answer, _ = emulated.answer_request(
        experiment, 0, ask, workloads.load_experiment_task(experiment).initial_arrays(1)
    )

    assert answer.error is None
    seen = answer.report.measured
    row = client.surface.find_row(seen.mode)
    assert seen.service is not None
    assert seen.step_s > 1.05 * client.surface.step_s[row]  # requests are served between the steps
    assert seen.stall_s == pytest.approx(client.surface.stall_share[row] * client.surface.step_s[row], rel=0.06)
    conditions = plan_conditions(client.setup, ask, None)
    _, (alone,) = to_reference(conditions.corrections, [seen])
    assert (alone.service, alone.stall_s) == (None, 0.0)
    assert alone.step_s == pytest.approx(client.loader.bare.step_s[row], rel=0.08)
    assert alone.power_w == pytest.approx(client.loader.bare.power_w[row], rel=0.08)


SEEDS = range(1, 40)


RESNET50_PARAMETERS = 25_557_032
"""As torchvision's documentation gives them."""


def experiment(memory_mb: float | None = None, seed: int = 1, policy: str = "balanced", **memory: object) -> Experiment:
    """One Nano on ResNet-50."""
    workload = {
        "task": "digits-cnn", "cost": "resnet50-tinyimagenet224", "batch_size": 8, "local_epochs": 0.1,
        "memory": {"margin": 0.05, **memory},
    }  # fmt: skip
    fleet = [{"device": "nano", **({"memory_mb": memory_mb} if memory_mb else {})}]
    return Experiment.model_validate({"fleet": fleet, "workload": workload, "seed": seed, "policy": {"name": policy}})


def means(what: Experiment) -> ScalingContext:
    found = emulated_resources.build_board_scaling(what, what.fleet[0])
    assert found is not None
    return found


def needed_mb(scale: TrainingScale) -> float:
    return means(experiment()).estimate_need(scale).memory_mb


def with_factor(least: float, most: float) -> int:
    """A seed with which the Nano's true peak is so many times the prediction."""
    asked = TrainingScale(8)
    for seed in SEEDS:
        if least <= true_peak_mb(means(experiment()), asked, "nano-1", seed) / needed_mb(asked) <= most:
            return seed
    pytest.fail("no such seed")


@cache
def arrays() -> dict[str, np.ndarray]:
    return dict(workloads.load_experiment_task(experiment()).initial_arrays(1))


def rounds_of(what: Experiment, count: int = 2) -> list[tuple[ReplyMessage, TrainResult | None]]:
    state, found = ClientState(), []
    for number in range(1, count + 1):
        ask = RequestMessage("train", number, 100.0 * number, what.policy.name, state, model_bytes=24_000)
        answer, trained = emulated.answer_request(what, 0, ask, arrays())
        assert from_json(ReplyMessage, to_json(answer)) == answer
        found.append((answer, trained))
        state = answer.state or state
    return found


def test_a_smaller_batch_takes_as_many_samples_in_more_and_shorter_steps():
    seed = with_factor(0.9, 1.0)
    plain = rounds_of(experiment(seed=seed, policy="maxn"), 1)[0][0].report
    lowered = rounds_of(experiment(1.07 * needed_mb(TrainingScale(4)), seed, "maxn"), 1)[0][0].report

    assert lowered.memory.used == TrainingScale(4)
    assert lowered.memory.why.startswith("batch 8 -> 4: ")
    assert lowered.steps == 2 * plain.steps
    ratio = lowered.measured.step_s / plain.measured.step_s
    assert ratio == pytest.approx(means(experiment()).step_time_ratio(TrainingScale(4)), rel=0.15)
    assert 0.4 < ratio < 1.0
    assert lowered.measured.power_w == pytest.approx(plain.measured.power_w, rel=0.1)
    assert lowered.true_front.maxn.work_s == pytest.approx(lowered.work_s, rel=0.2)


def test_a_narrow_network_sends_the_leading_blocks():
    limit_mb = 1.07 * needed_mb(TrainingScale(8, 0.5))
    answer, trained = rounds_of(experiment(limit_mb, with_factor(0.8, 1.0), min_batch=8), 1)[0]

    assert answer.report.memory.used == TrainingScale(8, 0.5)
    narrow = workloads.load_experiment_task(experiment()).narrow_shapes(0.5)
    assert {name: value.shape for name, value in trained.arrays.items()} == narrow
    link, whole_bytes = experiment().fleet[0].link, 4 * RESNET50_PARAMETERS
    assert answer.report.link.down_s == pytest.approx(link.latency_s + 8e-6 * whole_bytes / 50.0)
    sent = 1e6 / 8 * 20.0 * (answer.report.link.up_s - link.latency_s) / whole_bytes
    assert 0.25 < sent < 0.35  # half of the channels at both ends of every layer but the first and the last


def planned_round(width: float, kind: str = "none") -> tuple[ReplyMessage, TrainResult]:
    """A first round of a Nano with all the memory it needs, whose plan may ask for half of the channels."""
    what = experiment(4 * needed_mb(TrainingScale(8)), with_factor(0.8, 1.0), "joint", widths=[1.0, 0.5])
    goal = RoundGoal("joint", 0, deadline_s=300.0, width=width, compression=Compression(kind))
    ask = RequestMessage("train", 1, 100.0, "joint", ClientState(), goal, model_bytes=24_000, trainable=tuple(arrays()))
    answer, trained = emulated.answer_request(what, 0, ask, arrays())
    assert from_json(ReplyMessage, to_json(answer)) == answer
    assert answer.error is None
    assert trained is not None
    return encode_answer(ask, arrays(), None, (answer, trained))


def test_a_client_trains_and_sends_the_narrow_network_that_the_plan_asks_for():
    (whole, _), (narrow, trained) = planned_round(1.0), planned_round(0.5)

    assert narrow.report.memory.used == TrainingScale(8, 0.5)
    assert narrow.report.memory.why == ""
    shapes = workloads.load_experiment_task(experiment()).narrow_shapes(0.5)
    assert {name: value.shape for name, value in trained.arrays.items()} == shapes
    (offer,) = whole.front.narrow
    link = narrow.report.link
    assert (link.up_s - link.latency_s) == pytest.approx(offer.sent * (whole.report.link.up_s - link.latency_s))
    assert narrow.report.true_front.link_s == pytest.approx(link.down_s + link.up_s)
    assert narrow.report.true_front.maxn.work_s == pytest.approx(offer.work * whole.report.true_front.maxn.work_s)
    assert 0.0 < offer.sent < offer.work < 0.7


def test_a_client_of_one_step_offers_its_whole_share_whatever_part_it_was_asked_for():
    what = experiment(4 * needed_mb(TrainingScale(8)), with_factor(0.8, 1.0), "joint")
    work = what.workload.model_copy(update={"local_epochs": 0.001})
    what = what.model_copy(update={"workload": work})
    fronts = []
    for share in (0.25, 1.0, 4.0):
        goal = RoundGoal("joint", 0, deadline_s=300.0, share=share)
        ask = RequestMessage("train", 1, 100.0, "joint", ClientState(), goal, model_bytes=24_000)
        answer, _ = emulated.answer_request(what, 0, ask, arrays())
        assert answer.report.steps == max(1, share)
        fronts.append(answer.front)
    part, whole, more = (front.maxn.work_s for front in fronts)
    assert part == pytest.approx(whole, rel=0.1)
    assert more == pytest.approx(whole, rel=0.1)


def test_after_a_narrow_round_a_client_offers_the_whole_network_again():
    (whole, _), (narrow, _) = planned_round(1.0), planned_round(0.5)
    assert narrow.front.narrow == whole.front.narrow
    assert narrow.front.link_s == whole.front.link_s
    assert narrow.front.maxn.work_s == pytest.approx(whole.front.maxn.work_s, rel=0.1)


def test_a_client_whose_memory_narrows_the_network_prices_what_the_plan_will_send_it():
    limit_mb = 1.07 * needed_mb(TrainingScale(8, 0.5))
    what = experiment(limit_mb, with_factor(0.8, 1.0), "joint", min_batch=8, widths=[1.0, 0.5, 0.25])

    def play(width: float, state: ClientState | None = None) -> ReplyMessage:
        goal = RoundGoal("joint", 0, deadline_s=300.0, width=width)
        ask = RequestMessage("train", 1, 100.0, "joint", state or ClientState(), goal, model_bytes=24_000)
        return emulated.answer_request(what, 0, ask, arrays())[0]

    first, half = play(1.0), play(0.5)
    quarter, after = play(0.25), play(0.5, first.state)
    assert [one.report.memory.used.width for one in (first, half, quarter, after)] == [0.5, 0.5, 0.25, 0.5]
    assert half.report.link.down_mb < 0.4 * first.report.link.down_mb
    for answer in (first, half, quarter, after):
        assert answer.front.width == 0.5
        assert answer.front.link_s == pytest.approx(half.report.link.down_s + half.report.link.up_s)
    (offer,) = first.front.narrow
    assert offer.sent == pytest.approx(quarter.report.link.moved_mb / half.report.link.moved_mb)


def test_a_narrow_update_is_encoded_in_its_own_bytes():
    _, trained = planned_round(0.5, "int8")
    narrow = workloads.load_experiment_task(experiment()).narrow_shapes(0.5)
    values = sum(math.prod(shape) for shape in narrow.values())
    assert count_encoded_bytes(Compression("int8"), values) == sum(value.nbytes for value in trained.arrays.values())


@pytest.mark.parametrize(("width", "narrower"), [(1.0, [0.75, 0.5, 0.25]), (0.5, [0.25]), (0.25, [])])
def test_a_board_offers_the_widths_below_the_one_that_its_memory_asks_for(width, narrower):
    scaling = means(experiment(1.07 * needed_mb(TrainingScale(8, width)), min_batch=8))
    attempt = choose_first_attempt(scaling, ClientState())
    assert attempt.scale.width == width
    offers = build_narrow_offers(scaling, attempt, ClientState())
    assert [offer.width for offer in offers] == narrower
    assert [offer.work for offer in offers] == sorted((offer.work for offer in offers), reverse=True)


def test_without_narrow_networks_nothing_narrow_is_offered_and_a_ruled_out_width_stays_so():
    scaling = means(experiment(2 * needed_mb(TrainingScale(8))))
    ruled_out = dataclasses.replace(scaling, can_narrow=lambda: False)
    attempt = choose_first_attempt(scaling, ClientState())

    assert build_narrow_offers(ruled_out, attempt, ClientState()) == ()
    assert build_narrow_offers(scaling, attempt, ClientState())
    assert not ruled_out.limit_width(0.5).can_narrow()


def test_a_wrong_prediction_costs_a_try_in_round_one_and_none_in_round_two():
    what = experiment(1.06 * needed_mb(TrainingScale(8)), with_factor(1.1, 1.4))

    (first, _), (second, _) = rounds_of(what)

    assert first.report.memory.failures >= 1
    assert first.report.memory.used.batch_size < 8
    assert "ran out of memory" in first.report.memory.why
    lost_s = first.report.memory.lost_s
    assert lost_s > 0
    assert first.report.parts[0].lost_s == lost_s
    assert first.report.work_s > lost_s
    assert second.report.memory.failures == 0
    assert second.report.memory.used <= first.report.memory.used
    assert [seen.peak_mb is None for seen in second.state.memory] == [True] * first.report.memory.failures + [False] * 2


def test_the_front_for_the_next_round_is_of_what_that_one_will_be_tried_at(monkeypatch):
    what = experiment(0.95 * needed_mb(TrainingScale(8)), with_factor(0.5, 0.8))
    (first, _), (second, _) = rounds_of(what)
    assert second.report.memory.changed
    ask = RequestMessage("front", 1, 100.0, what.policy.name, first.state, model_bytes=24_000)
    asked = emulated.answer_request(what, 0, ask, None)[0].front
    assert asked is not None
    assert first.front is not None
    assert [(point.mode, point.work_s, point.work_j) for point in (*asked.points, asked.maxn)] == [
        (point.mode, point.work_s, point.work_j) for point in (*first.front.points, first.front.maxn)
    ]
    # Spreads of a few modes are summed in another order than those of all.
    spreads = [[point.time_sd_log for point in front.points] for front in (asked, first.front)]
    assert spreads[0] == pytest.approx(spreads[1], rel=1e-5)


def test_where_nothing_fits_the_board_fails_and_keeps_what_it_learnt():
    what = experiment(0.3 * needed_mb(TrainingScale(1, 0.25)), min_batch=4)
    (first, _), (second, _) = rounds_of(what)
    assert "nothing smaller" in first.error
    assert first.unfit
    assert first.state.memory
    assert first.state.rested_at_s > 100.0
    assert len(second.state.memory) > len(first.state.memory)


def forget_clients() -> None:
    emulated._cached_client.cache_clear()
    emulated._share_scaling.cache_clear()


def test_a_run_that_fits_is_the_same_as_if_nobody_knew_what_it_needs(monkeypatch):
    what = experiment(seed=with_factor(0.5, 1.0))
    with_memory = rounds_of(what)
    monkeypatch.setattr("fedge.client.memory_scaling.find_priced_network", lambda *_: None)
    forget_clients()
    try:
        without = rounds_of(what)
    finally:
        forget_clients()
    for (one, trained), (other, other_trained) in zip(with_memory, without, strict=True):
        assert one.report is not None
        assert other.report.memory is None
        assert dataclasses.replace(one.report, memory=None) == other.report
        assert one.front == other.front
        assert one.trace == other.trace
        for name, value in trained.arrays.items():
            np.testing.assert_array_equal(value, other_trained.arrays[name])


def test_a_task_that_cannot_be_narrow_says_why():
    class Own:
        labels = np.zeros(3)

    assert "narrow_shapes" in emulated_resources.explain_narrowing_failure(Own())
    assert emulated_resources.explain_narrowing_failure(workloads.load_experiment_task(experiment())) == ""


def test_every_width_has_to_be_possible_not_the_smallest_alone():
    class Picky:
        labels = np.zeros(3)

        def narrow_shapes(self, width: float) -> dict[str, tuple[int, ...]]:
            if width == 0.75:
                raise BadInput("network", "three quarters", "a half or a quarter")
            return {}

    assert "three quarters" in emulated_resources.explain_narrowing_failure(Picky())
    assert emulated_resources.explain_narrowing_failure(Picky(), (1.0, 0.5)) == ""

"""A round at the scale that fits: what is tried next, what carries over from one scale to another, what is told."""

from __future__ import annotations

import numpy as np
import pytest

from fedge.client import memory_scaling
from fedge.client.memory_scaling import ScaleCorrection, ScalingContext, build_scaling_context, can_narrow_clients
from fedge.client.prediction_requests import predict_corrected
from fedge.devices import catalogue
from fedge.experiment import Experiment, FleetEntry, MemorySpec, ModSpec, StrategySpec, WorkloadSpec
from fedge.modes import stack_modes
from fedge.types import Measurement, MemoryObservation, Predictions, TrainingScale
from fedge.wire import ClientState, RequestMessage

NANO = catalogue.find("nano")


def means(limit: float = 0.9, narrow: bool = True, **memory: object) -> ScalingContext:
    """A Nano on ResNet-50 with so large a part of what its minibatches are predicted to need."""
    work = WorkloadSpec(cost="resnet50-tinyimagenet224", batch_size=8, memory=MemorySpec(margin=0.0, **memory))  # type: ignore[arg-type]
    entry = FleetEntry(device="nano")
    found = known(entry, work, narrow)
    assert found is not None
    limited = known(
        entry.model_copy(update={"memory_mb": found.estimate_need(found.requested).memory_mb * limit}), work, narrow
    )
    assert limited is not None
    return limited


def known(entry: FleetEntry, work: WorkloadSpec, narrow: bool = True) -> ScalingContext | None:
    what = Experiment(fleet=(entry,), workload=work)
    return build_scaling_context(what, entry, catalogue.find(entry.device), lambda: narrow)


def measurement(scale: TrainingScale | None = None, step_s: float = 1.0) -> Measurement:
    return Measurement(NANO.maxn, 5, step_s, 8.0, warm_up_s=1.5, scale=scale)


def test_what_fits_is_tried_as_asked() -> None:
    tried = memory_scaling.choose_first_attempt(means(1.1), ClientState())
    assert tried.scale == TrainingScale(8)
    use = memory_scaling.summarize_memory_use(means(1.1), tried, ClientState(), 900.0)
    assert (use.why, use.changed, use.failures, use.peak_mb) == ("", False, 0, 900.0)


def test_smaller_ones_follow_until_none_is_left_and_the_next_round_has_learnt() -> None:
    board, tries = means(0.9, min_batch=4), []
    tried: memory_scaling.ScaleAttempt | None = memory_scaling.choose_first_attempt(board, ClientState())
    while tried is not None:
        tries.append(tried)
        tried = memory_scaling.choose_next_attempt(board, tried, 2.0)

    assert [t.failures for t in tries] == list(range(len(tries)))
    assert tries[-1].lost_s == 2.0 * (len(tries) - 1)
    needs = [board.estimate_need(t.scale).memory_mb for t in tries]
    assert needs == sorted(needs, reverse=True)
    assert any(t.scale.width < 1.0 for t in tries)
    state = memory_scaling.build_failed_state(board, tries[-1], RequestMessage("train", 3, start_s=100.0), 2.0)
    assert [seen.peak_mb for seen in state.memory] == [None] * len(tries)
    assert state.rested_at_s == 100.0 + 2.0 * len(tries)
    assert "out of memory" in memory_scaling.explain_out_of_memory(board, tries[-1])


def test_one_failure_makes_the_next_round_begin_smaller() -> None:
    board = means(0.9)
    first = memory_scaling.choose_first_attempt(board, ClientState())
    second = memory_scaling.choose_next_attempt(board, first, 1.0)
    assert second is not None
    kept = ClientState(memory=memory_scaling.update_memory_history(board, second, board.limit_mb * 0.95))

    later = memory_scaling.choose_first_attempt(board, kept)

    assert later.scale == second.scale
    assert later.failures == 0
    use = memory_scaling.summarize_memory_use(board, second, ClientState(), 1.0)
    assert "ran out of memory once first, at batch 4" in use.why
    assert use.changed


def test_without_the_guard_nothing_is_lowered() -> None:
    board = means(0.5, guard=False)
    tried = memory_scaling.choose_first_attempt(board, ClientState())
    assert tried.scale == board.requested
    assert memory_scaling.choose_next_attempt(board, tried, 1.0) is None
    assert "guard is off" in memory_scaling.explain_out_of_memory(board, tried)


def test_a_network_that_cannot_be_narrow_keeps_its_width() -> None:
    tries = [memory_scaling.choose_first_attempt(means(0.1, narrow=False), ClientState())]
    assert tries[0].scale.width == 1.0
    assert tries[0].scale.batch_size == 1


def test_the_network_is_only_asked_when_it_matters() -> None:
    asked = []
    board = means(1.1)
    lazy = ScalingContext(
        board.network, NANO, board.requested, board.work, board.limit_mb, board.spec, lambda: bool(asked.append(1))
    )
    memory_scaling.choose_first_attempt(lazy, ClientState())
    assert asked == []


def test_a_measurement_is_carried_there_and_back() -> None:
    board, scale = means(), TrainingScale(4, 0.5)
    there = board.rescale_measurement(measurement(), scale)
    assert there.scale == scale
    assert there.step_s == pytest.approx(board.step_time_ratio(scale))
    assert there.step_s < 1.0
    assert there.power_w == 8.0
    back = board.rescale_measurement(there, None)
    assert back.step_s == pytest.approx(1.0)
    assert back.warm_up_s == pytest.approx(1.5)
    assert board.rescale_measurement(back, None) is back


class Median:
    """Predicts the median of what it was told, everywhere."""

    def fit(self, measurements):
        self.step_s = float(np.median([m.step_s for m in measurements]))
        return self

    def predict(self, modes) -> Predictions:
        one = np.ones(len(modes))
        return Predictions(modes, self.step_s * one, one, 0 * one, 0 * one)


def test_predictions_are_of_the_present_scale_wherever_it_was_measured() -> None:
    board, scale = means(), TrainingScale(4, 0.5)
    seen = [
        measurement(),
        board.rescale_measurement(measurement(), TrainingScale(2)),
        board.rescale_measurement(measurement(), scale),
    ]
    predicted = predict_corrected(Median(), [ScaleCorrection(board, scale)], stack_modes([NANO.maxn]), seen)
    assert predicted.step_s[0] == pytest.approx(board.step_time_ratio(scale))


def test_a_round_of_smaller_minibatches_holds_as_many_samples_and_moves_as_far() -> None:
    assert memory_scaling.count_steps_at(10, TrainingScale(16), TrainingScale(4)) == 40
    assert memory_scaling.count_steps_at(3, TrainingScale(16), TrainingScale(6)) == 8
    work = WorkloadSpec(batch_size=16, learning_rate=0.04)
    options = memory_scaling.build_train_options(
        work, 40, TrainingScale(4, 0.5), RequestMessage("train", proximal_mu=0.1)
    )
    assert options.learning_rate == pytest.approx(0.01)
    assert (options.steps, options.batch_size, options.width, options.proximal_mu) == (40, 4, 0.5, 0.1)
    full = TrainingScale(16)
    assert memory_scaling.build_train_options(work, 40, full, RequestMessage("train")).learning_rate == 0.04
    late = RequestMessage("train", learning_rate=0.01)
    assert memory_scaling.build_train_options(work, 40, full, late).learning_rate == 0.01


def test_boards_with_a_cost_of_their_own_are_reckoned_at_its_batch_size() -> None:
    work = WorkloadSpec(cost="resnet18-imagenet", batch_size=16)
    own = known(FleetEntry(device="tx2", cost="vit-b16-cifar10"), work)
    assert own is not None
    assert (own.requested, own.work.batch_size) == (TrainingScale(16), 32)


def test_a_cost_whose_network_nobody_knows_gives_nothing() -> None:
    work = WorkloadSpec(cost="somebody-elses", batch_size=16)
    assert known(FleetEntry(device="tx2"), work) is None


def test_by_default_a_share_of_the_boards_memory_is_the_systems() -> None:
    assert memory_scaling.memory_limit_mb(FleetEntry(device="nano"), NANO) == pytest.approx(2800.0)
    assert memory_scaling.memory_limit_mb(FleetEntry(device="nano", memory_mb=1234.0), NANO) == 1234.0


@pytest.mark.parametrize(
    ("strategy", "widths", "allowed"),
    [
        ("FedAvg", None, True),
        ("FedBuff", None, True),
        ("Krum", None, False),
        ("FedTrimmedAvg", (0.5,), False),
        ("DifferentialPrivacyServerSideFixedClipping", None, False),
        ("mine:Strategy", None, False),
        ("mine:Strategy", (1.0, 0.5), True),
    ],
)
def test_narrow_clients_need_a_strategy_that_averages(
    strategy: str, widths: tuple[float, ...] | None, allowed: bool
) -> None:
    workload = WorkloadSpec(memory=MemorySpec(widths=widths))
    run = Experiment(fleet=(FleetEntry(device="nano"),), workload=workload, strategy=StrategySpec(name=strategy))

    assert can_narrow_clients(run) == allowed
    assert not can_narrow_clients(run.model_copy(update={"mods": (ModSpec(name="message_size_mod"),)}))


def test_what_was_seen_is_what_the_state_keeps() -> None:
    board = means(1.1)
    tried = memory_scaling.choose_first_attempt(board, ClientState(memory=(MemoryObservation(1.0, 2.0, 1.0),)))
    assert memory_scaling.update_memory_history(board, tried, 800.0)[-1] == MemoryObservation(
        tried.choice.uncorrected_mb, board.limit_mb, 800.0
    )

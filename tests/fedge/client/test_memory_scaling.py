"""A round at the scale that fits: what is tried next, what carries over from one scale to another, what is told."""

import pytest

from fedge.client import memory_scaling
from fedge.client.memory_scaling import ScalingContext, build_scaling_context, can_narrow_clients
from fedge.costs.memory.step_need import TrainingSetup
from fedge.devices import catalogue
from fedge.experiment import Experiment, FleetEntry, MemorySpec, ModSpec, StrategySpec, WorkloadSpec
from fedge.types import Measurement, TrainingScale
from fedge.wire import ClientState, RequestMessage

NANO = catalogue.find("nano")


def means(limit: float = 0.9, narrow: bool = True, **memory: object) -> ScalingContext:
    """A Nano on ResNet-50 with so large a part of what its minibatches are predicted to need."""
    work = WorkloadSpec(cost="resnet50-tinyimagenet224", batch_size=8, memory=MemorySpec(margin=0.0, **memory))
    entry = FleetEntry(device="nano")
    found = known(entry, work, narrow)
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


def test_smaller_ones_follow_until_none_is_left_and_the_next_round_has_learnt():
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


def test_a_measurement_is_carried_there_and_back():
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


def test_a_round_of_smaller_minibatches_holds_as_many_samples_and_moves_as_far():
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


def test_boards_with_a_cost_of_their_own_are_reckoned_at_its_batch_size():
    work = WorkloadSpec(cost="resnet18-imagenet", batch_size=16)
    own = known(FleetEntry(device="tx2", cost="vit-b16-cifar10"), work)
    assert (own.requested, own.work.batch_size) == (TrainingScale(16), 32)


def test_a_cost_whose_network_nobody_knows_gives_nothing():
    work = WorkloadSpec(cost="somebody-elses", batch_size=16)
    assert known(FleetEntry(device="tx2"), work) is None


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
def test_narrow_clients_need_a_strategy_that_averages(strategy, widths, allowed):
    workload = WorkloadSpec(memory=MemorySpec(widths=widths))
    run = Experiment(fleet=(FleetEntry(device="nano"),), workload=workload, strategy=StrategySpec(name=strategy))

    assert can_narrow_clients(run) == allowed
    assert not can_narrow_clients(run.model_copy(update={"mods": (ModSpec(name="message_size_mod"),)}))


@pytest.mark.parametrize(
    ("task", "work", "strategy", "state", "mixed", "assumed"),
    [
        ("digits-cnn", {}, {}, 1.0, False, False),
        ("digits-cnn", {"mixed_precision": True}, {"proximal_mu": 0.1}, 2.0, True, False),
        ("mine.py", {"optimizer_state": 2.0}, {}, 2.0, False, False),
        ("mine.py", {}, {}, 3.0, False, True),
        ("mine:Task", {}, {"proximal_mu": 0.0}, 3.0, False, True),
    ],
)
def test_a_step_needs_what_its_optimiser_and_precision_keep(task, work, strategy, state, mixed, assumed):
    entry = FleetEntry(device="nano")
    workload = WorkloadSpec(task=task, cost="resnet50-tinyimagenet224", batch_size=8, **work)
    spec = StrategySpec(name="FedProx", options=strategy) if strategy else StrategySpec()
    what = Experiment(fleet=(entry,), workload=workload, strategy=spec)
    scaling = build_scaling_context(what, entry, NANO, lambda: True)
    assert scaling is not None
    assert scaling.setup == TrainingSetup(state, mixed, assumed)
    need, plain = scaling.estimate_need(scaling.requested), known(entry, WorkloadSpec(cost=workload.cost, batch_size=8))
    assert plain is not None
    assert (need == plain.estimate_need(scaling.requested)) is (state == 1.0)
    assert ("(assumed)" in need.source) is assumed


def test_the_start_that_a_wrapped_fedprox_keeps_counts_too():
    entry, inner = FleetEntry(device="nano"), StrategySpec(name="FedProx", options={"proximal_mu": 0.1})
    outer = StrategySpec(name="DifferentialPrivacyServerSideFixedClipping", wraps=inner)
    workload = WorkloadSpec(cost="resnet50-tinyimagenet224", batch_size=8)
    scaling = build_scaling_context(Experiment(fleet=(entry,), workload=workload, strategy=outer), entry, NANO, bool)
    assert scaling is not None
    assert scaling.setup.optimizer_state == 2.0

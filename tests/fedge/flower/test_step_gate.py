"""An app's training runs exactly the steps that it may run, and computes what it would compute unhindered."""

import threading

import pytest

pytest.importorskip("torch", reason="the hook is one of torch's optimisers")

import torch
from contracts.small_training import train_network
from hypothesis import given
from hypothesis import strategies as st

from fedge.flower.step_gate import StepGate, TrainingEnded


@given(parts=st.lists(st.integers(1, 4), min_size=1, max_size=5), more=st.integers(0, 3))
def test_it_runs_the_allowed_steps_and_no_more(parts, more):
    seen: list[int] = []
    gate = StepGate(lambda: train_network(sum(parts) + more, seen.append))

    for place, part in enumerate(parts):
        gate.advance(part)
        allowed = sum(parts[: place + 1])
        assert gate.done == allowed
        assert len(seen) <= allowed

    assert gate.run_to_end() == sum(parts) + more
    assert seen == list(range(1, sum(parts) + more + 1))


def test_the_app_computes_the_same_as_without_it():
    gate = StepGate(lambda: train_network(5))
    gate.advance(2)
    gate.advance(3)

    for name, values in gate.finish().items():
        assert torch.equal(values, train_network(5)[name])


def test_a_training_that_ends_early_says_so_and_keeps_its_result():
    gate = StepGate(lambda: train_network(3))

    with pytest.raises(TrainingEnded, match="after 3 of 4 steps"):
        gate.advance(4)
    assert set(gate.finish()) == {"weight", "bias"}


def test_trying_the_end_runs_one_more_step_at_most():
    ended, longer = StepGate(lambda: train_network(3)), StepGate(lambda: train_network(5))
    for gate in (ended, longer):
        gate.advance(3)

    assert ended.try_end()
    assert not longer.try_end()
    assert (ended.done, longer.done) == (3, 4)
    assert longer.run_to_end() == 5


def test_an_error_of_the_app_is_raised_to_whoever_waits():
    def fail() -> None:
        train_network(2)
        raise ValueError("no data on this node")

    gate = StepGate(fail)
    gate.advance(1)
    with pytest.raises(ValueError, match="no data on this node"):
        gate.run_to_end()


def test_trainings_of_other_threads_are_neither_held_nor_counted():
    gate = StepGate(lambda: train_network(4))
    gate.advance(1)

    other = threading.Thread(target=train_network, args=(3,))
    other.start()
    other.join(timeout=60)

    assert not other.is_alive()
    assert gate.done == 1
    assert gate.run_to_end() == 4

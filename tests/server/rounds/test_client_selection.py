"""The selector is told what is known of the boards that can be asked, and its choice becomes the round's boards."""

import sys
import types

import numpy as np
import pytest
from contracts.reports import IDLE_W, front

from fedge.errors import BadInput, RunFailed
from fedge.experiment import BatterySpec, Experiment, FleetEntry, PolicySpec, SelectionSpec
from fedge.types import SelectionResult
from fedge.wire import ClientState
from server.rounds.client_selection import ClientSelection, build_candidates, select_round_clients
from server.state.checkpoint import ClientHistory, FleetState, RunState
from server.state.fleet_availability import build_availability

FLEET = (FleetEntry(device="nano", count=3), FleetEntry(device="tx2", battery=BatterySpec(capacity_wh=10.0)))


def fleet(**changes: object) -> FleetState:
    fronts = dict.fromkeys(("nano-1", "nano-2", "tx2-1"), front())
    return FleetState(**{"clock_s": 100.0, "fronts": fronts} | changes)


def run_state(known: FleetState | None = None, **changes: object) -> RunState:
    return RunState(**{"round": 4, "fleet": known or fleet(), "arrays": {"w": np.zeros(1)}} | changes)


def select(before: RunState | None = None, **changes: object) -> ClientSelection:
    experiment, state = Experiment(**{"fleet": FLEET} | changes), before or run_state()
    return select_round_clients(experiment, build_availability(experiment), state.fleet, state)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The user's own selector, which keeps what it was asked and answers ``own.answer``."""
    module = types.ModuleType("own_selector")

    def own_select(clients: list, call: object, rng: np.random.Generator) -> SelectionResult:
        module.asked = (clients, call, rng.random())
        return module.answer

    module.select, module.answer = own_select, SelectionResult(("tx2-1", "nano-2"), {"x": 1.5}, 33.0)
    monkeypatch.setitem(sys.modules, "own_selector", module)
    return module


OWN = SelectionSpec(name="own_selector:select", count=2, over_commit=1.4, options={"a": 2.0})


def test_a_selector_is_told_the_round_how_many_its_options_and_its_memory(own):
    policy = PolicySpec(name="energy-budget", budget_j=900.0)
    result = select(run_state(selection={"x": 0.5}, spent_j=250.0), selection=OWN, policy=policy, rounds=10)
    _, call, _ = own.asked

    assert (call.round, call.count, call.options, call.memory) == (5, 3, {"a": 2.0}, {"x": 0.5})
    limits = {"budget_j": 900.0, "spent_j": 250.0, "rounds_left": 6.0, "resting_w": 0.0}
    assert (call.policy, call.limits) == ("energy-budget", limits)
    assert result.boards == ("nano-2", "tx2-1")
    assert (result.result.memory, result.result.deadline_s) == ({"x": 1.5}, 33.0)
    assert result.wanted is None


def test_the_draw_depends_on_seed_and_round_alone(own):
    draws = []
    for seed, number in ((1, 4), (1, 4), (1, 5), (2, 4)):
        select(run_state(round=number), selection=OWN, seed=seed)
        draws.append(own.asked[2])

    assert draws[0] == draws[1]
    assert len(set(draws)) == 3


def test_a_selector_that_chooses_an_unknown_board_is_named(own):
    own.answer = SelectionResult(("tx2-9",))
    with pytest.raises(BadInput, match=r"own_selector:select.*tx2-9"):
        select(selection=OWN)


def test_a_selector_that_chooses_no_board_is_named(own):
    own.answer = SelectionResult(())
    with pytest.raises(RunFailed, match="round 5: selection own_selector:select chose no board"):
        select(selection=OWN)


def test_what_is_known_of_a_board_is_told_and_what_is_not_is_none():
    experiment = Experiment(fleet=FLEET)
    known = fleet(
        histories={"tx2-1": ClientHistory(40, 0.3, 0.9, 21.0, 3, 2, 0.0, 9_000.0)},
        states={"tx2-1": ClientState((), 60.0, 90.0)},
    )
    new, old = build_candidates(build_availability(experiment), known, ["nano-3", "tx2-1"])

    assert (new.board, new.front, new.loss, new.rounds, new.charge, new.temperature_c) == (
        "nano-3",
        None,
        None,
        0,
        None,
        None,
    )
    assert (old.samples, old.loss, old.accuracy, old.busy_s, old.last_round, old.rounds) == (40, 0.3, 0.9, 21.0, 3, 2)
    assert (old.charge, old.charge_j) == (0.25, 9_000.0)
    # It has rested 10 s of the time constant of 240 s, towards what idling settles at.
    settled_c = 25.0 + 45.0 / 15.0 * IDLE_W
    assert old.temperature_c == pytest.approx(settled_c + (60.0 - settled_c) * np.exp(-10.0 / 240.0), abs=0.5)

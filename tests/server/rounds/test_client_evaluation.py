"""Clients evaluate the model on their test samples; the time and energy of it are in rows, clock and batteries."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the clients evaluate with torch")

from experiments.backends.local_backend import LocalClients
from experiments.backends.strategy_check import check_strategy
from experiments.spec.resource_checks import check_evaluation
from fedge.errors import BadInput
from fedge.experiment import Experiment, PolicySpec, StrategySpec
from fedge.telemetry.store import MemoryTables
from fedge.telemetry.store_records import EvaluationRow, RoundRow
from fedge.types import FleetPlan, RoundGoal
from fedge.wire import ReplyMessage
from server.rounds.client_evaluation import choose_evaluators
from server.rounds.round_goals import find_budget_event
from server.run import build_coordinator
from server.state import checkpoint
from server.state.checkpoint import FleetState, RunState
from server.transport.client_port import IncomingReply, LocalPort, OutgoingRequest

ROUNDS, CAPACITY_WH = 3, 50.0
Respond = Callable[[Mapping[str, OutgoingRequest]], Mapping[str, IncomingReply]]


def build(**evaluation: object) -> Experiment:
    battery = {"capacity_wh": CAPACITY_WH}
    return Experiment.model_validate(
        {
            "fleet": [{"device": "nano", "battery": battery}, {"device": "agx-orin-64gb", "count": 2}],
            "rounds": ROUNDS,
            "workload": {"local_epochs": 0.2},
            "policy": {"name": "maxn"},
            "evaluation": {"by": "both", **evaluation},
        }
    )


def run(experiment: Experiment, folder: Path, wrap: Callable[[Respond], Respond] = lambda respond: respond):
    tables = MemoryTables()
    port = LocalPort(wrap(LocalClients(experiment, folder).respond))
    state = build_coordinator(experiment, port, tables).run()
    return state, *([row for row in tables.rows if isinstance(row, kind)] for kind in (RoundRow, EvaluationRow))


def test_the_clients_weighted_accuracy_is_the_servers_since_they_share_its_test_set(tmp_path):
    state, rounds, rows = run(build(every=2), tmp_path)

    assert [row.client_accuracy is None for row in rounds] == [True, False, False], "every second round, and the last"
    for row in rounds[1:]:
        assert row.client_accuracy == pytest.approx(row.accuracy)
        assert row.client_loss == pytest.approx(row.loss, rel=1e-5)
        assert sum(each.samples for each in rows if each.round == row.round) == 359
    assert rounds[2].start_s == rounds[1].end_s + rounds[1].evaluation_s
    assert state.fleet.clock_s == rounds[2].end_s + rounds[2].evaluation_s
    assert state.spent_j == pytest.approx(
        sum(row.energy_j + (row.resting_energy_j or 0.0) + (row.evaluation_energy_j or 0.0) for row in rounds)
    )


def test_an_evaluation_is_priced_as_inference_and_drains_the_battery(tmp_path):
    state, rounds, rows = run(build(), tmp_path)
    _, without, _ = run(build(by="server"), tmp_path)
    nano = [row for row in rows if row.board == "nano-1"]

    assert min(row.work_s for row in nano) > 2 * max(row.work_s for row in rows if row.board != "nano-1")
    assert rounds[0].energy_j == without[0].energy_j
    assert rounds[0].evaluation_energy_j == pytest.approx(sum(row.energy_j for row in rows if row.round == 1))
    drawn_j = 3600.0 * CAPACITY_WH - state.fleet.histories["nano-1"].charge_j
    assert drawn_j > sum(row.energy_j for row in nano) > 0.0
    assert state.fleet.states["nano-1"].rested_at_s == nano[-1].end_s


def change_evaluations(change: Callable[[ReplyMessage], ReplyMessage], board: str = "") -> Callable[[Respond], Respond]:
    """Change the evaluations of one board, or of all."""

    def wrap(respond: Respond) -> Respond:
        def answer(requests: Mapping[str, OutgoingRequest]) -> Mapping[str, IncomingReply]:
            replies = dict(respond(requests))
            for name, each in requests.items():
                if each.ask.kind == "evaluate" and board in ("", name):
                    replies[name] = IncomingReply(change(replies[name].answer))
            return replies

        return answer

    return wrap


def change_report(**changes: object) -> Callable[[ReplyMessage], ReplyMessage]:
    """Change fields of a report; ``step_s`` and ``power_w`` are its measurement's."""
    inner = {name: changes.pop(name) for name in ("step_s", "power_w") if name in changes}

    def change(reply: ReplyMessage) -> ReplyMessage:
        report = reply.evaluation
        measured = dataclasses.replace(report.measured, **inner)
        return dataclasses.replace(reply, evaluation=dataclasses.replace(report, measured=measured, **changes))

    return change


def fail(reply: ReplyMessage) -> ReplyMessage:
    return ReplyMessage(reply.board, error="its worker died")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (fail, "its worker died"),
        (change_report(board="another"), "an impossible evaluation: it is of another"),
        (change_report(samples=0), "an impossible evaluation: 0 test samples"),
        (change_report(loss=math.nan), "an impossible evaluation: loss nan, accuracy "),
        (change_report(step_s=math.inf), "an impossible evaluation: work (inf)"),
        (change_report(power_w=-1.0), "an impossible evaluation: work (-1)"),
    ],
)
def test_a_client_that_fails_leaves_a_row_and_the_others_count(change, reason, tmp_path):
    _, rounds, rows = run(build(every=ROUNDS), tmp_path, change_evaluations(change, "nano-1"))

    errors = {row.board: row.error for row in rows}
    assert str(errors.pop("nano-1")).startswith(reason)
    assert errors == {"agx-orin-64gb-1": None, "agx-orin-64gb-2": None}
    assert rounds[-1].client_accuracy is not None


def test_a_run_goes_on_if_every_client_fails(tmp_path):
    state, rounds, rows = run(build(), tmp_path, change_evaluations(fail))

    assert state.round == ROUNDS
    assert {row.error for row in rows} == {"its worker died"}
    assert [(row.client_accuracy, row.evaluation_s, row.evaluation_energy_j) for row in rounds] == [
        (None, 0, 0)
    ] * ROUNDS


def test_a_strategy_may_let_no_client_evaluate(tmp_path):
    strategy = {"name": "FedAvg", "options": {"fraction_evaluate": 0.0}}
    _, rounds, rows = run(build().model_copy(update={"strategy": StrategySpec.model_validate(strategy)}), tmp_path)

    assert rows == []
    assert [(row.client_accuracy, row.evaluation_s) for row in rounds] == [(None, None)] * ROUNDS


def test_an_empty_battery_ends_an_evaluation(tmp_path):
    experiment = build(every=ROUNDS)
    _, _, (_, _, done) = run(experiment, tmp_path)
    before, *_ = run(build(by="server"), tmp_path)
    state, rounds, (_, _, lost) = run(experiment, tmp_path, change_evaluations(change_report(power_w=1e6), "nano-1"))

    assert lost.error == f"its battery was empty after {lost.end_s - lost.start_s:.1f} s"
    assert lost.start_s < lost.end_s < done.end_s
    assert (lost.loss, lost.accuracy, lost.samples) == (None, None, 0)
    assert lost.energy_j == pytest.approx(before.fleet.histories["nano-1"].charge_j), "all that it had"
    assert state.fleet.histories["nano-1"].charge_j == pytest.approx(0.0, abs=1e-6)
    assert rounds[-1].client_accuracy is not None


def test_a_board_that_goes_away_is_booked_until_then_and_at_idle_power_after(tmp_path):
    leaves_s = 1e5
    trace = tmp_path / "trace.csv"
    trace.write_text(f"board,on_s,off_s\nnano-1,0,{leaves_s}\n", encoding="utf-8")
    fleet = [{"device": "nano", "availability": {"trace": str(trace)}}, {"device": "agx-orin-64gb"}]
    experiment = Experiment.model_validate({**build(every=ROUNDS).model_dump(), "fleet": fleet})
    state, rounds, (_, lost) = run(experiment, tmp_path, change_evaluations(change_report(step_s=1e6), "nano-1"))

    assert lost.error == f"went away after {leaves_s - lost.start_s:.1f} s"
    assert lost.end_s == pytest.approx(leaves_s)
    assert lost.work_s == pytest.approx(leaves_s - lost.start_s - lost.down_s)
    assert lost.energy_j > lost.work_j + lost.radio_j > lost.work_s
    assert rounds[-1].evaluation_s == pytest.approx(leaves_s - lost.start_s)
    assert state.fleet.states["nano-1"].rested_at_s <= lost.start_s, "its reply never came"


def test_a_resumed_run_has_the_rows_of_one_that_was_never_stopped(tmp_path):
    def stop(number: int) -> None:
        if number == 2:
            raise InterruptedError

    experiment, tables = build(), MemoryTables()
    port = LocalPort(LocalClients(experiment, tmp_path).respond)
    with pytest.raises(InterruptedError):
        build_coordinator(experiment, port, tables, checkpoints=tmp_path, on_round=stop).run()
    build_coordinator(experiment, port, tables, checkpoints=tmp_path).run(checkpoint.load_latest(tmp_path))

    _, rounds, rows = run(experiment, tmp_path)
    assert [row for row in tables.rows if isinstance(row, RoundRow)] == rounds
    assert [row for row in tables.rows if isinstance(row, EvaluationRow)] == rows


def test_an_energy_budget_has_room_for_the_evaluation_that_is_due():
    experiment = build(every=2).model_copy(update={"policy": PolicySpec(name="energy-budget", budget_j=100.0)})
    plan, fleet = FleetPlan({"nano-1": RoundGoal("energy-budget", 5)}), FleetState(0.0)

    def find(done: int, evaluation_j: float) -> str | None:
        state = RunState(done, fleet, {}, spent_j=50.0, last_j=30.0, evaluation_j=evaluation_j)
        event = find_budget_event(experiment, state, fleet, plan)
        return event and event.message

    assert find(1, evaluation_j=25.0) == "50 J of 100 J are spent; round 2 would take 55 J"
    assert find(1, evaluation_j=15.0) is None
    assert find(0, evaluation_j=25.0) is None, "none follows the first round"


def test_the_seed_draws_the_share_of_the_clients_that_evaluates():
    names = [f"nano-{i}" for i in range(10)]
    drawn = [choose_evaluators(build(fraction=0.25), names, number) for number in range(1, 9)]

    assert {len(chosen) for chosen in drawn} == {3}
    assert drawn == [choose_evaluators(build(fraction=0.25), names, number) for number in range(1, 9)]
    assert len(set(drawn)) > 1


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"fleet": [{"device": "nano", "count": 400}]},
            r"evaluation.by: got 'both', but nano-\d+ gets no test samples \(\d+ of 400",
        ),
        ({"workload": {"task": "none"}}, r"evaluation.by: got 'both'; server: the task none has no test samples"),
        (
            {"fleet": [{"device": "nano", "serving": {"cost": "resnet50-imagenet", "rate_hz": 1, "latency_s": 1}}]},
            r"evaluation.by: got 'both', with an inference service at fleet\[0\].serving; server",
        ),
    ],
)
def test_what_cannot_be_evaluated_is_refused(changes, complaint):
    with pytest.raises(BadInput, match=complaint):
        check_evaluation(Experiment.model_validate({**build().model_dump(), **changes}))


def test_an_asynchronous_run_has_no_moment_for_it():
    strategy = {"name": "FedBuff", "options": {"buffer_size": 2}}
    with pytest.raises(BadInput, match=r"evaluation.by: got 'both'; server: with FedBuff no round ends"):
        check_strategy(Experiment.model_validate({**build().model_dump(), "strategy": strategy}))

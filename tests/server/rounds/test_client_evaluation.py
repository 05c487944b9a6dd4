"""Clients evaluate the model on their test samples; the time and energy of it are in rows, clock and batteries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the clients evaluate with torch")

from experiments.backends.client_workers import InProcessClients
from experiments.backends.strategy_check import check_strategy
from experiments.spec.resource_checks import check_evaluation
from fedge.errors import BadInput
from fedge.experiment import Experiment
from fedge.telemetry.store import MemoryTables
from fedge.telemetry.store_records import EvaluationRow, RoundRow
from fedge.wire import ReplyMessage
from server.rounds.client_evaluation import choose_evaluators
from server.run import build_coordinator
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
    port = LocalPort(wrap(InProcessClients(experiment, folder).respond))
    state = build_coordinator(experiment, port, tables).run()
    return state, *([row for row in tables.rows if isinstance(row, kind)] for kind in (RoundRow, EvaluationRow))


def test_the_clients_weighted_accuracy_is_the_servers_since_they_share_its_test_set(tmp_path: Path) -> None:
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


def test_an_evaluation_is_priced_as_inference_and_drains_the_battery(tmp_path: Path) -> None:
    state, rounds, rows = run(build(), tmp_path)
    _, without, _ = run(build(by="server"), tmp_path)
    nano = [row for row in rows if row.board == "nano-1"]

    assert min(row.work_s for row in nano) > 2 * max(row.work_s for row in rows if row.board != "nano-1")
    assert rounds[0].energy_j == without[0].energy_j
    assert rounds[0].evaluation_energy_j == pytest.approx(sum(row.energy_j for row in rows if row.round == 1))
    drawn_j = 3600.0 * CAPACITY_WH - state.fleet.histories["nano-1"].charge_j
    assert drawn_j > sum(row.energy_j for row in nano) > 0.0
    assert state.fleet.states["nano-1"].rested_at_s == nano[-1].end_s


def test_a_client_that_fails_leaves_a_row_and_the_others_count(tmp_path: Path) -> None:
    def fail_one(respond: Respond) -> Respond:
        def answer(requests: Mapping[str, OutgoingRequest]) -> Mapping[str, IncomingReply]:
            lost = {name for name, each in requests.items() if each.ask.kind == "evaluate" and name == "nano-1"}
            rest = respond({name: each for name, each in requests.items() if name not in lost})
            return {**rest, **{name: IncomingReply(ReplyMessage(name, error="its worker died")) for name in lost}}

        return answer

    _, rounds, rows = run(build(), tmp_path, fail_one)

    assert {row.board: row.error for row in rows if row.round == 1} == {
        "nano-1": "its worker died",
        "agx-orin-64gb-1": None,
        "agx-orin-64gb-2": None,
    }
    assert rounds[0].client_accuracy is not None


def test_without_the_servers_evaluation_its_accuracy_is_empty(tmp_path: Path) -> None:
    _, rounds, _ = run(build(by="clients", fraction=0.5), tmp_path)

    assert [row.accuracy for row in rounds] == [None] * ROUNDS
    assert None not in [row.client_accuracy for row in rounds]


def test_the_seed_draws_the_share_of_the_clients_that_evaluates() -> None:
    names = [f"nano-{i}" for i in range(10)]
    drawn = [choose_evaluators(build(fraction=0.25), names, number) for number in range(1, 9)]

    assert {len(chosen) for chosen in drawn} == {3}
    assert drawn == [choose_evaluators(build(fraction=0.25), names, number) for number in range(1, 9)]
    assert len(set(drawn)) > 1


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"workload": {"task": "none"}}, r"evaluation.by: got 'both'; server: the task none has no test samples"),
        (
            {"fleet": [{"device": "nano", "serving": {"cost": "resnet50-imagenet", "rate_hz": 1, "latency_s": 1}}]},
            r"evaluation.by: got 'both', with an inference service at fleet\[0\].serving; server",
        ),
    ],
)
def test_what_cannot_be_evaluated_is_refused(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        check_evaluation(Experiment.model_validate({**build().model_dump(), **changes}))


def test_an_asynchronous_run_has_no_moment_for_it() -> None:
    strategy = {"name": "FedBuff", "options": {"buffer_size": 2}}
    with pytest.raises(BadInput, match=r"evaluation.by: got 'both'; server: with FedBuff no round ends"):
        check_strategy(Experiment.model_validate({**build().model_dump(), "strategy": strategy}))

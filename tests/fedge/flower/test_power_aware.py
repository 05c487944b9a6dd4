"""The wrapper changes no result of a strategy, plans goals from the nodes' offers, and stores a run that pages read."""

import dataclasses
import gc
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("torch", reason="the apps of these tests train with torch")

import torch
from contracts.small_training import make_app, make_context, train_network
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, Strategy

from experiments.backends import launcher
from experiments.cli.run_status import read_run_status
from experiments.report.run.loaded_runs import load_run
from experiments.report.run.run_page import write_report
from experiments.report.run.run_tables import describe_origins
from experiments.spec.experiment_checks import RECORDED_FOLDER
from fedge import Run
from fedge.errors import BadInput
from fedge.experiment import APP_TASK
from fedge.flower import PowerAware, power_mode
from fedge.flower.messages import ensure_identity
from fedge.flower.node_memory import RECORD
from fedge.flower.power_aware import _read_place, parse_work
from fedge.flower.power_mod import ANSWER, GOAL
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, RoundRow
from fedge.types import RoundGoal
from fedge.wire import InvalidMessage, ReplyMessage, from_json, to_json

NODES = {11: "emulated:nano", 12: "emulated:nano", 13: "emulated:agx-orin-64gb"}
STEPS = 40
NETWORK: dict[str, Any] = {"input_shape": (4,), "batch_size": 4}


class Nodes:
    """A grid of nodes that answer in this process; those in ``silent`` do not, those in ``broken`` with an error."""

    def __init__(self, mods: bool = True) -> None:
        self.mod = power_mode(device=list(NODES.values())) if mods else None
        self.contexts = {node: make_context(partition_id=place) for place, node in enumerate(NODES)}
        self.plain: set[int] = set()
        """Nodes without the mod, whose replies carry ``record``."""
        self.record: ConfigRecord | None = None
        self.evaluates = True
        self.silent: set[int] = set()
        self.broken: set[int] = set()
        self.goals: list[dict[int, RoundGoal]] = []

    def get_node_ids(self) -> list[int]:
        return list(NODES)

    def send_and_receive(self, messages: Sequence[Message], *, timeout: float | None = None) -> list[Message]:
        del timeout
        asked = list(messages)
        if asked and asked[0].metadata.message_type == "train":
            self.goals.append({m.metadata.dst_node_id: goal for m in asked if (goal := read_goal(m)) is not None})
        return [self.answer(message) for message in asked if message.metadata.dst_node_id not in self.silent]

    def answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        if node in self.broken:
            reply = Message(Error(code=2, reason="out of memory"), reply_to=message)
        elif message.metadata.message_type != "train":
            figures = {"eval_loss": 0.5, "eval_acc": 0.8} if self.evaluates else {"other": 1.0}
            metrics = MetricRecord({**figures, "num-examples": 10})
            reply = Message(RecordDict({"metrics": metrics}), reply_to=message)
        elif self.mod is None or node in self.plain:
            reply = make_app(STEPS)(message, self.contexts[node])
            if self.record is not None:
                reply.content[RECORD] = self.record
        else:
            reply = self.mod(message, self.contexts[node], make_app(STEPS))
        reply.metadata._src_node_id = node  # the runtime sets it
        return reply


def read_goal(message: Message) -> RoundGoal | None:
    record = message.content.config_records.get(RECORD)
    return None if record is None else from_json(RoundGoal, str(record[GOAL]))


def run_strategy(
    strategy: Strategy, nodes: Nodes, rounds: int = 3, before: Callable[[int], None] = lambda _: None
) -> ArrayRecord:
    """Do what Flower's own loop does; ``before`` is called with the number of each round."""
    ensure_identity()
    arrays = ArrayRecord(train_network(1))
    for number in range(1, rounds + 1):
        before(number)
        messages = strategy.configure_train(number, arrays, ConfigRecord(), nodes)
        found, _ = strategy.aggregate_train(number, nodes.send_and_receive(list(messages)))
        arrays = arrays if found is None else found
        messages = strategy.configure_evaluate(number, arrays, ConfigRecord(), nodes)
        strategy.aggregate_evaluate(number, nodes.send_and_receive(list(messages)))
    return arrays


def test_the_model_is_that_of_the_strategy_alone():
    plain = run_strategy(FedAvg(), Nodes(mods=False))
    aware = run_strategy(PowerAware(FedAvg()), Nodes())

    for name, values in plain.to_torch_state_dict().items():
        assert torch.equal(values, aware.to_torch_state_dict()[name])


def test_goals_share_a_deadline_as_soon_as_fronts_are_known():
    nodes = Nodes()

    run_strategy(PowerAware(FedAvg(), "least-energy", max_slowdown=1.2), nodes)

    first, *others = nodes.goals
    assert first == {}
    for goals in others:
        assert set(goals) == set(NODES)
        assert len({goal.deadline_s for goal in goals.values()}) == 1
        assert {goal.policy for goal in goals.values()} == {"least-energy"}


def test_nodes_are_told_how_many_rounds_are_left():
    nodes = Nodes()
    ensure_identity()

    PowerAware(FedAvg()).start(nodes, ArrayRecord(train_network(1)), num_rounds=3)

    assert [{goal.rounds_left for goal in goals.values()} for goals in nodes.goals] == [set(), {1}, {0}]


def test_the_rows_are_those_of_a_run(tmp_path):
    nodes = Nodes()
    run_strategy(PowerAware(FedAvg(), folder=tmp_path / "run", name="mine"), nodes)

    rounds, clients = read_rows(tmp_path / "run", RoundRow), read_rows(tmp_path / "run", ClientRow)
    assert [(row.round, row.done, row.accuracy, row.loss) for row in rounds] == [(n, 3, 0.8, 0.5) for n in (1, 2, 3)]
    assert {row.board for row in clients} == {"nano-1", "nano-2", "agx-orin-64gb-1"}
    assert sum(row.energy_j for row in rounds) == pytest.approx(sum(row.energy_j for row in clients))
    loaded = load_run(tmp_path / "run")
    assert loaded.name == "mine"
    assert loaded.summary["saving_vs_maxn"] is not None
    write_report([tmp_path / "run"], tmp_path / "run" / "report.html")
    assert "agx-orin-64gb-1" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_the_run_records_the_app_as_far_as_it_is_known(tmp_path):
    nodes, clock = Nodes(), itertools.count(100.0, 7.0)
    nodes.mod = power_mode(device=list(NODES.values()), network="contracts.small_training:make_network", **NETWORK)
    run_strategy(PowerAware(FedAvg(), folder=tmp_path / "run", now_s=lambda: next(clock)), nodes)
    gc.collect()

    text = (tmp_path / "run" / "run.yaml").read_text(encoding="utf-8")
    assert not any(never_used in text for never_used in ("digits-cnn", "resnet18", "learning_rate", "partition"))
    experiment = launcher.load_saved_experiment(tmp_path / "run")
    work = experiment.workload
    assert (work.task, work.cost, work.batch_size) == (APP_TASK, "contracts.small_training:make_network", 4)
    assert (work.network.input, experiment.strategy.name) == ((4,), "FedAvg")

    status = read_run_status(tmp_path / "run")
    assert status.summary["wall_s"] == 21.0
    assert status.summary["labels"]["nano"]["truth"]["label"] == "estimated"
    assert Run(tmp_path / "run").summary["energy_j"] == status.summary["energy_j"]
    write_report([tmp_path / "run"], tmp_path / "run" / "report.html")
    assert "batch 4." in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


class RealNodes(Nodes):
    """All but node 12 are boards of their own, of which nobody knows the truth; node 13 is a recorded folder."""

    def answer(self, message: Message) -> Message:
        reply = super().answer(message)
        node = message.metadata.dst_node_id
        if node != 12 and RECORD in reply.content.config_records:
            record = reply.content.config_records[RECORD]
            answer = from_json(ReplyMessage, str(record[ANSWER]))
            report = dataclasses.replace(answer.report, true_front=None)
            record[ANSWER] = to_json(dataclasses.replace(answer, report=report, recorded=node == 13))
        return reply


def test_boards_are_called_emulated_measured_or_recorded_as_they_are(tmp_path, monkeypatch):
    run_strategy(PowerAware(FedAvg(), folder=tmp_path / "mixed"), RealNodes(), rounds=1)
    monkeypatch.setitem(NODES, 12, "emulated:tx2")
    run_strategy(PowerAware(FedAvg(), folder=tmp_path / "run"), RealNodes(), rounds=1)

    def truths(folder: str) -> dict[str, str]:
        labels = read_run_status(tmp_path / folder).summary["labels"]
        assert load_run(tmp_path / folder).labels == labels
        return {name: label["truth"]["label"] for name, label in labels.items()}

    assert truths("mixed") == {"nano": "estimated", "agx-orin-64gb": "estimated"}
    assert truths("run") == {"nano": "measured", "tx2": "estimated", "agx-orin-64gb": "estimated"}
    assert read_run_status(tmp_path / "run").summary["labels"]["agx-orin-64gb"]["truth"] == RECORDED_FOLDER
    assert describe_origins(read_run_status(tmp_path / "run").summary) == "boards: 2 estimated, 1 measured"


@pytest.mark.parametrize("text", ["", "[1]", "null", '{"batch_size": 0}', '{"nonsense": 1}', '{"cost": NaN}'])
def test_what_a_node_says_of_the_app_is_left_out_if_it_is_malformed(text):
    assert parse_work(text) is None
    assert parse_work('{"batch_size": 4}').batch_size == 4


def test_nodes_that_fail_or_stay_silent_are_rows(tmp_path):
    nodes = Nodes()

    def fail(number: int) -> None:
        if number == 2:
            nodes.silent.add(11)
            nodes.broken.add(12)

    run_strategy(PowerAware(FedAvg(), folder=tmp_path / "run"), nodes, before=fail)

    rows = [row for row in read_rows(tmp_path / "run", ClientRow) if row.round == 2]
    assert {row.board: (row.status, row.error) for row in rows} == {
        "nano-1": ("failed", "no answer"),
        "nano-2": ("failed", "2: out of memory"),
        "agx-orin-64gb-1": ("done", None),
    }


def test_nodes_with_and_without_the_mod_take_part_together(tmp_path):
    nodes = Nodes()
    nodes.plain.add(12)

    run_strategy(PowerAware(FedAvg(), folder=tmp_path / "run"), nodes)

    rows = read_rows(tmp_path / "run", ClientRow)
    assert {row.board for row in rows} == {"nano-1", "agx-orin-64gb-1"}
    assert {row.status for row in rows} == {"done"}


@pytest.mark.parametrize("record", [{ANSWER: '{"oops":1}'}, {"other": "x"}, {ANSWER: "\x00"}])
def test_a_node_whose_answer_cannot_be_read_counts_as_one_without_the_mod(tmp_path, caplog, record):
    nodes = Nodes()
    nodes.plain.add(12)
    nodes.record = ConfigRecord(record)

    run_strategy(PowerAware(FedAvg(), folder=tmp_path / "run"), nodes)

    rows = read_rows(tmp_path / "run", ClientRow)
    assert {(row.board, row.status) for row in rows} == {("nano-1", "done"), ("agx-orin-64gb-1", "done")}
    assert [each.message for each in caplog.records if "without the mod" in each.message] == [
        f"node 12 counts as one without the mod: its answer is {describe_unreadable(record)}"
    ]


def describe_unreadable(record: dict[str, str]) -> str:
    with pytest.raises(InvalidMessage) as error:
        from_json(ReplyMessage, str(record.get(ANSWER)))
    return str(error.value)


@pytest.mark.parametrize("figure", [{"power_w": -1e6}, {"step_s": float("inf")}])
def test_impossible_figures_are_not_booked(tmp_path, figure):
    nodes = Nodes()
    honest = nodes.answer

    def answer(message: Message) -> Message:
        reply = honest(message)
        if nodes.goals[1:] and message.metadata.message_type == "train" and message.metadata.dst_node_id == 12:
            said = from_json(ReplyMessage, str(reply.content[RECORD][ANSWER]))
            measured = dataclasses.replace(said.report.measured, **figure)
            said = dataclasses.replace(said, report=dataclasses.replace(said.report, measured=measured))
            reply.content[RECORD] = ConfigRecord({ANSWER: to_json(said)})
        return reply

    nodes.answer = answer
    run_strategy(PowerAware(FedAvg(), folder=tmp_path / "run"), nodes, rounds=2)

    row = next(row for row in read_rows(tmp_path / "run", ClientRow) if (row.round, row.board) == (2, "nano-2"))
    assert row.status == "failed"
    assert row.error.startswith("refused: impossible work (")
    assert 0.0 <= read_rows(tmp_path / "run", RoundRow)[1].energy_j < 1e6


@pytest.mark.parametrize(("board", "place"), [("nano-7", 7), ("nano", 0), ("nano-²", 0), (f"nano-{'9' * 5000}", 0)])
def test_the_place_of_a_board_is_the_number_that_ends_its_name(board, place):
    assert _read_place(board) == place


def test_a_board_that_failed_before_it_said_its_kind_leaves_no_row(tmp_path):
    nodes = Nodes()
    nodes.plain.add(12)
    nodes.record = ConfigRecord({ANSWER: to_json(ReplyMessage("", error="the power daemon does not answer"))})

    run_strategy(PowerAware(FedAvg(), folder=tmp_path / "run"), nodes)

    assert {row.board for row in read_rows(tmp_path / "run", ClientRow)} == {"nano-1", "agx-orin-64gb-1"}


def test_a_run_that_fedge_did_not_start_is_not_resumed(tmp_path):
    run_strategy(PowerAware(FedAvg(), folder=tmp_path / "run"), Nodes())
    gc.collect()  # the strategy's lock on the folder, which tells that the app runs
    status = read_run_status(tmp_path / "run")

    assert status.state == "finished"
    assert not any("resume" in command for _, command in status.next_steps)
    with pytest.raises(BadInput, match="flwr run"):
        launcher.check_runnable(launcher.load_saved_experiment(tmp_path / "run"))
    assert len(read_rows(tmp_path / "run", RoundRow)) == 3


def test_a_folder_with_rows_and_a_budget_are_refused(tmp_path):
    run_strategy(PowerAware(FedAvg(), folder=tmp_path / "run"), Nodes())
    gc.collect()  # the first strategy's lock on the folder

    with pytest.raises(BadInput, match="holds the rows of a run"):
        PowerAware(FedAvg(), folder=tmp_path / "run")
    with pytest.raises(BadInput, match="joint"):
        PowerAware(FedAvg(), "joint")
    with pytest.raises(BadInput, match="energy-budget"):
        PowerAware(FedAvg(), "energy-budget", budget_j=100.0)
    with pytest.raises(BadInput, match=r"PowerAware: policy: got 'balance'; .*did you mean balanced"):
        PowerAware(FedAvg(), "balance")
    with pytest.raises(BadInput, match=r"PowerAware: keyword: got 'dedline_s'; .*did you mean deadline_s"):
        PowerAware(FedAvg(), dedline_s=60.0)
    with pytest.raises(BadInput, match=r"PowerAware: strategy: got the class FedAvg; .*FedAvg\(\)"):
        PowerAware(FedAvg)
    with pytest.raises(BadInput, match=r"PowerAware: folder: got an empty name"):
        PowerAware(FedAvg(), folder="")
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match=r"PowerAware: folder: got .*file/mine: Not a directory"):
        PowerAware(FedAvg(), folder=tmp_path / "file" / "mine")


def test_two_processes_cannot_write_one_folder(tmp_path):
    first = PowerAware(FedAvg(), folder=tmp_path)

    with pytest.raises(BadInput):
        PowerAware(FedAvg(), folder=tmp_path)
    del first

"""Requests go to the nodes in groups of boards; a board's failure, and what its encoding left out, stay its own."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from contracts.reports import answer
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict

import clients.app
from fedge.client.answers import Answer
from fedge.client.emulated import ClientTask
from fedge.clock import SimulatedClock
from fedge.errors import RunFailed
from fedge.experiment import Experiment
from fedge.flower.messages import ensure_identity, to_array_record
from fedge.types import Compression, NamedArrays, RoundGoal, TrainResult
from fedge.wire import ReplyMessage, RequestMessage
from server.transport import emulating_port
from server.transport.client_port import IncomingReply, OutgoingRequest
from server.transport.emulating_port import EmulatingNodes, GroupAnswer, ProcessStack
from server.transport.grid_port import REJECTED_TEXT

EXPERIMENT = Experiment.model_validate({"fleet": [{"device": "nano", "count": 3}]})
NAMES = ("nano-1", "nano-2", "nano-3")
MODEL = {"w": np.arange(6, dtype=np.float32)}


class AnsweringGrid:
    """Two nodes, each of which answers at once with the ClientApp, except for the silent one.

    Pushes of more than ``most`` messages are refused as a whole, as are the messages of the places ``refused``. A
    ``KeyError`` of the ClientApp becomes an error of Flower's, as in its simulation.
    """

    def __init__(self, silent: int | None = None, most: int = 9, refused: tuple[int, ...] = ()) -> None:
        ensure_identity()
        self.nodes, self.pushed = [7, 5], list[Message]()
        self.silent = silent
        self._most, self._refused = most, refused
        self._replies: dict[str, Message] = {}

    def get_node_ids(self) -> list[int]:
        return self.nodes

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids, pushed, before = list[str](), list(messages), len(self.pushed)
        self.pushed += pushed
        for i, message in enumerate(pushed if len(pushed) <= self._most else ()):
            if i in self._refused:
                ids.append("")
                continue
            ids.append(f"message-{before + i}")
            message.metadata.__dict__["_message_id"] = ids[-1]  # as Flower's own grids do
            if message.metadata.dst_node_id != self.silent:
                self.answer(message)
        return ids

    def answer(self, message: Message) -> None:
        node, message_id = message.metadata.dst_node_id, message.metadata.message_id
        context = Context(1, node, {}, RecordDict(), {"experiment": "a path", "folder": "runs/mine"})
        try:
            self._replies[message_id] = clients.app.app(message, context)
        except KeyError as error:
            self._replies[message_id] = Message(Error(2, f"ClientAppException: {error}"), reply_to=message)

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(each) for each in ids if each in self._replies]


HELLO = {name: OutgoingRequest(RequestMessage("hello")) for name in NAMES}


def ask(
    grid: AnsweringGrid, questions: dict[str, OutgoingRequest] | None = None, folder: Path | None = None
) -> dict[str, IncomingReply]:
    return dict(EmulatingNodes(grid, EXPERIMENT, SimulatedClock(), folder).ask(questions or HELLO, 60.0))


def ask_names(grid: AnsweringGrid) -> dict[str, tuple[str, str | None]]:
    return {board: (reply.answer.board, reply.answer.error) for board, reply in ask(grid).items()}


def train(*models: NamedArrays) -> dict[str, OutgoingRequest]:
    """Return a request to train for each board, on the models in turn."""
    request = RequestMessage("train", 1, trainable=("w",))
    return {name: OutgoingRequest(request, models[i % len(models)]) for i, name in enumerate(NAMES)}


class Trained:
    """Stands for ``answer_tasks``: each client adds its number to the model and leaves ``left`` out."""

    def __init__(self, left: np.ndarray | None = None) -> None:
        self.tasks: list[ClientTask] = []
        self.left = left

    def __call__(self, tasks: list[ClientTask]) -> list[Answer]:
        self.tasks += tasks
        return [self._answer(task) for task in tasks]

    def _answer(self, task: ClientTask) -> Answer:
        arrays = {name: value + task.index for name, value in (task.arrays or {}).items()}
        return answer(NAMES[task.index], 5.0), TrainResult(arrays, 0.5, 0.5, residual=self.left)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Trained:
    stand_in = Trained()
    monkeypatch.setattr(clients.app, "answer_tasks", stand_in)
    return stand_in


def test_two_nodes_emulate_three_boards():
    grid = AnsweringGrid()
    assert ask_names(grid) == {name: (name, None) for name in NAMES}
    assert [message.metadata.dst_node_id for message in grid.pushed] == [5, 7]


def test_nothing_is_sent_for_no_requests():
    grid = AnsweringGrid()
    assert EmulatingNodes(grid, EXPERIMENT, SimulatedClock()).ask({}, 60.0) == {}
    assert not grid.pushed


def test_nodes_that_never_come_up_end_the_run():
    grid = AnsweringGrid()
    grid.nodes = []
    with pytest.raises(RunFailed, match="no node came up in 120 s"):
        ask(grid)


def test_the_boards_of_a_silent_node_have_failed():
    answers = ask_names(AnsweringGrid(silent=5))
    assert answers["nano-1"] == ("nano-1", "no reply within 60 s")
    assert [error for _, error in answers.values()].count(None) == 2


def test_boards_that_shared_a_process_with_a_slow_one_are_told_so():
    errors = [error for _, error in ask_names(AnsweringGrid(silent=7)).values()]
    told = "no reply within 60 s; its process worked for 1 more"
    assert errors == [None, told, told]


@pytest.mark.parametrize("grid", [AnsweringGrid(most=1), AnsweringGrid(refused=(0, 1))])
def test_the_boards_of_a_push_that_is_too_large_have_failed_at_once(grid):
    assert {error for _, error in ask_names(grid).values()} == {REJECTED_TEXT}


def test_a_refused_message_fails_its_boards_alone():
    assert [error for _, error in ask_names(AnsweringGrid(refused=(0,))).values()] == [REJECTED_TEXT, None, None]


def test_only_nodes_that_see_the_runs_folder_write_their_progress_there(trained):
    for folder in (None, Path("/runs/mine")):
        trained.tasks.clear()
        ask(AnsweringGrid(), train(MODEL), folder)
        assert [task.folder for task in trained.tasks] == [folder] * 3


def test_each_board_has_its_own_result(trained):
    replies = ask(AnsweringGrid(), train(MODEL))
    results = {name: reply.trained for name, reply in replies.items()}
    for index, name in enumerate(NAMES):
        result = results[name]
        assert result.arrays["w"].tolist() == (MODEL["w"] + index).tolist()


def test_boards_with_other_models_are_in_other_messages(trained):
    other = {"w": MODEL["w"] + 10}
    grid = AnsweringGrid()
    ask(grid, train(MODEL, other))
    assert {task.index: float((task.arrays or {})["w"][0]) for task in trained.tasks} == {0: 0.0, 1: 10.0, 2: 0.0}
    assert len(grid.pushed) == 3


def test_a_model_is_converted_once_for_all_messages(trained, monkeypatch):
    converted: list[NamedArrays] = []

    def convert(arrays: NamedArrays) -> ArrayRecord:
        converted.append(arrays)
        return to_array_record(arrays)

    monkeypatch.setattr(emulating_port, "to_array_record", convert)
    grid = AnsweringGrid()
    ask(grid, train(MODEL))
    assert len(grid.pushed) == 2
    assert len(converted) == 1


def test_models_that_would_make_a_reply_too_large_are_in_messages_of_their_own(trained, monkeypatch):
    monkeypatch.setattr(emulating_port, "MAX_GROUP_BYTES", MODEL["w"].nbytes)
    grid = AnsweringGrid()
    assert set(ask(grid, train(MODEL))) == set(NAMES)
    assert [message.metadata.dst_node_id for message in grid.pushed] == [5, 7, 5]


def test_what_an_encoding_left_out_comes_back_and_goes_with_the_next_request(trained):
    trained.left = np.arange(6, dtype=np.float32)
    kept = {name: reply.trained for name, reply in ask(AnsweringGrid(), train(MODEL)).items()}
    residuals = {name: result.residual for name, result in kept.items() if result is not None}
    assert {name: residual.tolist() for name, residual in residuals.items() if residual is not None} == dict.fromkeys(
        NAMES, trained.left.tolist()
    )
    trained.tasks.clear()
    question = train(MODEL)["nano-2"]
    ask(AnsweringGrid(), {"nano-2": OutgoingRequest(question.ask, MODEL, residual=residuals["nano-2"])})
    assert trained.tasks[0].residual.tolist() == trained.left.tolist()


@pytest.mark.parametrize("shape", [(7,), (2, 3), ()])
def test_more_values_left_out_than_were_trained_are_no_reply(trained, shape):
    trained.left = np.zeros(shape, np.float32)
    error = ask(AnsweringGrid(), train(MODEL))["nano-1"].answer.error
    assert f"a residual of shape {shape}; the model has 6 trained values" in error


def test_a_board_without_a_result_leaves_those_of_its_group(trained, monkeypatch):
    def fail_first(tasks: list[ClientTask]) -> list[Answer]:
        answers = trained(tasks)
        return [(ReplyMessage(NAMES[tasks[0].index], error="out of memory"), None), *answers[1:]]

    monkeypatch.setattr(clients.app, "answer_tasks", fail_first)
    replies = ask(AnsweringGrid(), train(MODEL))
    assert {name: reply.answer.error for name, reply in replies.items()} == {
        "nano-1": "out of memory",
        "nano-2": "out of memory",
        "nano-3": None,
    }
    assert replies["nano-3"].trained is not None


def test_a_reply_with_too_few_answers_fails_the_boards_without_one(monkeypatch):
    said = RecordDict({"fedge": ConfigRecord({"answers": ['{"board":"nano-1"}']})})
    monkeypatch.setattr(clients.app, "_answer_emulated", lambda _: said)
    errors = [error for _, error in ask_names(AnsweringGrid()).values()]
    assert errors[0] is None
    assert all(error is not None and "unreadable reply" in error for error in errors[1:])


def test_a_node_that_works_on_an_earlier_request_gets_no_other_until_it_has_answered():
    grid = AnsweringGrid(silent=7)
    port = EmulatingNodes(grid, EXPERIMENT, SimulatedClock())
    port.ask(HELLO, 60.0)
    late = grid.pushed[-1]
    assert [reply.answer.error for reply in port.ask(HELLO, 60.0).values()] == [None] * 3
    assert {message.metadata.dst_node_id for message in grid.pushed[2:]} == {5}

    grid.answer(late)
    port.ask(HELLO, 60.0)
    assert [message.metadata.dst_node_id for message in grid.pushed[-2:]] == [5, 7]


def test_boards_fail_with_the_cause_while_no_node_is_free():
    grid = AnsweringGrid(silent=5)
    grid.nodes = [5]
    port = EmulatingNodes(grid, EXPERIMENT, clock := SimulatedClock())
    port.ask(HELLO, 60.0)
    replies = port.ask(HELLO, 60.0)
    assert len(grid.pushed) == 1
    assert clock.now_s() == pytest.approx(120.0, abs=1.0)
    assert {reply.answer.error for reply in replies.values()} == {
        "no process was free within 60 s: each works on requests of an earlier round (reply_timeout_s)"
    }


def test_the_boards_of_a_message_that_failed_as_a_whole_are_asked_apart_until_one_is_at_fault(trained, monkeypatch):
    def fail(tasks: list[ClientTask]) -> list[Answer]:
        if any(task.index == 1 for task in tasks):
            raise KeyError("of nano-2")
        return trained(tasks)

    monkeypatch.setattr(clients.app, "answer_tasks", fail)
    grid = AnsweringGrid()
    grid.nodes = [5]
    replies = ask(grid, train(MODEL))
    assert {name: reply.answer.error for name, reply in replies.items()} == {
        "nano-1": None,
        "nano-2": "Flower error 2: ClientAppException: 'of nano-2'",
        "nano-3": None,
    }
    assert all((replies[name].trained is not None) == (name != "nano-2") for name in NAMES)


@pytest.mark.parametrize(("encoding", "messages"), [("topk", 3), ("int8", 2)])
def test_what_an_encoding_leaves_out_counts_in_the_size_of_a_reply(trained, monkeypatch, encoding, messages):
    monkeypatch.setattr(emulating_port, "MAX_GROUP_BYTES", 2 * MODEL["w"].nbytes)
    goal = RoundGoal("balanced", 4, compression=Compression(encoding, 0.1))
    request = RequestMessage("train", 1, trainable=("w",), goal=goal)
    grid = AnsweringGrid()
    ask(grid, {name: OutgoingRequest(request, MODEL) for name in NAMES})
    assert len(grid.pushed) == messages


class FlowerPool:
    """Flower's free processes, of which the last is taken first, and the order in which messages to nodes begin."""

    def __init__(self, processes: int, order: list[int]) -> None:
        self._free, self._order = list(range(100, 100 + processes)), order

    def play(self, nodes: list[int], slowest: int) -> list[GroupAnswer]:
        """Return the answers of a round whose group number ``slowest`` is done last; ``nodes`` are by group."""
        groups = sorted(range(len(nodes)), key=lambda group: self._order.index(nodes[group]))
        at_work = {group: self._free.pop() for group in groups}
        ended = sorted(groups, key=lambda group: (group == slowest, group))
        self._free += [at_work[group] for group in ended]
        return [GroupAnswer(nodes[group], group, at_work[group], float(ended.index(group))) for group in groups]


@pytest.mark.parametrize("order", [[1, 2, 3], [3, 1, 2], [2, 3, 1]])
def test_boards_go_to_the_process_that_emulated_them_last(order):
    pool, stack, seen = FlowerPool(3, order), ProcessStack(), list[dict[int, int | None]]()
    for slowest in (0, 2, 1, 1, 0, 2, 2):
        answers = pool.play(stack.assign([1, 2, 3], 3), slowest)
        stack.record(answers, 3)
        seen.append({answer.group: answer.process for answer in answers})
    assert all(later == seen[2] for later in seen[2:])  # two rounds show in which order messages begin


def test_the_processes_of_a_round_with_a_failure_are_not_known():
    stack = ProcessStack()
    stack.record([GroupAnswer(1, 0, 100, 1.0), GroupAnswer(2, 1, 101, 2.0)], 2)
    assert stack.assign([1, 2], 2) == [2, 1]
    stack.record([GroupAnswer(1, 0, None, 1.0), GroupAnswer(2, 1, 101, 2.0)], 2)
    assert stack.assign([1, 2], 2) == [1, 2]
    assert stack.assign([1, 2], 3) == [1, 2, 1]

"""The round loop over scripted boards: rows before aggregation, failures as rows, checkpoints that go on exactly."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from contracts.reports import answer, front

from fedge.errors import RunFailed
from fedge.experiment import Experiment, FleetEntry, PolicySpec, StrategySpec
from fedge.telemetry.rows import ClientRow, EventRow, RoundRow
from fedge.telemetry.store import MemoryTables
from fedge.types import NamedArrays, TrainResult
from fedge.wire import Answer
from server import checkpoint
from server.coordinator import Coordinator
from server.port import Question, Reply

logging.getLogger("flwr").setLevel(logging.ERROR)
BOARDS = ("nano-1", "nano-2")


class Task:
    """A model of one array that says nothing."""

    labels = np.zeros(4, np.int64)
    buffers = ()

    def initial_arrays(self, seed: int) -> NamedArrays:
        return {"w": np.full(3, float(seed), np.float32)}

    def evaluate(self, arrays: NamedArrays) -> tuple[float, float]:
        return float(arrays["w"].mean()), 0.5


@dataclass
class Scripted:
    """Boards that add one to the model; ``failing`` (round, board) pairs answer with an error, or with wrong arrays."""

    failing: Mapping[tuple[int, str], str] = field(default_factory=dict)
    questions: list[Question] = field(default_factory=list)

    def ask(self, questions: Mapping[str, Question], timeout_s: float) -> Mapping[str, Reply]:
        return {board: self._reply(board, question) for board, question in questions.items()}

    def _reply(self, board: str, question: Question) -> Reply:
        self.questions.append(question)
        failure = self.failing.get((question.ask.round, board))
        if failure == "misfit":
            return Reply(answer(board, 5.0), TrainResult({"w": np.zeros(1, np.float32)}, 0.0, 0.0))
        if failure:
            return Reply(Answer(board, error=failure))
        if question.ask.kind == "front":
            return Reply(Answer(board, front=front()))
        assert question.arrays is not None
        trained = {name: value + np.float32(1) for name, value in question.arrays.items()}
        return Reply(answer(board, 5.0 + question.ask.round, truth=front()), TrainResult(trained, 0.5, 0.5))


def experiment(rounds: int = 3, **changes: object) -> Experiment:
    return Experiment(fleet=(FleetEntry(device="nano", count=2),), rounds=rounds, **changes)


def coordinator(port: Scripted, tables: MemoryTables, folder: Path | None = None, **changes: object) -> Coordinator:
    return Coordinator(experiment(**changes), port, Task(), tables, folder)


def rows_of(tables: MemoryTables, kind: type) -> list:
    return [row for row in tables.rows if isinstance(row, kind)]


def test_a_run_has_a_row_for_every_round_and_every_board() -> None:
    tables = MemoryTables()
    progress = coordinator(Scripted(), tables).run()

    assert [row.round for row in rows_of(tables, RoundRow)] == [1, 2, 3]
    assert [(row.round, row.board) for row in rows_of(tables, ClientRow)] == [(r, b) for r in (1, 2, 3) for b in BOARDS]
    assert progress.arrays["w"].tolist() == [4.0, 4.0, 4.0]
    assert progress.clock_s == pytest.approx(sum(5.0 + r + 2.0 for r in (1, 2, 3)))


def test_the_boards_rows_are_stored_before_the_round_is_aggregated() -> None:
    tables = MemoryTables()
    with pytest.raises(RunFailed, match=r"strategy Krum failed|no board gave"):
        coordinator(Scripted({(1, b): "misfit" for b in BOARDS}), tables, strategy=StrategySpec(name="Krum")).run()

    assert [row.status for row in rows_of(tables, ClientRow)] == ["failed", "failed"]


def test_a_failed_board_is_a_row_and_the_others_go_on() -> None:
    tables = MemoryTables()
    progress = coordinator(Scripted({(2, "nano-2"): "out of memory"}), tables).run()

    failed = [row for row in rows_of(tables, ClientRow) if row.status == "failed"]
    assert [(row.round, row.board, row.error) for row in failed] == [(2, "nano-2", "out of memory")]
    assert [(e.kind, e.board) for e in rows_of(tables, EventRow)] == [("failed", "nano-2")]
    assert progress.round == 3


def test_arrays_that_do_not_fit_fail_their_board_only() -> None:
    tables = MemoryTables()
    coordinator(Scripted({(1, "nano-1"): "misfit"}), tables).run()

    first = rows_of(tables, ClientRow)[0]
    assert (first.status, first.error) == ("failed", "array 'w': got shape (1,); the model has (3,)")


def test_a_round_without_any_result_ends_the_run_and_says_why() -> None:
    with pytest.raises(RunFailed, match="round 2: no board gave a result to aggregate; nano-1: boom"):
        coordinator(Scripted({(2, board): "boom" for board in BOARDS}), MemoryTables()).run()


def test_no_board_ready_ends_the_run_at_once() -> None:
    with pytest.raises(RunFailed, match="no board is ready: nano-1 says no sensor"):
        coordinator(Scripted({(0, board): "no sensor" for board in BOARDS}), MemoryTables()).run()


def test_a_planned_policy_gives_every_board_the_deadline_of_the_fronts() -> None:
    port = Scripted()
    coordinator(port, MemoryTables(), rounds=1).run()
    goals = [question.ask.goal for question in port.questions if question.ask.kind == "train"]

    assert len({goal.deadline_s for goal in goals}) == 1
    assert 12.0 <= goals[0].deadline_s <= 1.05 * 12.0


def test_maxn_has_no_deadline() -> None:
    port = Scripted()
    coordinator(port, MemoryTables(), rounds=1, policy=PolicySpec(name="maxn")).run()

    assert all(q.ask.goal.deadline_s is None for q in port.questions if q.ask.kind == "train")


def test_a_board_gets_its_own_state_back() -> None:
    port = Scripted()
    coordinator(port, MemoryTables(), rounds=2).run()
    second = [question.ask for question in port.questions if question.ask.round == 2]

    assert [len(ask.state.measurements) for ask in second] == [1, 1]


@pytest.mark.parametrize("strategy", ["FedAvg", "FedAdam"])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path: Path, strategy: str) -> None:
    whole, part, rest = MemoryTables(), MemoryTables(), MemoryTables()
    spec = StrategySpec(name=strategy)
    want = coordinator(Scripted(), whole, rounds=4, strategy=spec).run()
    coordinator(Scripted(), part, tmp_path, rounds=2, strategy=spec).run()
    got = coordinator(Scripted(), rest, tmp_path, rounds=4, strategy=spec).run(checkpoint.latest(tmp_path))

    assert part.rows + rest.rows == whole.rows
    assert got.arrays["w"].tobytes() == want.arrays["w"].tobytes()

"""The round loop over scripted boards: rows before aggregation, failures as rows, checkpoints that go on exactly."""

import dataclasses
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from contracts.array_task import ArrayTask
from contracts.reports import IDLE_W, LINK, answer, front
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg

from fedge.errors import RunFailed
from fedge.experiment import (
    AvailabilitySpec,
    BatterySpec,
    Experiment,
    FleetEntry,
    LateReplySpec,
    PolicySpec,
    SelectionSpec,
    StrategySpec,
)
from fedge.knowledge.recall import FIRST_ROUNDS, RENEWAL_ROUNDS
from fedge.telemetry.store import MemoryTables
from fedge.telemetry.store_records import RECORDED, ClientRow, EventRow, RoundRow
from fedge.types import TrainResult
from fedge.wire import ReplyMessage
from server.rounds.coordinator import Coordinator
from server.state import checkpoint
from server.transport.client_port import IncomingReply, OutgoingRequest

logging.getLogger("flwr").setLevel(logging.ERROR)
BOARDS = ("nano-1", "nano-2")


TASK = ArrayTask(lambda seed: {"w": np.full(3, float(seed), np.float32)})


@dataclass
class Scripted:
    """Boards that add one to the model; ``failing`` (round, board) pairs answer with an error, or with wrong arrays."""

    failing: Mapping[tuple[int, str], str] = field(default_factory=dict)
    work_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of work of boards that do not take 5 s and 1 s more with every round."""
    questions: list[OutgoingRequest] = field(default_factory=list)
    asked: list[tuple[int, str]] = field(default_factory=list)
    """Round and board of every training."""
    recorded: bool = False

    def ask(
        self, questions: Mapping[str, OutgoingRequest], timeout_s: float, enough: object = None
    ) -> Mapping[str, IncomingReply]:
        return {board: self._reply(board, question) for board, question in questions.items()}

    def _reply(self, board: str, question: OutgoingRequest) -> IncomingReply:
        self.questions.append(question)
        if question.ask.kind == "train":
            self.asked.append((question.ask.round, board))
        failure = self.failing.get((question.ask.round, board))
        if failure == "misfit":
            return IncomingReply(answer(board, 5.0), TrainResult({"w": np.zeros(1, np.float32)}, 0.0, 0.0))
        if failure == "diverged":
            return IncomingReply(answer(board, 5.0), TrainResult(question.arrays, math.nan, 0.0))
        if failure == "tireless":
            said = answer(board, 5.0)
            measured = dataclasses.replace(said.report.measured, steps=10**11, step_s=1e-9)
            report = dataclasses.replace(said.report, measured=measured)
            return IncomingReply(dataclasses.replace(said, report=report), TrainResult(question.arrays, 0.5, 0.0))
        if failure:
            return IncomingReply(ReplyMessage(board, error=failure, unfit="nothing smaller" in failure))
        if question.ask.kind == "front":
            return IncomingReply(ReplyMessage(board, front=front(), recorded=self.recorded))
        trained = {name: value + np.float32(1) for name, value in question.arrays.items()}
        work_s = self.work_s.get(board, 5.0 + question.ask.round)
        replied = dataclasses.replace(answer(board, work_s, truth=front()), recorded=self.recorded)
        return IncomingReply(replied, TrainResult(trained, 0.5, 0.5))


def experiment(rounds: int = 3, **changes: object) -> Experiment:
    return Experiment(**{"fleet": (FleetEntry(device="nano", count=2),), "rounds": rounds} | changes)


def coordinator(port: Scripted, tables: MemoryTables, folder: Path | None = None, **changes: object) -> Coordinator:
    return Coordinator(experiment(**changes), port, TASK, tables, checkpoints=folder)


def rows_of(tables: MemoryTables, kind: type) -> list:
    return [row for row in tables.rows if isinstance(row, kind)]


def test_a_run_has_a_row_for_every_round_and_every_board():
    tables = MemoryTables()
    state = coordinator(Scripted(), tables).run()

    assert [row.round for row in rows_of(tables, RoundRow)] == [1, 2, 3]
    assert [(row.round, row.board) for row in rows_of(tables, ClientRow)] == [(r, b) for r in (1, 2, 3) for b in BOARDS]
    assert state.arrays["w"].tolist() == [4.0, 4.0, 4.0]
    assert state.fleet.clock_s == pytest.approx(sum(5.0 + r + 2.0 for r in (1, 2, 3)))


def test_the_boards_rows_are_stored_before_the_round_is_aggregated():
    tables = MemoryTables()
    with pytest.raises(RunFailed, match=r"strategy Krum failed|no board gave"):
        coordinator(Scripted({(1, b): "misfit" for b in BOARDS}), tables, strategy=StrategySpec(name="Krum")).run()

    assert [row.status for row in rows_of(tables, ClientRow)] == ["failed", "failed"]


def test_a_failed_board_is_a_row_and_the_others_go_on():
    tables = MemoryTables()
    state = coordinator(Scripted({(2, "nano-2"): "out of memory"}), tables).run()

    failed = [row for row in rows_of(tables, ClientRow) if row.status == "failed"]
    assert [(row.round, row.board, row.error) for row in failed] == [(2, "nano-2", "out of memory")]
    assert [(e.kind, e.board) for e in rows_of(tables, EventRow)] == [("failed", "nano-2")]
    assert state.round == 3


def test_a_recorded_folder_is_marked_once_whether_it_is_there_at_the_start_or_joins_later():
    tables = MemoryTables()
    coordinator(Scripted({(0, "nano-2"): "not up yet"}, recorded=True), tables).run()

    marked = [(row.round, row.board) for row in rows_of(tables, EventRow) if row.kind == RECORDED]
    assert marked == [(0, "nano-1"), (1, "nano-2")]


def test_a_refused_client_is_charged_its_time_and_energy_and_teaches_nobody():
    honest, tables = MemoryTables(), MemoryTables()
    coordinator(Scripted(work_s={"nano-2": 5.0}), honest, rounds=1).run()
    state = coordinator(Scripted({(1, "nano-2"): "misfit"}), tables, rounds=1).run()
    (_, was), (_, row) = rows_of(honest, ClientRow), rows_of(tables, ClientRow)

    assert (row.status, row.error[:9], row.loss) == ("failed", "refused: ", None)
    assert (row.work_s, row.work_j, row.energy_j) == (was.work_s, was.work_j, was.energy_j)
    assert rows_of(tables, RoundRow)[0].energy_j == rows_of(honest, RoundRow)[0].energy_j == state.spent_j
    assert rows_of(tables, RoundRow)[0].refused == 1
    assert "nano-2" not in state.fleet.states


def test_a_result_whose_loss_is_no_number_is_refused():
    tables = MemoryTables()
    qfedavg = StrategySpec(name="QFedAvg", options={"client_learning_rate": 0.1, "q": 0.2})
    state = coordinator(Scripted({(1, "nano-2"): "diverged"}), tables, rounds=1, strategy=qfedavg).run()

    row = rows_of(tables, ClientRow)[1]
    assert (row.status, row.error) == ("failed", "refused: its loss is nan; a lower learning rate may help")
    assert np.isfinite(state.arrays["w"]).all()


def test_a_client_that_claims_more_steps_than_its_samples_allow_does_not_move_the_others_results():
    partial = {"late": LateReplySpec(action="partial"), "rounds": 1}
    honest = coordinator(Scripted(), MemoryTables(), **partial).run().arrays["w"]
    lied = coordinator(Scripted({(1, "nano-2"): "tireless"}), MemoryTables(), **partial).run().arrays["w"]

    assert np.abs(lied - 1.0).max() <= 50 * np.abs(honest - 1.0).max()


class DivergingStrategy(FedAvg):
    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        return ArrayRecord({name: Array(value.numpy() * np.nan) for name, value in arrays.items()}), metrics


def test_a_model_that_is_not_finite_ends_the_run_before_it_is_booked(tmp_path):
    tables = MemoryTables()
    spec = StrategySpec(name=f"{__name__}:DivergingStrategy")
    with pytest.raises(RunFailed, match=r"round 1: strategy .* made values of w that are not finite numbers"):
        coordinator(Scripted(), tables, tmp_path, strategy=spec).run()

    assert not rows_of(tables, RoundRow)
    assert checkpoint.load_latest(tmp_path) is None


def test_a_round_waits_for_a_reply_that_it_refuses():
    tables = MemoryTables()
    coordinator(Scripted({(1, "nano-2"): "misfit"}, {"nano-1": 1.0}), tables, rounds=1).run()

    assert rows_of(tables, RoundRow)[0].round_s == pytest.approx(5.0 + LINK.down_s + LINK.up_s)
    assert [row.wait_s for row in rows_of(tables, ClientRow)] == pytest.approx([4.0, 0.0])


def test_a_board_on_which_nothing_fits_fails_once_and_is_left_out_of_the_rounds_and_of_the_savings(
    tmp_path,
):
    tables, port = MemoryTables(), Scripted({(1, "nano-2"): "out of memory; nothing smaller may be tried"})
    coordinator(port, tables, tmp_path).run()

    assert port.asked == [(1, "nano-1"), (1, "nano-2"), (2, "nano-1"), (3, "nano-1")]
    events = [(e.kind, e.board) for e in rows_of(tables, EventRow)]
    assert events == [("failed", "nano-2"), ("left-out", "nano-2")]
    rounds, clients = rows_of(tables, RoundRow), rows_of(tables, ClientRow)
    assert [row.available for row in rounds] == [2, 1, 1]
    assert [row.left_out for row in clients] == [None, True, None, None]
    first, second = rounds[0], rounds[1]
    assert first.maxn_energy_j == clients[0].maxn_energy_j + clients[1].energy_j, "the failed board saved nothing"
    assert second.maxn_parked_energy_j == clients[2].maxn_parked_energy_j
    assert second.resting_energy_j == pytest.approx(IDLE_W * second.round_s), "it still draws power"


def test_a_board_that_was_left_out_is_asked_again_once_its_memory_has_changed(tmp_path):
    failing = {(1, "nano-2"): "out of memory; nothing smaller may be tried"}
    coordinator(Scripted(failing), MemoryTables(), tmp_path, rounds=1).run()
    state = checkpoint.load_latest(tmp_path)

    unchanged, more = Scripted(), Scripted()
    coordinator(unchanged, MemoryTables(), rounds=2).run(state)
    fleet = (FleetEntry(device="nano", count=2, memory_mb=8000.0),)
    coordinator(more, MemoryTables(), rounds=2, fleet=fleet).run(state)

    assert unchanged.asked == [(2, "nano-1")]
    assert more.asked == [(2, "nano-1"), (2, "nano-2")]


def test_a_run_in_which_nothing_fits_on_any_board_says_so():
    failing = {(1, "nano-2"): "out of memory; nothing smaller", (2, "nano-1"): "out of memory; nothing smaller"}
    with pytest.raises(RunFailed, match="round 2: no board gave a result"):
        coordinator(Scripted(failing), MemoryTables()).run()


def test_a_round_without_any_result_ends_the_run_and_says_why():
    with pytest.raises(RunFailed, match="round 2: no board gave a result to aggregate; nano-1, nano-2: boom"):
        coordinator(Scripted({(2, board): "boom" for board in BOARDS}), MemoryTables()).run()


def test_no_board_ready_ends_the_run_at_once():
    with pytest.raises(RunFailed, match="no board is ready: nano-1, nano-2: no sensor"):
        coordinator(Scripted({(0, board): "no sensor" for board in BOARDS}), MemoryTables()).run()


def test_a_request_says_whether_the_next_one_brings_new_measurements_of_peers():
    port = Scripted()
    coordinator(port, MemoryTables(), rounds=FIRST_ROUNDS + RENEWAL_ROUNDS).run()
    kept = {q.ask.round: q.ask.keeps_peers for q in port.questions if q.ask.kind == "train"}

    assert [number for number in kept if not kept[number]] == [1, 2, 3, 7]


def test_a_planned_policy_gives_every_board_the_deadline_of_the_fronts():
    port = Scripted()
    coordinator(port, MemoryTables(), rounds=1).run()
    goals = [question.ask.goal for question in port.questions if question.ask.kind == "train"]

    assert len({goal.deadline_s for goal in goals}) == 1
    assert 12.0 <= goals[0].deadline_s <= 1.05 * 12.0


DEADLINE = PolicySpec(name="least-energy-within-deadline", deadline_s=10.0)
"""With a grace of a half: whoever takes longer than 15 s is late; a round of 5 s of work takes 7 s."""


def late(action: str, **more: object) -> LateReplySpec:
    return LateReplySpec(action=action, grace=0.5, **more)


def traced(tmp_path: Path, *lines: str) -> tuple[FleetEntry, ...]:
    """Two boards that are there when the trace says so."""
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(("board,on_s,off_s", *lines)), encoding="utf-8")
    return (FleetEntry(device="nano", count=2, availability=AvailabilitySpec(trace=str(path))),)


def test_what_a_selector_and_a_plan_have_to_say_are_events_of_the_round():
    tables, quiet = MemoryTables(), MemoryTables()
    selection = SelectionSpec(name="energy-aware", count=2, options={"power_w": 0.1})
    policy = PolicySpec(name="least-energy", deadline_s=0.001)
    coordinator(Scripted(), tables, rounds=2, selection=selection, policy=policy).run()
    coordinator(Scripted(), quiet, rounds=2, selection=SelectionSpec(name="energy-aware", count=2)).run()

    told = [(row.round, row.kind) for row in rows_of(tables, EventRow) if row.board is None]
    words = [row.message for row in rows_of(tables, EventRow) if row.board is None]
    assert told == [(1, "selection"), (1, "plan"), (2, "selection"), (2, "plan")]
    assert words[0] == "No board keeps 0.1 W by itself: the one of least power goes alone."
    assert words[1].endswith("Not within the limits.")
    assert [row.kind for row in rows_of(quiet, EventRow)] == []


def test_who_rests_is_counted_at_its_idle_power_beside_the_rounds_energy():
    tables = MemoryTables()
    coordinator(Scripted(), tables, rounds=1, selection=SelectionSpec(name="random", count=1)).run()
    row, client = rows_of(tables, RoundRow)[0], rows_of(tables, ClientRow)[0]

    assert row.energy_j == client.energy_j
    assert row.resting_energy_j == pytest.approx(IDLE_W * row.round_s)


def test_of_more_boards_than_wanted_the_first_count_and_the_others_are_cancelled():
    port, tables = Scripted(work_s={"nano-1": 9.0, "nano-2": 5.0}), MemoryTables()
    selection = SelectionSpec(name="random", count=1, over_commit=2.0)
    state = coordinator(port, tables, rounds=1, selection=selection).run()
    first, second = rows_of(tables, ClientRow)

    assert (first.status, second.status) == ("cancelled", "done")
    assert (first.end_s, second.end_s, state.fleet.clock_s) == (7.0, 7.0, 7.0)
    assert first.error == "stopped after 7.0 s: enough others were done"
    assert first.work_j == pytest.approx(6.5 * 9.0)
    assert rows_of(tables, RoundRow)[0].cancelled == 1
    assert state.fleet.states["nano-1"].measurements[0].steps == 7


def test_boards_may_stop_by_themselves_only_where_partial_work_counts():
    for action, stop_s in (("partial", 15.0), ("drop", None), ("accept", None), ("discount", None)):
        port = Scripted()
        coordinator(port, MemoryTables(), rounds=1, policy=DEADLINE, late=late(action)).run()

        assert [q.ask.goal.stop_s for q in port.questions if q.ask.goal] == [stop_s, stop_s]


def test_a_round_whose_every_reply_is_dropped_leaves_the_model_as_it_is():
    tables = MemoryTables()
    port = Scripted(work_s=dict.fromkeys(BOARDS, 50.0))
    state = coordinator(port, tables, rounds=2, policy=DEADLINE, late=late("drop")).run()

    assert state.arrays["w"].tolist() == [1.0, 1.0, 1.0]
    assert [row.late for row in rows_of(tables, RoundRow)] == [2, 2]
    assert [event.kind for event in rows_of(tables, EventRow)].count("empty") == 2
    assert state.fleet.clock_s == 30.0


def test_a_discounted_reply_joins_the_first_round_that_ends_after_it_arrives():
    tables = MemoryTables()
    port = Scripted(work_s={"nano-1": 5.0, "nano-2": 25.0})
    spec = late("discount", staleness_exponent=1.0)
    state = coordinator(port, tables, rounds=4, policy=DEADLINE, late=spec).run()

    # Round 1 ends at the cut-off, 15 s; nano-2 is done at 27 s, in round 3 (22 s to 29 s), and free for round 4.
    assert port.asked == [(1, "nano-1"), (1, "nano-2"), (2, "nano-1"), (3, "nano-1"), (4, "nano-1"), (4, "nano-2")]
    assert [row.stale for row in rows_of(tables, RoundRow)] == [0, 0, 1, 0]
    assert [row.available for row in rows_of(tables, RoundRow)] == [2, 1, 1, 2]
    joined = next(event for event in rows_of(tables, EventRow) if event.kind == "joined")
    assert (joined.at_s, joined.round, joined.board) == (29.0, 3, "nano-2")
    assert joined.message == "its result of round 1 joined, 2 rounds late, weighed by 0.33"
    # Both add one to the model of round 3, so that whatever their weights are the mean is one more.
    assert state.arrays["w"].tolist() == [5.0, 5.0, 5.0]
    assert [pending.round for pending in state.pending] == [4]


def test_every_joule_of_a_discounted_board_is_in_one_place():
    tables = MemoryTables()
    port = Scripted(work_s={"nano-1": 5.0, "nano-2": 25.0})
    coordinator(port, tables, rounds=3, policy=DEADLINE, late=late("discount")).run()
    end_s = rows_of(tables, RoundRow)[-1].end_s
    booked = sum(row.energy_j + row.resting_energy_j for row in rows_of(tables, RoundRow))

    one = 3 * (45.0 + LINK.radio_j) + IDLE_W * (end_s - 15.0)
    two = 225.0 + LINK.radio_j + IDLE_W * (end_s - 25.0)
    assert booked == pytest.approx(one + two)


def test_when_nobody_ever_comes_back_the_run_ends_and_says_so(tmp_path):
    fleet = traced(tmp_path, "nano-1,0,8", "nano-2,0,8")
    with pytest.raises(RunFailed, match="round 2: no board can be asked, now or later"):
        coordinator(Scripted(), MemoryTables(), fleet=fleet).run()


def test_a_battery_falls_by_its_boards_energy_and_spares_it_below_the_floor():
    port, tables = Scripted(work_s={"nano-1": 5.0, "mains-1": 5.0}), MemoryTables()
    battery = BatterySpec(capacity_wh=0.05, floor=0.5)
    fleet = (FleetEntry(device="nano", battery=battery), FleetEntry(device="nano", name="mains"))
    coordinator(port, tables, fleet=fleet, rounds=4).run()
    charges = [row.charge for row in rows_of(tables, ClientRow) if row.board == "nano-1"]

    # 180 J, of which a round takes 45 J of work, 1 J of radio and 4 J of idling.
    assert charges == pytest.approx([130.0 / 180.0, 80.0 / 180.0], rel=1e-9)
    assert [board for _, board in port.asked].count("nano-1") == 2
    assert all(row.charge is None for row in rows_of(tables, ClientRow) if row.board == "mains-1")


def test_a_board_whose_battery_runs_empty_fails_then():
    tables = MemoryTables()
    battery = BatterySpec(capacity_wh=0.01, floor=0.0)
    fleet = (FleetEntry(device="nano", battery=battery), FleetEntry(device="nano", name="mains"))
    coordinator(Scripted(work_s={"nano-1": 10.0}), tables, fleet=fleet, rounds=1).run()
    empty = next(row for row in rows_of(tables, ClientRow) if row.board == "nano-1")

    # 36 J: 1.25 J while fetching, then 9 W.
    assert (empty.status, empty.charge) == ("failed", 0.0)
    assert empty.error == f"its battery was empty after {0.5 + 34.75 / 9.0:.1f} s"
    assert empty.energy_j == pytest.approx(36.0)


def test_the_run_ends_before_the_round_that_would_exceed_its_energy_budget():
    tables, unlimited = MemoryTables(), MemoryTables()
    coordinator(Scripted(), unlimited, rounds=4, policy=PolicySpec(name="energy-budget", budget_j=1e9)).run()
    of_each = [row.energy_j for row in rows_of(unlimited, RoundRow)]
    limit_j = sum(of_each[:2]) + 60.0
    policy = PolicySpec(name="energy-budget", budget_j=limit_j)
    state = coordinator(Scripted(), tables, rounds=4, policy=policy).run()

    assert [row.energy_j for row in rows_of(tables, RoundRow)] == of_each[:2]
    assert state.spent_j == sum(of_each[:2])
    last = rows_of(tables, EventRow)[-1]
    assert (last.kind, last.round) == ("budget", 3)
    assert f"of {limit_j:.0f} J are spent" in last.message


def test_boards_at_rest_use_up_the_energy_budget_too():
    tables, selection = MemoryTables(), SelectionSpec(name="random", count=1)
    policy = PolicySpec(name="energy-budget", budget_j=330.0)
    state = coordinator(Scripted(), tables, rounds=9, policy=policy, selection=selection).run()
    rounds = rows_of(tables, RoundRow)

    resting_j = sum(row.resting_energy_j for row in rounds)
    assert resting_j == pytest.approx(sum(IDLE_W * row.round_s for row in rounds))
    assert state.spent_j == pytest.approx(sum(row.energy_j for row in rounds) + resting_j)
    assert rows_of(tables, EventRow)[-1].kind == "budget"
    alone_j = sum(row.energy_j for row in rounds)
    assert alone_j + rounds[-1].energy_j + 25.0 < 330.0, "without the boards at rest there would be another round"


def everything_on(tmp_path: Path) -> dict[str, object]:
    """Selection with a memory, late replies that join later, batteries, boards that come and go."""
    battery = BatterySpec(capacity_wh=0.2, floor=0.2, charging_w=IDLE_W + 2.0)
    (entry,) = traced(tmp_path, "nano-1,0,40", "nano-1,45,200", "nano-2,3,", "nano-1,210,")
    fleet = (
        entry.model_copy(update={"battery": battery}),
        FleetEntry(device="nano", name="slow", count=2),
        FleetEntry(device="nano", name="spry", availability=AvailabilitySpec(on_s=30.0, off_s=5.0)),
    )
    selection = SelectionSpec(name="oort", count=2, over_commit=1.5)
    return {"fleet": fleet, "selection": selection, "policy": DEADLINE, "late": late("discount")}


def test_a_run_with_everything_on_goes_on_after_any_round(tmp_path):
    changes, work_s, whole = everything_on(tmp_path), {"slow-1": 21.0, "slow-2": 14.0}, MemoryTables()
    want = coordinator(Scripted(work_s=work_s), whole, rounds=9, **changes).run()
    rows, rounds = rows_of(whole, ClientRow), rows_of(whole, RoundRow)
    assert {row.status for row in rows} >= {"done", "late"}
    assert sum(row.stale for row in rounds) >= 1
    assert any(row.charge is not None for row in rows)
    assert len({row.available for row in rounds}) > 1

    for stop in range(1, 9):
        part, rest, folder = MemoryTables(), MemoryTables(), tmp_path / f"stopped after {stop}"
        coordinator(Scripted(work_s=work_s), part, folder, rounds=stop, **changes).run()
        got = coordinator(Scripted(work_s=work_s), rest, rounds=9, **changes).run(checkpoint.load_latest(folder))
        assert part.rows + rest.rows == whole.rows
        assert got.arrays["w"].tobytes() == want.arrays["w"].tobytes()
        assert (got.fleet.histories, got.selection, got.spent_j) == (want.fleet.histories, want.selection, want.spent_j)


def test_a_selector_s_shares_of_the_steps_are_asked_of_the_boards():
    shares = {}

    class Unequal(Scripted):
        def _reply(self, board: str, question: OutgoingRequest) -> IncomingReply:
            if question.ask.kind == "front":
                return IncomingReply(ReplyMessage(board, front=front(2.0 if board == "nano-2" else 1.0)))
            shares[board] = question.ask.goal.share
            return super()._reply(board, question)

    selection, policy = SelectionSpec(name="pyramidfl-like", count=2), PolicySpec(name="maxn")
    coordinator(Unequal(), MemoryTables(), rounds=1, selection=selection, policy=policy).run()

    assert shares["nano-1"] > shares["nano-2"] == 1.0

"""The asynchronous loop over scripted boards: virtual completion decides, every joule is in one row."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from contracts.array_task import ArrayTask
from contracts.reports import IDLE_W, LINK, answer, front
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.decisions.selection import load_selector
from fedge.errors import RunFailed
from fedge.experiment import AvailabilitySpec, BatterySpec, Experiment, FleetEntry, PolicySpec, SignalSpec, StrategySpec
from fedge.knowledge.recall import RENEWAL_ROUNDS
from fedge.telemetry.store import MemoryTables
from fedge.telemetry.store_records import ClientRow, EventRow, RoundRow
from fedge.types import ClientStatus, SelectionContext, SelectionResult, TrainResult
from fedge.wire import ClientState, ReplyMessage
from server.aggregation.aggregator import build_strategy
from server.aggregation.async_strategies import AsyncStrategy
from server.rounds.async_coordinator import RETRY_DELAY_S, AsyncCoordinator
from server.state import checkpoint
from server.state.fleet_availability import build_availability
from server.transport.client_port import IncomingReply, OutgoingRequest

logging.getLogger("flwr").setLevel(logging.ERROR)
LINK_S, POWER_W = LINK.down_s + LINK.up_s, 9.0


TASK = ArrayTask(lambda _: {"w": np.zeros(1, np.float64)})


@dataclass
class Scripted:
    """Boards whose tasks last what is written, in turn; each adds its share to the model, unless its task fails."""

    work_s: Mapping[str, Sequence[float]]
    failing: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Board -> which of its tasks fail, from 0 on."""
    mute: bool = False
    error: str = "out of memory"
    """Of a task that fails; ``misfit``: its result has other arrays than the model."""
    unfit: bool = False
    """Whether nothing fits on the boards whose tasks fail."""
    calls: list[tuple[float, dict[str, OutgoingRequest]]] = field(default_factory=list)
    begun: dict[str, int] = field(default_factory=dict)

    def ask(
        self, questions: Mapping[str, OutgoingRequest], timeout_s: float, enough: object = None
    ) -> Mapping[str, IncomingReply]:
        asks = [question.ask for question in questions.values()]
        if asks and asks[0].kind == "front":
            return {board: IncomingReply(self._front(board)) for board in questions}
        self.calls.append((asks[0].start_s, dict(questions)))
        return {board: self._trained(board, question) for board, question in questions.items()}

    def _front(self, board: str) -> ReplyMessage:
        return ReplyMessage(board, error="mute") if self.mute else ReplyMessage(board, front=front(), samples=9)

    def _trained(self, board: str, question: OutgoingRequest) -> IncomingReply:
        place = len(question.ask.state.measurements) + self.begun.get(f"failed {board}", 0)
        if place in self.failing.get(board, ()):
            self.begun[f"failed {board}"] = self.begun.get(f"failed {board}", 0) + 1
            if self.error == "misfit":
                wrong = TrainResult({"w": np.zeros(2, np.float64)}, 0.5, 0.5)
                return IncomingReply(answer(board, self.work_s[board][0], POWER_W, front()), wrong)
            return IncomingReply(ReplyMessage(board, error=self.error, unfit=self.unfit))
        lasts = self.work_s[board]
        said = answer(board, lasts[place % len(lasts)], POWER_W, front())
        known = (*question.ask.state.measurements, said.report.measured)
        state = ClientState(known, 40.0, question.ask.start_s + said.report.busy_s)
        told = ReplyMessage(board, said.front, said.report, state)
        trained = {name: value + 1.0 for name, value in question.arrays.items()}
        return IncomingReply(told, TrainResult(trained, 0.5, 0.5))


def fedbuff(buffer_size: int = 1, **options: object) -> StrategySpec:
    return StrategySpec(name="FedBuff", options={"buffer_size": buffer_size, **options})


def coordinator(
    port: Scripted,
    tables: MemoryTables,
    strategy: StrategySpec,
    rounds: int = 4,
    folder: Path | None = None,
    selector: str = "random",
    **changes: object,
) -> AsyncCoordinator:
    fleet = changes.pop("fleet", tuple(FleetEntry(device="nano", name=name[:-2]) for name in port.work_s))
    values = {"policy": PolicySpec(name="maxn")} | changes
    experiment = Experiment(fleet=fleet, rounds=rounds, strategy=strategy, **values)
    made = build_strategy(strategy)
    assert isinstance(made, AsyncStrategy)
    chooses, availability = load_selector(selector), build_availability(experiment)
    return AsyncCoordinator(
        experiment,
        port,
        TASK,
        tables,
        strategy=made,
        selector=chooses,
        availability=availability,
        checkpoints=folder,
    )


def rows_of(tables: MemoryTables, kind: type) -> list:
    return [row for row in tables.rows if isinstance(row, kind)]


def done_of(tables: MemoryTables) -> list[ClientRow]:
    return [row for row in rows_of(tables, ClientRow) if row.status == "done"]


LASTS = st.lists(st.integers(1, 6).map(float), min_size=1, max_size=4)
FLEETS = st.lists(LASTS, min_size=1, max_size=5).map(
    lambda lasts: {f"{name}-1": one for name, one in zip("abcde", lasts, strict=False)}
)


@settings(deadline=None, max_examples=60)
@given(FLEETS, st.integers(1, 4), st.integers(1, 6))
def test_results_are_merged_in_the_order_in_which_boards_that_never_rest_are_done(work_s, buffer_size, rounds):
    tables, port = MemoryTables(), Scripted(work_s)
    coordinator(port, tables, fedbuff(buffer_size), rounds).run()

    ends = []
    for board, lasts in work_s.items():
        start_s = 0.0
        for task in range(rounds * buffer_size):
            end_s = start_s + LINK.down_s + lasts[task % len(lasts)] + LINK.up_s
            ends.append((end_s, board, start_s))
            start_s = end_s
    ends = sorted(ends)[: rounds * buffer_size]
    want = []
    for place, (end_s, board, start_s) in enumerate(ends):
        known = sum(other_s <= start_s for other_s, _, _ in ends) // buffer_size
        want.append((1 + place // buffer_size, board, start_s, end_s, place // buffer_size - known))
    got = [(row.round, row.board, row.start_s, row.end_s, row.staleness) for row in done_of(tables)]
    assert got == want


@settings(deadline=None, max_examples=60)
@given(
    FLEETS.filter(lambda work_s: len(work_s) > 1),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(1, 4),
    st.dictionaries(st.sampled_from(["a-1", "b-1"]), st.just([0, 2]), max_size=1),
)
def test_every_joule_of_every_board_from_start_to_end_is_in_one_row(work_s, buffer_size, rounds, concurrency, failing):
    tables, port = MemoryTables(), Scripted(work_s, failing)
    spec = fedbuff(buffer_size, concurrency=concurrency)
    end_s = coordinator(port, tables, spec, rounds).run().fleet.clock_s

    want_j = IDLE_W * end_s * len(work_s)
    tasks: dict[str, int] = {}
    for start_s, questions in port.calls:
        for board in questions:
            place = tasks.get(board, 0)
            tasks[board] = place + 1
            if place in failing.get(board, ()):
                continue
            ran_s, lasts_s = end_s - start_s, work_s[board][place % len(work_s[board])]
            worked_s = min(lasts_s, max(0.0, ran_s - LINK.down_s))
            up_s = min(LINK.up_s, max(0.0, ran_s - LINK.down_s - lasts_s))
            want_j += worked_s * (POWER_W - IDLE_W)
            want_j += LINK.radio_j / LINK_S * (min(LINK.down_s, ran_s) + up_s)
    rows, rounds_ = rows_of(tables, ClientRow), rows_of(tables, RoundRow)
    assert sum(r.energy_j + (r.resting_energy_j or 0.0) for r in rounds_) == pytest.approx(want_j)
    assert sum(row.energy_j for row in rows) == pytest.approx(sum(r.energy_j for r in rounds_))
    assert max(row.end_s for row in rows) == end_s


@settings(deadline=None, max_examples=40)
@given(FLEETS, st.integers(1, 5), st.integers(1, 3))
def test_never_more_boards_train_than_may_and_never_fewer_while_some_are_free(work_s, concurrency, buffer_size):
    tables, port = MemoryTables(), Scripted(work_s)
    coordinator(port, tables, fedbuff(buffer_size, concurrency=concurrency), 4).run()

    rows = [row for row in rows_of(tables, ClientRow) if row.start_s < row.end_s]
    for moment in sorted({row.start_s for row in rows}):
        assert sum(row.start_s <= moment < row.end_s for row in rows) == min(concurrency, len(work_s))


class _Stopped(Exception):
    pass


@pytest.mark.parametrize("strategy", [fedbuff(2, concurrency=3), StrategySpec(name="FedAsync")], ids=lambda s: s.name)
@pytest.mark.parametrize("selector", ["random", "round-robin", "oort"])
def test_a_run_stopped_after_any_model_goes_on_as_if_it_had_not_been(tmp_path, strategy, selector):
    work_s = {"a-1": [1.0, 5.0], "b-1": [2.0], "c-1": [7.0, 3.0], "d-1": [2.0]}
    failing = {"b-1": [1]}
    battery = BatterySpec(capacity_wh=0.2, charging_w=5.0, floor=0.3)
    fleet = tuple(FleetEntry(device="nano", name=b[:-2], battery=battery if b == "d-1" else None) for b in work_s)
    common = {"rounds": 6, "selector": selector, "fleet": fleet}
    whole = MemoryTables()
    want = coordinator(Scripted(work_s, failing), whole, strategy, **common).run()

    for version in range(1, 6):
        part, rest, folder = MemoryTables(), MemoryTables(), tmp_path / f"stopped after {version}"
        port = Scripted(work_s, failing)
        first = coordinator(port, part, strategy, folder=folder, **common)
        object.__setattr__(first, "on_round", partial(_stop_at, version))
        with pytest.raises(_Stopped):
            first.run()
        got = coordinator(port, rest, strategy, **common).run(checkpoint.load_latest(folder))
        assert part.rows + rest.rows == whole.rows
        assert got.arrays["w"].tobytes() == want.arrays["w"].tobytes()
        assert got.spent_j == want.spent_j


def _stop_at(version: int, made: int) -> None:
    if made == version:
        raise _Stopped


def test_a_failed_board_is_a_row_and_is_asked_again_after_a_while():
    tables = MemoryTables()
    coordinator(Scripted({"a-1": [30.0], "b-1": [1.0]}, {"b-1": [0]}), tables, fedbuff(), 4).run()
    rows = rows_of(tables, ClientRow)

    maxn_s = front().link_s + front().maxn.work_s
    assert (rows[0].board, rows[0].status, rows[0].error, rows[0].end_s) == ("b-1", "failed", "out of memory", maxn_s)
    assert rows[0].energy_j == pytest.approx(IDLE_W * maxn_s)
    assert [(e.kind, e.board) for e in rows_of(tables, EventRow)] == [("failed", "b-1")]
    assert done_of(tables)[0].board == "b-1"


def test_a_refused_task_is_charged_until_its_reply():
    tables = MemoryTables()
    boards = {"nano-1": (5.0,), "orin-1": (3.0,)}
    coordinator(Scripted(boards, failing={"nano-1": (0,)}, error="misfit"), tables, fedbuff()).run()
    refused, following = [row for row in tables.rows if isinstance(row, ClientRow) and row.board == "nano-1"][:2]

    assert (refused.status, refused.error[:9]) == ("failed", "refused: ")
    assert (refused.work_s, refused.work_j) == pytest.approx((5.0, 5.0 * POWER_W))
    assert following.start_s == refused.end_s == pytest.approx(5.0 + LINK_S)


def test_a_board_on_which_nothing_fits_gets_no_further_task():
    tables, port = MemoryTables(), Scripted({"a-1": [5.0], "b-1": [1.0]}, {"b-1": [0]}, unfit=True)
    coordinator(port, tables, fedbuff(), 6).run()

    assert [name for _, asked in port.calls for name in asked if name == "b-1"] == ["b-1"]
    events = [(e.kind, e.board) for e in rows_of(tables, EventRow)]
    assert events == [("failed", "b-1"), ("left-out", "b-1")]
    assert len(done_of(tables)) == 6


def test_the_run_ends_when_every_board_has_failed_one_after_the_other_and_says_why():
    tables = MemoryTables()
    with pytest.raises(RunFailed, match=r"model 1: no board gives a result; .*out of memory"):
        coordinator(
            Scripted({"a-1": [1.0], "b-1": [1.0]}, {"a-1": range(99), "b-1": range(99)}), tables, fedbuff()
        ).run()

    assert {row.board for row in rows_of(tables, ClientRow)} == {"a-1", "b-1"}


def test_a_board_is_asked_only_while_it_is_there_and_one_that_goes_away_has_failed(tmp_path):
    trace = tmp_path / "there.csv"
    trace.write_text("board,on_s,off_s\nb-1,20,26\nb-1,40,\n")
    fleet = (
        FleetEntry(device="nano", name="a"),
        FleetEntry(device="nano", name="b", availability=AvailabilitySpec(trace=str(trace))),
    )
    tables, port = MemoryTables(), Scripted({"a-1": [4.0], "b-1": [2.0]})
    coordinator(port, tables, fedbuff(), 10, fleet=fleet).run()
    rows = [row for row in rows_of(tables, ClientRow) if row.board == "b-1"]

    assert [(row.status, row.start_s, row.end_s) for row in rows[:3]] == [
        ("done", 20.0, 24.0),
        ("failed", 24.0, 26.0),
        ("done", 40.0, 44.0),
    ]
    assert "went away after 2.0 s" in (rows[1].error or "")
    assert rows[1].work_s == pytest.approx(1.5)


def test_a_time_without_any_board_is_waited_through(tmp_path):
    trace = tmp_path / "there.csv"
    trace.write_text("board,on_s,off_s\na-1,100,\n")
    fleet = (FleetEntry(device="nano", name="a", availability=AvailabilitySpec(trace=str(trace))),)
    tables = MemoryTables()
    coordinator(Scripted({"a-1": [4.0]}), tables, fedbuff(), 1, fleet=fleet).run()
    row = done_of(tables)[0]

    assert (row.start_s, row.wait_s) == (100.0, 100.0)
    assert row.energy_j == pytest.approx(100.0 * IDLE_W + 4.0 * POWER_W + LINK_S * IDLE_W + LINK.radio_j)


def test_boards_that_never_come_back_end_the_run(tmp_path):
    trace = tmp_path / "there.csv"
    trace.write_text("board,on_s,off_s\na-1,0,8\n")
    fleet = (FleetEntry(device="nano", name="a", availability=AvailabilitySpec(trace=str(trace))),)
    with pytest.raises(RunFailed, match="model 2: no board can be asked, nor will one come"):
        coordinator(Scripted({"a-1": [6.0]}), MemoryTables(), fedbuff(), 3, fleet=fleet).run()


def nobody(clients, call, rng) -> SelectionResult:
    return SelectionResult((), why="all are too cold")


def test_a_selector_that_leaves_everybody_out_ends_the_run_instead_of_waiting_for_ever():
    seldom = FleetEntry(device="nano", name="a", count=2, availability=AvailabilitySpec(on_s=1, off_s=900))
    port = Scripted({"a-1": [6.0], "a-2": [6.0]})
    made = coordinator(port, MemoryTables(), fedbuff(), 3, fleet=(seldom,))
    with pytest.raises(
        RunFailed, match=r"model 1: selection all chose no board \(all are too cold\), 20 times in a row"
    ):
        dataclasses.replace(made, selector=nobody).run()
    there = dataclasses.replace(coordinator(port, MemoryTables(), fedbuff(), 3), selector=nobody)
    with pytest.raises(RunFailed, match=r"chose no board \(all are too cold\), and no other will come"):
        there.run()
    assert port.calls == []


def test_a_battery_is_drawn_on_while_working_and_charged_while_waiting():
    battery = BatterySpec(capacity_wh=0.05, charge=0.95, charging_w=4.0, floor=0.5)
    fleet = (FleetEntry(device="nano", name="a", battery=battery),)
    tables = MemoryTables()
    coordinator(Scripted({"a-1": [10.0]}), tables, fedbuff(), 4, fleet=fleet).run()
    rows = done_of(tables)

    task_j = 10.0 * POWER_W + LINK_S * IDLE_W + LINK.radio_j
    assert rows[0].charge == pytest.approx(0.95 - (task_j - 12.0 * 4.0) / 180.0)
    assert rows[1].charge == pytest.approx(rows[0].charge - (task_j - 12.0 * 4.0) / 180.0)
    assert rows[2].wait_s > 0.0
    low = rows[1].charge
    assert rows[2].wait_s * (4.0 - IDLE_W) / 180.0 == pytest.approx(0.5 - low, abs=1e-6)


def test_a_board_that_told_no_front_is_left_alone_for_the_usual_while():
    class Partly(Scripted):
        def ask(
            self, questions: Mapping[str, OutgoingRequest], timeout_s: float, enough: object = None
        ) -> Mapping[str, IncomingReply]:
            replies = dict(super().ask(questions, timeout_s))
            if any(q.ask.kind == "front" for q in questions.values()):
                replies["b-1"] = IncomingReply(ReplyMessage("b-1", error="not yet"))
            return replies

    tables = MemoryTables()
    coordinator(Partly({"a-1": [50.0], "b-1": [1.0]}, {"b-1": [0]}), tables, fedbuff(), 3).run()

    assert next(row.end_s for row in rows_of(tables, ClientRow) if row.status == "failed") == RETRY_DELAY_S


def asked_of(port: Scripted) -> list[tuple[str, ...]]:
    return [tuple(questions) for _, questions in port.calls]


@settings(deadline=None, max_examples=30)
@given(FLEETS, st.integers(1, 3), st.integers(0, 5))
def test_to_the_selector_rounds_are_counted_one_by_one_also_after_the_run_was_stopped(
    tmp_path_factory, work_s, concurrency, stop
):
    calls: list[SelectionContext] = []
    folder = tmp_path_factory.mktemp("checkpoints")

    def spy(clients: Sequence[ClientStatus], call: SelectionContext, rng: np.random.Generator) -> SelectionResult:
        calls.append(call)
        known = [client.last_round for client in clients if client.last_round is not None]
        assert all(last < call.round for last in known)
        return SelectionResult(tuple(client.board for client in clients[: call.count]))

    port, strategy = Scripted(work_s), fedbuff(concurrency=concurrency)
    for rounds in (stop + 1, stop + 4):
        made = coordinator(port, MemoryTables(), strategy, rounds, folder)
        dataclasses.replace(made, selector=spy).run(checkpoint.load_latest(folder))

    assert [call.round for call in calls] == list(range(1, len(port.calls) + 1))


def test_a_board_s_last_round_is_the_one_in_which_its_task_ended():
    seen: list[tuple[int, dict[str, int | None]]] = []

    def spy(clients: Sequence[ClientStatus], call: SelectionContext, rng: np.random.Generator) -> SelectionResult:
        seen.append((call.round, {client.board: client.last_round for client in clients}))
        return SelectionResult(tuple(client.board for client in clients[: call.count]))

    made = coordinator(Scripted({"a-1": [2.0], "b-1": [5.0]}), MemoryTables(), fedbuff(), 4)
    dataclasses.replace(made, selector=spy).run()

    assert seen == [
        (1, {"a-1": None, "b-1": None}),
        (2, {"a-1": 1}),
        (3, {"b-1": 2}),
        (4, {"a-1": 3}),
    ]


def test_a_goal_tells_how_many_tasks_a_board_has_still_to_come():
    port = Scripted({"a-1": [4.0], "b-1": [4.0]})
    coordinator(port, MemoryTables(), fedbuff(2), 4).run()
    left = [q.ask.goal.rounds_left for _, asked in port.calls for q in asked.values() if q.ask.goal is not None]

    assert asked_of(port) == [("a-1", "b-1")] * 4
    assert left == [3, 3, 2, 2, 1, 1, 0, 0]


def test_no_request_expects_the_next_to_come_with_the_same_measurements_of_peers():
    port = Scripted({"a-1": [4.0], "b-1": [4.0]})
    coordinator(port, MemoryTables(), fedbuff(2), 2 * RENEWAL_ROUNDS).run()

    assert not any(q.ask.keeps_peers for _, asked in port.calls for q in asked.values())


def test_what_a_selector_has_to_say_is_an_event_once_per_model():
    def talking(clients: Sequence[ClientStatus], call: SelectionContext, rng: np.random.Generator) -> SelectionResult:
        return SelectionResult(tuple(client.board for client in clients[: call.count]), why="the fullest goes alone")

    tables = MemoryTables()
    made = coordinator(Scripted({"a-1": [2.0], "b-1": [5.0]}), tables, fedbuff(3), 2)
    dataclasses.replace(made, selector=talking).run()

    told = [(row.round, row.kind, row.message) for row in rows_of(tables, EventRow) if row.kind == "selection"]
    assert told == [(1, "selection", "the fullest goes alone"), (2, "selection", "the fullest goes alone")]


def test_the_cost_of_models_is_that_of_their_rows_and_of_boards_at_rest(tmp_path):
    path = tmp_path / "carbon.csv"
    path.write_text("at_s,all\n0,360\n")
    tables, signal = MemoryTables(), SignalSpec(trace=str(path))
    coordinator(Scripted({"a-1": [3.0], "b-1": [5.0]}), tables, fedbuff(1), rounds=3, signal=signal).run()

    for row in rows_of(tables, RoundRow):
        joules = row.energy_j + (row.resting_energy_j or 0.0)
        assert row.energy_cost == pytest.approx(joules * 360.0 / 3.6e6)

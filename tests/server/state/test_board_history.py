"""After a round the server knows what the boards have told by then: all, a part, or nothing."""

import dataclasses
import logging

import numpy as np
import pytest
from contracts.array_task import ArrayTask
from contracts.reports import LOW, answer, front
from contracts.timed_grid import MODEL, TimedGrid
from hypothesis import given
from hypothesis import strategies as st

from fedge.clock import SimulatedClock
from fedge.errors import RunFailed
from fedge.experiment import Experiment, FleetEntry, LateReplySpec, PolicySpec, SelectionSpec
from fedge.knowledge.recall import RENEWAL_ROUNDS
from fedge.telemetry.client_rows import RoundStart
from fedge.telemetry.settlement import settle_round
from fedge.telemetry.store import MemoryTables
from fedge.telemetry.store_records import RECORDED, WAITING, ClientRow, EventRow, RoundRow
from fedge.types import Measurement, TrainResult, add_measurements
from fedge.wire import ClientState, ReplyMessage, RequestMessage
from server.rounds.coordinator import Coordinator
from server.rounds.late_replies import LATE_REPLY_EVENT, LateUpdate, apply_late_replies
from server.state.board_history import apply_late_reports, update_histories
from server.state.checkpoint import ClientHistory, FleetState, PendingResult, RunState
from server.transport.claim_terms import ClaimTerms
from server.transport.client_port import IncomingReply, LateReply, OutgoingRequest
from server.transport.grid_port import GridPort

EARLIER = Measurement(LOW, 10, 2.0, 4.0)
OPEN = RoundStart(round=2, start_s=100.0, deadline_s=30.0, idle_w={})
BEFORE = FleetState(100.0, states={"a": ClientState((EARLIER,), 30.0, 90.0)}, fronts={"a": front(3.0)})


def said(board: str, work_s: float, probe_s: float = 0.0) -> ReplyMessage:
    """An answer whose state holds the earlier measurement too; with a probe of 4 minibatches before."""
    told = answer(board, work_s)
    assert told.report is not None
    report = told.report
    if probe_s:
        report = dataclasses.replace(report, probes=(Measurement(LOW, 4, probe_s / 4, 4.0),))
    state = ClientState((EARLIER, *report.parts), 40.0, 100.0 + report.busy_s)
    return dataclasses.replace(told, report=report, state=state)


def after(one: ReplyMessage, late: LateReplySpec | None = None, **opening: object) -> FleetState:
    answers = {"a": one, "b": answer("b", 10.0)}
    settled = settle_round(dataclasses.replace(OPEN, **opening), answers, late or LateReplySpec())
    return update_histories(BEFORE, 2, settled, answers)


def test_a_board_that_is_done_has_told_everything():
    told = after(said("a", 20.0))

    assert told.states["a"] == said("a", 20.0).state
    assert told.fronts["a"] == front()
    history = told.histories["a"]
    assert (history.samples, history.loss, history.accuracy, history.busy_s) == (100, 0.5, 0.8, 22.0)
    assert (history.last_round, history.rounds, history.free_at_s) == (2, 1, 122.0)


def test_the_rate_of_a_link_is_the_median_of_the_last_rounds_that_measured_it():
    fleet = BEFORE
    for rate in (*[1000.0] * 5, None, *map(float, range(1, 10))):
        told = said("a", 20.0)
        assert told.report is not None
        told = dataclasses.replace(told, report=dataclasses.replace(told.report, link_mbps=rate))
        settled = settle_round(OPEN, {"a": told}, LateReplySpec())
        fleet = update_histories(fleet, 2, settled, {"a": told})

    assert fleet.histories["a"].link_mbps == 5.0
    assert after(said("a", 20.0)).histories["a"].link_mbps is None


def test_what_peers_were_not_told_is_counted_from_the_last_renewal_on():
    counts, fleet, measured = list[int](), FleetState(0.0), ()
    for number in range(1, 2 * RENEWAL_ROUNDS + 2):
        told = answer("a", float(number))
        measured = add_measurements(measured, told.report.parts)
        told = dataclasses.replace(told, state=ClientState(measured))
        settled = settle_round(dataclasses.replace(OPEN, round=number), {"a": told}, LateReplySpec())
        fleet = update_histories(fleet, number, settled, {"a": told})
        counts.append(fleet.histories["a"].unshared)

    assert counts == [1, 1, 1, 1, 2, 3, 4, 1, 2]
    others = settle_round(dataclasses.replace(OPEN, round=RENEWAL_ROUNDS), {"b": answer("b", 10.0)}, LateReplySpec())
    assert update_histories(fleet, RENEWAL_ROUNDS, others, {"b": answer("b", 10.0)}).histories["a"].unshared == 0


def test_a_board_stopped_in_its_probe_keeps_its_old_front():
    told = after(said("a", 20.0, probe_s=16.0), wanted=1)

    assert [measurement.steps for measurement in told.states["a"].measurements] == [10, 2]
    assert told.fronts["a"] == front(3.0)


@pytest.mark.parametrize("opening", [{"leaves_s": {"a": 104.0}}, {}])
def test_of_a_board_that_failed_nothing_new_is_known_but_that_it_rests_since(opening):
    one = said("a", 20.0) if opening else ReplyMessage("a", error="out of memory")
    told = after(one, **opening)

    # It worked until it failed: it has not cooled since its last reply at 90 s.
    assert told.states["a"] == dataclasses.replace(BEFORE.states["a"], rested_at_s=104.0 if opening else 112.0)
    assert told.fronts["a"] == BEFORE.fronts["a"]
    assert (told.histories["a"].rounds, told.histories["a"].loss) == (1, None)


def test_a_late_board_is_busy_until_its_reply_is_in_and_tells_only_then():
    one = said("a", 60.0)
    told = after(one, LateReplySpec(action="discount", grace=0.0))

    assert told.states["a"] == BEFORE.states["a"]
    assert told.histories["a"].free_at_s == 162.0
    pending = PendingResult(2, 100.0, 162.0, one, TrainResult({"w": np.zeros(1)}, 0.5, 0.8))
    assert apply_late_reports(told, [pending]).states["a"] == one.state
    assert apply_late_reports(told, [pending]).histories["a"].busy_s == 62.0
    assert apply_late_reports(told, [pending]).histories["a"].rounds == 1


def test_of_a_late_board_that_goes_away_before_it_replies_nothing_is_known():
    told = after(said("a", 60.0), LateReplySpec(action="discount", grace=0.0), leaves_s={"a": 140.0})

    assert told.states["a"] == dataclasses.replace(BEFORE.states["a"], rested_at_s=140.0)
    assert told.fronts["a"] == front(3.0)
    assert (told.histories["a"].busy_s, told.histories["a"].loss, told.histories["a"].free_at_s) == (None, None, 140.0)


def test_a_late_board_that_was_stopped_before_it_went_away_keeps_what_it_had_measured():
    told = after(said("a", 60.0), LateReplySpec(action="drop", grace=0.0), leaves_s={"a": 140.0})

    # Stopped after 30 s, of which it worked 29.5 s.
    assert [measurement.steps for measurement in told.states["a"].measurements] == [10, 4]
    assert told.states["a"].rested_at_s == pytest.approx(130.0)


@given(st.integers(1, 200).map(lambda quarter: quarter / 4))
def test_the_row_and_the_memory_of_a_stopped_board_count_the_same_minibatches(done_s):
    one = said("a", 20.0, probe_s=16.0)
    answers = {"a": one, "b": answer("b", done_s)}
    settled = settle_round(dataclasses.replace(OPEN, wanted=1), answers, LateReplySpec())
    known = update_histories(BEFORE, 2, settled, answers).states["a"].measurements[1:]

    assert settled.clients[0].steps == sum(m.steps for m in known if m != EARLIER)


def test_a_late_reply_is_applied_in_the_one_span_of_time_in_which_it_arrives():
    results = [
        PendingResult(1, 0.0, end_s, ReplyMessage(f"at-{end_s:.0f}", front=front()), TrainResult({}, 0.0, 0.0))
        for end_s in (5.0, 10.0, 15.0, 20.0)
    ]
    parts = [
        apply_late_reports(FleetState(0.0), results, after_s, until_s)
        for after_s, until_s in ((0.0, 10.0), (10.0, 12.0), (12.0, 20.0))
    ]

    assert [list(part.fronts) for part in parts] == [["at-5", "at-10"], [], ["at-15", "at-20"]]


logging.getLogger("flwr").setLevel(logging.ERROR)
BOARDS = ("nano-1", "nano-2")
CUT_S = 12.0
"""The planned deadline of two boards whose front begins with 10 s of work and 2 s of link; there is no grace."""
EVERYBODY = SelectionSpec()
LEARNT = frozenset(MODEL)


TASK = ArrayTask(lambda _: MODEL)


def experiment(action: str, rounds: int, timeout_s: float, selection: SelectionSpec) -> Experiment:
    return Experiment(
        backend="fleet",
        fleet=(FleetEntry(device="nano", count=2),),
        rounds=rounds,
        policy=PolicySpec(name="balanced"),
        late=LateReplySpec(action=action, grace=0.0),
        reply_timeout_s=timeout_s,
        selection=selection,
    )


class Run:
    """A run of two boards on a fake Grid; ``slow_s`` is what the second one's training takes."""

    def __init__(
        self,
        action: str,
        slow_s: float,
        rounds: int = 3,
        timeout_s: float = 600.0,
        selection: SelectionSpec = EVERYBODY,
    ) -> None:
        self.grid = TimedGrid(SimulatedClock(), BOARDS, {"nano-1": 10.0, "nano-2": slow_s})
        self.tables = MemoryTables()
        port = GridPort(self.grid, BOARDS, self.grid.clock, claiming=ClaimTerms("digits", timeout_s))
        spec = experiment(action, rounds, timeout_s, selection)
        self.coordinator = Coordinator(spec, port, TASK, self.tables, overdue=port)

    def play(self) -> RunState:
        return self.coordinator.run()

    def rows(self, kind: type) -> list:
        return [row for row in self.tables.rows if isinstance(row, kind)]

    def statuses(self, board: str) -> list[tuple[int, str]]:
        return [(row.round, row.status) for row in self.rows(ClientRow) if row.board == board]


def test_a_dropped_board_is_late_and_the_others_go_on_without_it():
    run = Run("drop", 1e6)
    run.play()

    assert run.statuses("nano-1") == [(1, "done"), (2, "done"), (3, "done")]
    assert run.statuses("nano-2") == [(1, "late")]
    first = run.rows(RoundRow)[0]
    assert (first.round_s, first.late, first.failed) == (CUT_S, 1, 0)
    late = next(event for event in run.rows(EventRow) if event.kind == "late")
    assert "fedge fleet status --limit nano-2" in late.message


def test_boards_are_told_when_to_stop_where_their_reply_would_be_thrown_away():
    told = {}
    for action in ("drop", "discount", "accept", "partial"):
        run = Run(action, 5.0, rounds=1)
        run.play()
        told[action] = {each.ask.cancel_s for each in run.grid.passed.values() if each.ask.kind == "train"}

    assert told == {"drop": {CUT_S}, "discount": {None}, "accept": {None}, "partial": {None}}


def test_a_dropped_reply_that_comes_later_is_thrown_away_and_what_it_measured_is_kept():
    run = Run("drop", 90.0, rounds=6)
    last = run.play()
    told = [event for event in run.rows(EventRow) if event.kind == LATE_REPLY_EVENT]

    assert run.statuses("nano-2")[0] == (1, "late")
    assert "thrown away; what it measured is kept; 90.0 s and 810 J" in told[0].message
    assert last.fleet.states["nano-2"].measurements
    assert last.pending == ()
    assert {row.stale for row in run.rows(RoundRow)} == {0}


def test_while_all_boards_are_at_work_the_run_waits_for_the_first():
    run = Run("drop", 300.0, rounds=2)
    run.grid.work_s["nano-1"] = 200.0
    run.play()

    assert [row.round for row in run.rows(RoundRow)] == [1, 2]
    assert "empty" in {event.kind for event in run.rows(EventRow)}
    assert run.statuses("nano-1") == [(1, "late"), (2, "late")]
    assert run.statuses("nano-2") == [(1, "late")]


def test_a_run_whose_boards_never_come_back_stops_and_names_them():
    run = Run("drop", 1e6, timeout_s=120.0)
    run.grid.work_s["nano-1"] = 1e6

    with pytest.raises(RunFailed, match=r"round 2: nano-1 is still at work on round 1; nano-2 is still at work"):
        run.play()
    assert [row.round for row in run.rows(RoundRow)] == [1]


def test_a_board_that_is_lost_does_not_end_the_run_while_another_is_at_work():
    run = Run("drop", 400.0, rounds=2)
    seen: list[int] = []

    def lose(number: int) -> None:
        seen.append(number)
        run.grid.lost = {11}

    object.__setattr__(run.coordinator, "on_round", lose)
    run.play()

    assert seen == [1, 2]
    failed = [row for row in run.rows(ClientRow) if row.status == "failed"]
    assert {row.board for row in failed} <= {"nano-1"}


@pytest.mark.parametrize("action", ["accept", "drop", "discount", "partial"])
def test_with_over_commitment_nobody_waits_for_the_others_and_their_replies_join_no_round(action):
    over = SelectionSpec(name="round-robin", count=1, over_commit=2.0)
    run = Run(action, 60.0, rounds=6, selection=over)
    run.play()

    assert {row.round_s for row in run.rows(RoundRow)} == {CUT_S}
    assert {status for _, status in run.statuses("nano-1")} == {"done"}
    assert {status for _, status in run.statuses("nano-2")} == {"cancelled"}
    assert {row.stale for row in run.rows(RoundRow)} == {0}
    assert run.grid.clock.now_s() < 6 * 20.0
    told = [event.message for event in run.rows(EventRow) if event.kind == LATE_REPLY_EVENT]
    assert all("thrown away" in message for message in told)
    assert len(told) >= 1


def test_two_runs_meet_and_the_second_is_refused_with_the_boards_and_the_run_that_holds_them():
    run = Run("drop", 5.0)
    run.grid.holders = {"nano-1": 300.0, "nano-2": 200.0}

    with pytest.raises(RunFailed, match=r"is ready: nano-1 works for run .*; nano-2 works for run"):
        run.play()


def test_a_run_whose_boards_all_work_for_another_says_so_and_waits_until_they_are_free():
    run = Run("drop", 5.0)
    run.grid.holders, run.grid.frees_s = {"nano-1": 117.0, "nano-2": 117.0}, 117.0
    run.play()

    waits = [event.message for event in run.rows(EventRow) if event.kind == WAITING]
    assert run.statuses("nano-1") == [(1, "done"), (2, "done"), (3, "done")]
    assert any('work for run "other"' in message for message in waits)


def test_a_run_goes_on_with_the_boards_that_no_other_run_holds():
    run = Run("drop", 5.0)
    run.grid.holders = {"nano-2": 900.0}
    run.play()

    held = [row for row in run.rows(ClientRow) if row.board == "nano-2"]
    assert run.statuses("nano-1") == [(1, "done"), (2, "done"), (3, "done")]
    assert {row.status for row in held} == {"failed"}
    assert all('works for run "other"' in (row.error or "") for row in held)


def fleet(last_round: int) -> FleetState:
    histories = {"a": ClientHistory(last_round=last_round)}
    return FleetState(50.0, fronts={"a": front()}, histories=histories, states={"a": ClientState()})


def apply(before: FleetState, one: LateReply, joins: bool = True) -> LateUpdate:
    return apply_late_replies([one], before, (), number=6, joins=joins, learnt=LEARNT)


def late(number: int, said: ReplyMessage, trained: TrainResult | None) -> LateReply:
    return LateReply("a", OutgoingRequest(RequestMessage("train", number, 12.0), MODEL), IncomingReply(said, trained))


def test_a_reply_that_joins_is_kept_as_what_training_changed():
    trained = TrainResult({"w": MODEL["w"] + 1}, 0.5, 0.5)
    caught = apply(fleet(3), late(3, answer("a", 8.0), trained))

    (pending,) = caught.pending
    assert (pending.round, pending.start_s, pending.end_s) == (3, 12.0, 50.0)
    np.testing.assert_allclose(pending.trained.arrays["w"], np.ones((2, 3)))


def test_a_reply_that_came_after_the_board_was_asked_again_changes_nothing():
    trained = TrainResult({"w": MODEL["w"] + 1}, 0.5, 0.5)
    before = fleet(4)
    caught = apply(before, late(3, answer("a", 8.0), trained))

    assert (caught.fleet, caught.pending) == (before, ())
    assert "after it was asked again" in caught.events[0].message


def test_a_recorded_folder_that_is_heard_of_for_the_first_time_after_its_round_is_marked():
    said = dataclasses.replace(answer("a", 8.0), recorded=True)
    marked = [apply(before, late(3, said, None)).events[0].kind for before in (FleetState(50.0), fleet(3))]

    assert marked == [RECORDED, LATE_REPLY_EVENT]


def test_a_reply_with_arrays_that_do_not_fit_does_not_join():
    caught = apply(fleet(3), late(3, answer("a", 8.0), TrainResult({"w": np.zeros(1)}, 0, 0)))

    assert caught.pending == ()
    assert "got shape (1,)" in caught.events[0].message


def test_what_a_board_measured_before_it_stopped_itself_is_kept_when_its_answer_comes_late():
    measured = ClientState((answer("a", 8.0).report.measured,), 51.0, 30.0)
    said = ReplyMessage("a", state=measured, error="cancelled after 20 s: 3 of 9 minibatches done", cut=True)
    caught = apply(fleet(3), late(3, said, None), joins=False)

    assert caught.fleet.states["a"] == measured
    assert "its answer to round 3 came late: cancelled after 20 s" in caught.events[0].message

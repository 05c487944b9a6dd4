"""Rounds with encoded updates and of the policy joint: what clients are asked, what arrives, and resuming."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from contracts.array_task import ArrayTask
from contracts.reports import IDLE_W, LINK, answer, front
from contracts.store_rows import client_row
from hypothesis import given
from hypothesis import strategies as st

from fedge.decisions.planning.progress_model import NO_ROUNDS, SHAPES
from fedge.errors import RunFailed
from fedge.experiment import (
    AvailabilitySpec,
    BatterySpec,
    CompressionSpec,
    Experiment,
    FleetEntry,
    LateReplySpec,
    PolicySpec,
    SelectionSpec,
    SignalSpec,
)
from fedge.flower.update_codec import PREFIX, encode_answer
from fedge.telemetry.settlement import RoundSettlement
from fedge.telemetry.store import MemoryTables
from fedge.telemetry.store_records import ClientRow, EventRow, RoundRow
from fedge.types import FleetPlan, MemoryUse, NarrowOffer, RoundGoal, TrainingScale, TrainResult
from fedge.wire import ClientState, ReplyMessage
from server.rounds.coordinator import Coordinator
from server.rounds.round_goals import list_encodings, update_progress
from server.state import checkpoint
from server.transport.client_port import IncomingReply, OutgoingRequest

VALUES = 1_000
BOARDS = {"fast-1": 0.2, "fast-2": 0.2, "fast-3": 0.2, "slow-1": 4.0}
"""Boards, and their times relative to those of ``contracts.reports.front``."""


class Learning(ArrayTask):
    """Its model of one array wants to be ten everywhere, and may be narrower."""

    def narrow_shapes(self, width: float) -> Mapping[str, tuple[int, ...]]:
        return {"w": (round(width * VALUES),)}


TASK = Learning(lambda _: {"w": np.zeros(VALUES, np.float32)}, lambda arrays: float(np.abs(arrays["w"] - 10.0).mean()))


@dataclass
class Learners:
    """Boards that approach ten, the further the more steps they run, and encode their update as they are asked."""

    asked: list[OutgoingRequest] = field(default_factory=list)
    sent: list[TrainResult] = field(default_factory=list)
    delays_s: Mapping[str, float] = field(default_factory=dict)
    offers: tuple[NarrowOffer, ...] = ()
    losses: Mapping[str, float] = field(default_factory=dict)
    whole_only: bool = False

    def ask(
        self, questions: Mapping[str, OutgoingRequest], timeout_s: float, enough: object = None
    ) -> Mapping[str, IncomingReply]:
        return {board: self._reply(board, question) for board, question in questions.items()}

    def _reply(self, board: str, question: OutgoingRequest) -> IncomingReply:
        offer = dataclasses.replace(front(BOARDS[board]), up_s=LINK.up_s, narrow=self.offers)
        if question.ask.kind == "front":
            return IncomingReply(ReplyMessage(board, front=offer, samples=100))
        self.asked.append(question)
        if self.whole_only and question.arrays["w"].size < VALUES:
            state, plain = ClientState(whole_only=True), dataclasses.replace(offer, narrow=())
            return IncomingReply(ReplyMessage(board, front=plain, state=state, error="it cannot be narrowed"))
        share = question.ask.goal.share
        pull = np.linspace(0.02, 0.2, VALUES, dtype=np.float32)[: question.arrays["w"].size] * min(1.0, share)
        loss = self.losses.get(board, 0.5)
        trained = TrainResult({"w": question.arrays["w"] + pull * (10.0 - question.arrays["w"])}, loss, 0.5)
        said = dataclasses.replace(
            answer(board, 10.0 * BOARDS[board] * share + self.delays_s.get(board, 0.0), truth=offer), front=offer
        )
        used = MemoryUse(TrainingScale(16), TrainingScale(16, question.ask.goal.width), 900.0, 1000.0)
        said = dataclasses.replace(said, report=dataclasses.replace(said.report, memory=used))
        reply, encoded = encode_answer(question.ask, question.arrays, question.residual, (said, trained))
        assert encoded is not None
        self.sent.append(encoded)
        return IncomingReply(reply, encoded)


def play(port: Learners, tables: MemoryTables, folder: Path | None = None, **changes: object) -> checkpoint.RunState:
    fleet = (FleetEntry(device="nano", name="fast", count=3), FleetEntry(device="nano", name="slow"))
    settings = {"fleet": fleet, "rounds": 4, "policy": PolicySpec(name="joint"), **changes}
    state = None if folder is None else checkpoint.load_latest(folder)
    return Coordinator(Experiment(**settings), port, TASK, tables, checkpoints=folder).run(state)


@pytest.mark.parametrize("kind", ["fp16", "int8", "topk"])
def test_a_fixed_encoding_is_what_every_client_sends_under_any_policy(kind):
    port = Learners()
    state = play(port, MemoryTables(), policy=PolicySpec(name="maxn"), compression=CompressionSpec(kind=kind))
    assert {question.ask.goal.compression.kind for question in port.asked if question.ask.goal} == {kind}
    assert all(name.startswith(PREFIX) for sent in port.sent for name in sent.arrays)
    sizes = {sum(value.nbytes for value in sent.arrays.values()) / (4 * VALUES) for sent in port.sent}
    assert sizes == {question.ask.up_share for question in port.asked}
    assert TASK.evaluate(state.arrays)[0] < 9.5


def test_the_slow_board_is_asked_for_less():
    port, tables = Learners(), MemoryTables()
    play(port, tables, policy=PolicySpec(name="joint", min_progress=0.9))
    shares = {question.ask.goal.share for question in port.asked if question.ask.goal}
    assert len(shares) > 1
    rows = [row for row in tables.rows if isinstance(row, ClientRow) and row.board == "slow-1"]
    assert rows
    assert all(row.work_s < 40.0 for row in rows)


def test_the_slow_board_is_asked_for_its_narrow_network_and_the_fit_counts_it_as_such():
    port, plain = Learners(offers=(NarrowOffer(0.5, work=0.15, sent=0.25),)), Learners()
    fits = [play(one, MemoryTables()).progress for one in (port, plain)]
    asked = {(question.ask.goal.width, question.ask.goal.share) for question in port.asked if question.ask.goal}
    assert {width for width, _ in asked} == {0.5, 1.0}
    assert {question.ask.goal.width for question in plain.asked if question.ask.goal} == {1.0}
    made = [dict(zip(SHAPES, fit.products, strict=True)) for fit in fits]
    kept, lost = (dataclasses.replace(SHAPES[0], narrow_loss=loss) for loss in (0.2, 3.0))
    assert made[0][kept] > made[0][lost]
    assert made[1][kept] == made[1][lost]


def test_a_client_that_could_not_be_narrow_counts_as_it_trained():
    plan = FleetPlan({"a": RoundGoal("joint", 0, width=0.5)})
    fleet = checkpoint.FleetState(0.0, histories={"a": checkpoint.ClientHistory(samples=100)})
    made = {}
    for width in (None, 0.5, 1.0):
        row = client_row(1, "a", width=width)
        settled = RoundSettlement(0.0, 1.0, accepted=("a",), clients=(row,), events=(), maxn_round_s=None)
        fit = update_progress(update_progress(NO_ROUNDS, plan, settled, fleet, 2.0), plan, settled, fleet, 1.0)
        made[width] = dict(zip(SHAPES, fit.squares, strict=True))[SHAPES[0]]
    assert made[None] == made[0.5] < made[1.0] == pytest.approx(1.0)


def test_sums_of_an_earlier_version_of_the_model_begin_anew(tmp_path):
    state = play(Learners(), MemoryTables(), tmp_path)
    old = dataclasses.replace(state.progress, products=(0.5,) * 27, squares=(0.5,) * 27)
    checkpoint.save(tmp_path, dataclasses.replace(state, progress=old))
    assert checkpoint.load_latest(tmp_path).progress == NO_ROUNDS


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_one_client_whose_loss_is_no_number_does_not_stop_the_fit(broken):
    losses = {"fast-1": 0.8, "fast-2": 0.4, "slow-1": broken}
    histories = {name: checkpoint.ClientHistory(samples=100, loss=loss) for name, loss in losses.items()}
    plan = FleetPlan({name: RoundGoal("joint", 0) for name in losses})
    settled = RoundSettlement(0.0, 1.0, accepted=tuple(losses), clients=(), events=(), maxn_round_s=None)
    fit = update_progress(NO_ROUNDS, plan, settled, checkpoint.FleetState(0.0, histories=histories), None)
    assert fit.loss == pytest.approx(0.6)


def test_what_an_encoding_left_out_comes_back_with_the_next_request():
    port = Learners()
    play(port, MemoryTables(), policy=PolicySpec(name="maxn"), compression=CompressionSpec(kind="topk", keep=0.1))
    first, later = port.asked[: len(BOARDS)], port.asked[len(BOARDS) :]
    assert all(question.residual is None for question in first)
    assert all(question.residual is not None and np.abs(question.residual).sum() > 0.0 for question in later)


@given(st.integers(1, 2_000), st.integers(1, 3 * 10**6), st.sampled_from(["sim", "fleet"]))
def test_values_are_left_out_by_choice_only_if_the_server_can_keep_them(count, values, backend):
    arrays = {"w": np.broadcast_to(np.float32(0.0), (values,)), "n": np.zeros(3)}
    fleet = (FleetEntry(device="nano", count=count),)
    for kind in (None, "topk"):
        experiment = Experiment(backend=backend, fleet=fleet, compression=CompressionSpec(kind=kind))
        found = {one.compression.kind for one in list_encodings(experiment, arrays, ("w",))}
        chosen = {"none", "int8", "topk"} if backend == "fleet" or 4 * values * count <= 2**30 else {"none", "int8"}
        assert found == ({"topk"} if kind else chosen)


def test_what_the_encoding_of_a_late_update_left_out_is_kept_if_the_update_joins_a_later_round():
    port, tables = Learners(delays_s={"fast-1": 60.0}), MemoryTables()
    late, topk = LateReplySpec(action="discount"), CompressionSpec(kind="topk", keep=0.1)
    state = play(port, tables, rounds=1, policy=PolicySpec(name="balanced"), late=late, compression=topk)
    assert [pending.answer.board for pending in state.pending] == ["fast-1"]
    assert {name: left.tobytes() for name, left in state.residuals.items()} == {
        board: sent.residual.tobytes()
        for board, sent in zip(BOARDS, port.sent, strict=True)
        if sent.residual is not None
    }


@pytest.mark.parametrize("changes", [{}, {"compression": CompressionSpec(kind="topk", keep=0.1)}], ids=str)
def test_a_joint_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path, changes):
    whole, part, rest = MemoryTables(), MemoryTables(), MemoryTables()
    want = play(Learners(), whole, **changes)
    play(Learners(), part, tmp_path, rounds=2, **changes)
    got = play(Learners(), rest, tmp_path, **changes)

    assert part.rows + rest.rows == whole.rows
    assert got.arrays["w"].tobytes() == want.arrays["w"].tobytes()
    assert got.progress == want.progress
    assert got.progress.rounds == 3


def test_networks_are_whole_in_the_last_rounds():
    port = Learners(offers=(NarrowOffer(0.5, work=0.15, sent=0.25),))
    play(port, MemoryTables(), rounds=6)
    widths = [question.ask.goal.width for question in port.asked if question.ask.goal]
    per_round = [min(widths[i : i + len(BOARDS)]) for i in range(0, len(widths), len(BOARDS))]
    assert per_round == [0.5] * 4 + [1.0] * 2


def test_a_board_that_refuses_a_narrow_network_fails_once_and_gets_the_whole_one_also_after_a_resume(tmp_path):
    port, tables = Learners(offers=(NarrowOffer(0.5, work=0.15, sent=0.25),), whole_only=True), MemoryTables()
    play(port, tables, tmp_path, rounds=1)
    port.offers = ()
    play(port, tables, tmp_path, rounds=6)

    rows = [row for row in tables.rows if isinstance(row, ClientRow) and row.board == "slow-1"]
    assert rows[0].error == "it cannot be narrowed"
    assert {row.error for row in rows[1:]} == {None}
    own = [question for question in port.asked if question.ask.state.whole_only]
    assert {question.arrays["w"].size for question in own} == {VALUES}


def test_a_client_of_high_loss_is_not_asked_for_more_than_its_samples_deserve():
    plans = []
    for losses in ({}, {"fast-1": 50.0}):
        port = Learners(losses=losses)
        play(port, MemoryTables())
        plans.append([(question.ask.goal.share, question.ask.goal.width) for question in port.asked])
    assert plans[0] == plans[1]


def fleet_with(**slow: object) -> tuple[FleetEntry, ...]:
    """Three fast boards on mains, and the slow one as described."""
    return (FleetEntry(device="nano", name="fast", count=3), FleetEntry(device="nano", name="slow", **slow))


def said(tables: MemoryTables, kind: str) -> list[str]:
    return [row.message for row in tables.rows if isinstance(row, EventRow) and row.kind == kind]


def test_a_board_whose_battery_has_too_little_for_any_part_rests_and_the_event_says_so():
    port, tables = Learners(), MemoryTables()
    play(port, tables, fleet=fleet_with(battery=BatterySpec(capacity_wh=0.1, charge=0.15, floor=0.1)))
    assert {row.board for row in tables.rows if isinstance(row, ClientRow)} == {"fast-1", "fast-2", "fast-3"}
    assert "Without the charge for any part: 1." in said(tables, "plan")[0]


@pytest.mark.parametrize("charging_w", [0.0, IDLE_W + 1.0])
def test_if_no_battery_has_enough_all_wait_for_the_charger_or_the_run_fails(charging_w):
    battery = BatterySpec(capacity_wh=0.1, charge=0.11, floor=0.1, charging_w=charging_w)
    fleet, tables = (FleetEntry(device="nano", name="slow", battery=battery),), MemoryTables()
    if not charging_w:
        with pytest.raises(
            RunFailed,
            match=r"round 1: no client that is here has the charge for any part of its steps, nor .* a larger battery",
        ):
            play(Learners(), tables, fleet=fleet)
        return
    state = play(Learners(), tables, fleet=fleet)
    assert state.round == 4
    assert "all wait for" in said(tables, "waited")[0]
    rounds = [row for row in tables.rows if isinstance(row, RoundRow)]
    assert rounds[0].start_s > 0.0
    assert rounds[0].resting_energy_j == pytest.approx(IDLE_W * rounds[0].start_s)


FLAT = BatterySpec(capacity_wh=0.1, charge=0.11, floor=0.1)


def test_others_work_if_the_selected_boards_will_never_have_the_charge():
    fleet = (FleetEntry(device="nano", name="fast", count=3, battery=FLAT), FleetEntry(device="nano", name="slow"))
    tables = MemoryTables()
    assert play(Learners(), tables, fleet=fleet, selection=SelectionSpec(name="random", count=1)).round == 4
    assert {row.board for row in tables.rows if isinstance(row, ClientRow)} == {"slow-1"}
    assert not said(tables, "waited")


def test_boards_that_will_never_have_the_charge_wait_for_one_that_is_away(tmp_path):
    path = tmp_path / "presence.csv"
    path.write_text("board,on_s,off_s\nslow-1,500,\n")
    away = FleetEntry(device="nano", name="slow", availability=AvailabilitySpec(trace=str(path)))
    fleet, tables = (FleetEntry(device="nano", name="fast", count=3, battery=FLAT), away), MemoryTables()
    assert play(Learners(), tables, fleet=fleet).round == 4
    rounds = [row for row in tables.rows if isinstance(row, RoundRow)]
    assert rounds[0].start_s == 500.0
    assert len(said(tables, "waited")) == 1


def test_a_board_of_dear_energy_does_less_and_the_rounds_row_has_the_cost(tmp_path):
    path = tmp_path / "carbon.csv"
    path.write_text("at_s,clean,dirty\n0,100,900\n")
    signal, policy = SignalSpec(trace=str(path)), PolicySpec(name="joint", time_weight=0.0, min_progress=0.95)
    entries = [
        (FleetEntry(device="nano", name="fast", count=3, zone=one), FleetEntry(device="nano", name="slow", zone=other))
        for one, other in (("clean", "dirty"), ("dirty", "clean"))
    ]
    asked = []
    for fleet in entries:
        port, tables = Learners(), MemoryTables()
        play(port, tables, fleet=fleet, signal=signal, policy=policy, rounds=1)
        asked.append({row.board: row.step_share for row in tables.rows if isinstance(row, ClientRow)})
        (row,) = (row for row in tables.rows if isinstance(row, RoundRow))
        zone_of = {f"{entry.name}-{i}": entry.zone for entry in fleet for i in range(1, 4)}
        drawn_j = {client.board: client.energy_j for client in tables.rows if isinstance(client, ClientRow)}
        drawn_j |= {name: IDLE_W * row.round_s for name in BOARDS if name not in drawn_j}
        value = {"clean": 100.0, "dirty": 900.0}
        assert row.energy_cost == pytest.approx(sum(j * value[zone_of[name]] for name, j in drawn_j.items()) / 3.6e6)
    assert asked[0].get("slow-1", 0.0) < asked[1].get("slow-1", 0.0)

"""A real board's client with the real daemon and the real worker: a round, and what becomes of one that fails."""

import dataclasses
import errno
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from contracts.processes import wait_for

pytest.importorskip("torch", reason="the worker trains with torch")

from contracts.desk import Desk, desk, note_idle
from contracts.federated_client import EXPERIMENT, TASK, Ask, ClientContract, ask_of

from fedge.client import board_session, real, run_claim
from fedge.client.real_round import drop_unlike_knowledge
from fedge.client.worker_training import STRETCH_LIMIT_S
from fedge.devices.board_kinds import build_link
from fedge.devices.local_board import BoardLocation, LocalBoard, NodeSettings, open_local_board
from fedge.errors import BadInput, SensorLost
from fedge.experiment import Experiment, LinkSpec
from fedge.powerd.powerd_client import PowerdClient as Power
from fedge.telemetry.trace_operations import check_plausible_trace, clip_trace
from fedge.types import Measurement, NamedArrays, ReferenceRows, RoundGoal, TrainResult
from fedge.wire import ReplyMessage, RequestMessage
from fedge.worker.worker_client import WorkerClient as Worker

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("desk")]

LONG_STEPS = 5000
ENDLESS_STEPS = 10**6
CUT_S = 4.0
NOTICED_S = 60.0
"""From the kill to the answer; below 2 s on a quiet machine."""


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with desk("orin-nano-jp6", tmp_path_factory.mktemp("desk")) as found:
        note_idle(found)
        yield found


def asked(found: Desk, ask: RequestMessage, arrays=None) -> ReplyMessage:
    return real.answer_request(EXPERIMENT, found.settings, ask, arrays)[0]


def limits(found: Desk) -> dict[str, object]:
    power = Power(found.settings.power_socket)
    try:
        said = power.get()
    finally:
        power.close()
    assert said["lease"] is None
    return said["limits"]


class TestRealClient(ClientContract):
    """Every request leaves the board's limits as they were."""

    @pytest.fixture
    def ask(self, board: Desk) -> Ask:
        def answer(
            experiment: Experiment, request: RequestMessage, arrays: NamedArrays | None
        ) -> tuple[ReplyMessage, TrainResult | None]:
            before = limits(board)
            found = real.answer_request(experiment, board.settings, request, arrays)
            assert limits(board) == before
            return found

        return answer


def test_the_trace_of_a_round_is_of_its_work_and_more(board):
    ask = ask_of("train", goal=RoundGoal("balanced", 50, deadline_s=60.0))
    answer, _ = real.answer_request(EXPERIMENT, board.settings, ask, TASK.initial_arrays(3))

    assert answer.report is not None, answer.error
    assert answer.handled_s > answer.report.work_s
    link, work_s = answer.report.link, answer.report.work_s
    worked = clip_trace(check_plausible_trace(answer.trace), link.down_s, link.down_s + work_s)
    assert answer.trace.energy_j > worked.energy_j == pytest.approx(answer.report.work_j, rel=0.05)
    assert worked.span_s
    assert sum(worked.span_s) == pytest.approx(work_s, rel=0.05)
    assert worked.rails_w


@pytest.mark.parametrize("moment", ["within a request", "between two requests"])
def test_a_killed_worker_costs_its_round_alone_and_the_cause_is_told(board, monkeypatch, moment):
    before = limits(board)
    long = EXPERIMENT.model_copy(update={"workload": EXPERIMENT.workload.model_copy(update={"local_epochs": 300.0})})
    ask = RequestMessage("train", round=3, policy="balanced", goal=RoundGoal("balanced", 50, deadline_s=600.0))
    worker = (DiesAtWork if moment == "within a request" else DiesAfterwards)(board)
    with monkeypatch.context() as patched:
        patched.setattr(board_session, "WorkerClient", lambda path, limit_s: worker)
        answer, trained = real.answer_request(long, board.settings, ask, TASK.initial_arrays(3))
    noticed_s = time.monotonic() - worker.killed_s

    assert "killed" in answer.error
    assert trained is None
    assert noticed_s < NOTICED_S
    assert limits(board) == before
    again = RequestMessage("train", round=4, policy="balanced", goal=RoundGoal("balanced", 50, deadline_s=60.0))
    assert asked(board, again, TASK.initial_arrays(3)).error is None


class DiesAtWork(Worker):
    """A worker whose trainer is killed within the first request for minibatches, of which it asks for many."""

    def __init__(self, board: Desk) -> None:
        super().__init__(board.settings.worker_socket)
        self.board, self.killed_s = board, 0.0

    def train(self, begin: Any = None, arrays: Any = None, share: Any = None, steps: int = 0, **more: Any) -> Any:
        if not steps or self.killed_s:
            return super().train(begin, arrays, share, steps, **more)
        killer = threading.Thread(target=self._kill_at_work)
        killer.start()
        try:
            return super().train(steps=LONG_STEPS)
        finally:
            killer.join()

    def _kill_at_work(self) -> None:
        wait_for(lambda: (self.status()["job"] or {"verb": None})["verb"] == "train")
        self.kill()

    def kill(self) -> None:
        """SIGKILL, and the process is gone."""
        trainer = self.board.trainer
        os.kill(trainer, signal.SIGKILL)
        self.killed_s = time.monotonic()
        wait_for(lambda: not Path(f"/proc/{trainer}").exists())


class DiesAfterwards(DiesAtWork):
    """A worker whose trainer is killed between the first request for minibatches and the next one."""

    def train(self, begin: Any = None, arrays: Any = None, share: Any = None, steps: int = 0, **more: Any) -> Any:
        done = Worker.train(self, begin, arrays, share, steps, **more)
        if steps and not self.killed_s:
            self.kill()
        return done


def test_a_temperature_that_is_lost_after_the_work_costs_no_round(board, monkeypatch):
    class Lost:
        def read(self) -> None:
            raise SensorLost("VDD_IN is gone")

    @contextmanager
    def blind(place: BoardLocation) -> Iterator[LocalBoard]:
        with open_local_board(place) as here:
            yield dataclasses.replace(here, sensor=Lost())

    monkeypatch.setattr(board_session, "open_local_board", blind)
    answer = asked(
        board, RequestMessage("train", round=5, policy="balanced", goal=RoundGoal("balanced", 50, deadline_s=60.0))
    )

    assert answer.error is None
    assert answer.report.temperature_c is None


def test_a_worker_that_does_not_come_to_an_end_ends_its_round_and_the_board_is_free_again(board, monkeypatch):
    before = limits(board)
    long = EXPERIMENT.model_copy(update={"workload": EXPERIMENT.workload.model_copy(update={"local_epochs": 3000.0})})
    allowed: list[float] = []

    class Endless(Worker):
        def train(self, begin: Any = None, arrays: Any = None, share: Any = None, steps: int = 0, **more: Any) -> Any:
            return super().train(begin, arrays, share, ENDLESS_STEPS if steps else 0, **more)

    def made(path: str, limit_s: float) -> Worker:
        allowed.append(limit_s)
        return Endless(path, 1.0)

    monkeypatch.setattr(board_session, "WorkerClient", made)
    ask = RequestMessage("train", round=6, policy="balanced", goal=RoundGoal("balanced", 50, deadline_s=600.0))
    answer, _ = real.answer_request(long, board.settings, ask, TASK.initial_arrays(3))
    with closing(Worker(board.settings.worker_socket)) as worker:
        wait_for(lambda: worker.status()["state"] == "idle")

    assert "no answer to train" in answer.error
    assert allowed == [STRETCH_LIMIT_S]
    assert limits(board) == before


def test_a_straggler_is_stopped_at_its_cut_says_how_far_it_came_and_its_knobs_are_restored(board):
    before = limits(board)
    long = EXPERIMENT.model_copy(update={"workload": EXPERIMENT.workload.model_copy(update={"local_epochs": 3000.0})})
    goal = RoundGoal("balanced", 50, deadline_s=600.0)
    for cut_s in (CUT_S, 4 * CUT_S, 16 * CUT_S):  # on a crowded machine no minibatch may be done by the first
        ask = RequestMessage("train", round=7, start_s=40.0, policy="balanced", goal=goal, cancel_s=cut_s)
        answer, _ = real.answer_request(long, board.settings, ask, TASK.initial_arrays(3))
        assert answer.cut
        if answer.report is not None:
            break

    assert 0 < answer.report.steps < answer.report.asked_steps
    assert answer.report.measured.power_w > 0
    told = re.fullmatch(r"cancelled after (\d+) s: [1-9]\d* of \d+ steps done when the .*", answer.error or "")
    assert int(told[1]) < cut_s + NOTICED_S
    assert answer.state.measurements == answer.report.parts
    assert limits(board) == before
    with closing(Worker(board.settings.worker_socket)) as worker:
        assert worker.status()["state"] == "idle"
    again = RequestMessage(
        "train", round=8, policy="balanced", goal=RoundGoal("balanced", 50, deadline_s=60.0), cancel_s=60.0
    )
    assert asked(board, again, TASK.initial_arrays(3)).error is None


def test_a_worker_that_is_in_the_middle_of_a_long_request_is_stopped_too(board, monkeypatch):
    before = limits(board)
    long = EXPERIMENT.model_copy(update={"workload": EXPERIMENT.workload.model_copy(update={"local_epochs": 3000.0})})

    class Long(Worker):
        def train(self, begin: Any = None, arrays: Any = None, share: Any = None, steps: int = 0, **more: Any) -> Any:
            return super().train(begin, arrays, share, ENDLESS_STEPS if steps else 0, **more)

    monkeypatch.setattr(board_session, "WorkerClient", Long)
    goal = RoundGoal("balanced", 50, deadline_s=600.0)
    ask = RequestMessage("train", round=9, start_s=40.0, policy="balanced", goal=goal, cancel_s=CUT_S)
    answer, trained = real.answer_request(long, board.settings, ask, TASK.initial_arrays(3))

    assert trained is None
    assert (answer.cut, answer.report) == (True, None)
    assert "steps done when the round's time was over" in (answer.error or "")
    assert answer.state.rested_at_s >= 40.0 + CUT_S
    assert limits(board) == before


def test_of_two_runs_the_second_is_refused_by_name_until_the_first_says_that_it_is_over(board):
    mine = RequestMessage("front", policy="balanced", run="mine (run-1, ab)", claim_s=600.0)
    theirs = RequestMessage("front", policy="balanced", run="theirs (run-2, cd)", claim_s=600.0)
    assert asked(board, dataclasses.replace(theirs, kind="hello")).error is None
    assert asked(board, mine).error is None
    refused = [asked(board, dataclasses.replace(theirs, kind=kind)) for kind in ("hello", "front", "train")]
    asked(board, dataclasses.replace(theirs, kind="bye"))
    still = asked(board, theirs)
    asked(board, dataclasses.replace(mine, kind="bye"))

    for each in (*refused, still):
        assert each.error is not None
        assert re.fullmatch(r'board-1 works for run "mine \(run-1, ab\)" \(for \d+ s more\); wait, .*', each.error)
        assert 0 < (each.held_s or 0.0) <= 600.0
        assert each.held_by == mine.run
        assert (each.front, each.report) == (None, None)
    assert asked(board, theirs).error is None
    asked(board, dataclasses.replace(theirs, kind="bye"))


def test_the_end_of_a_run_leaves_the_service_of_one_that_has_the_board_now(tmp_path, monkeypatch):
    settings, removed = NodeSettings(board="board-1", root=str(tmp_path)), list[str]()
    monkeypatch.setattr(real, "remove_service", lambda socket, _: removed.append(socket))
    run_claim.write_claim(settings.state_dir / run_claim.CLAIM_FILE, "mine", 600.0, now_s=1e9)

    for run, count in (("theirs", 0), ("mine", 1)):
        real.answer_request(EXPERIMENT, settings, RequestMessage("bye", run=run), None, wall_s=lambda: 1e9)
        assert len(removed) == count


@pytest.mark.parametrize(("recorded", "kept"), [(True, 1), (False, 0), (None, 1)])
def test_a_recorded_folder_uses_no_figures_of_hardware(board, recorded, kept):
    with board_session.open_session(EXPERIMENT, board.settings) as session:
        measured = Measurement(session.here.board.spec.maxn, 10, 0.1, 5.0)
        table = ReferenceRows("orin-nano", "other-net", 16, label="measured", rows=(measured,))
        request = RequestMessage(
            "front", recalled=(measured,), shared=(measured,), references=(table,), recalls_recorded=recorded
        )
        used = drop_unlike_knowledge(session, request)
        with session.here.board.hold():
            references = session.build_setup(used).knowledge.references

    assert (len(used.recalled), len(used.shared), used.state.doubts_recalled) == (kept, kept, not kept)
    assert [(one.workload, one.label, one.step_s.tolist()) for one in references] == [
        ("other-net", "measured", [0.1])
    ] * kept


@pytest.mark.parametrize(("link", "down_mbps"), [({}, 4.0), ({"up_mbps": 30.0}, 4.0), ({"down_mbps": 8.0}, 8.0)])
def test_the_measured_rate_is_the_links_unless_the_experiment_names_one(board, link, down_mbps):
    fleet = tuple(entry.model_copy(update={"link": LinkSpec(**link)}) for entry in EXPERIMENT.fleet)
    named = Experiment.model_validate_json(EXPERIMENT.model_copy(update={"fleet": fleet}).model_dump_json())
    request = RequestMessage("front", policy="balanced", link_mbps=4.0)
    with board_session.open_session(named, board.settings) as session, session.here.board.hold():
        first, setup = session.build_setup(RequestMessage("front")), session.build_setup(request)

    assert first.link == build_link(LinkSpec(**link))
    assert (setup.link.down_mbps, setup.link.up_mbps) == (down_mbps, link.get("up_mbps", 4.0))


def test_the_claim_of_a_server_that_died_ends_by_itself_and_counts_from_the_answer(board):
    mine = RequestMessage("front", policy="balanced", run="mine", claim_s=600.0)
    theirs = dataclasses.replace(mine, run="theirs")
    times = iter([1000.0, 1000.0, 1050.0])
    assert real.answer_request(EXPERIMENT, board.settings, mine, None, lambda: next(times))[0].error is None

    assert real.answer_request(EXPERIMENT, board.settings, theirs, None, lambda: 1649.0)[0].held_s == pytest.approx(1.0)
    assert real.answer_request(EXPERIMENT, board.settings, theirs, None, lambda: 1651.0)[0].error is None
    asked(board, dataclasses.replace(theirs, kind="bye"))


@pytest.mark.parametrize("raised", ["claim", "samples"])
def test_a_full_disk_is_named_with_its_board_and_folder(board, monkeypatch, raised):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/var/lib/fedge/node/x")

    if raised == "claim":
        monkeypatch.setattr(run_claim, "write_claim", full)
    else:
        monkeypatch.setattr(board_session.sources, "write_file", full)
    other = EXPERIMENT.model_copy(update={"seed": 99})
    ask = RequestMessage("front", policy="balanced", run="mine", claim_s=600.0)
    answer, _ = real.answer_request(other, board.settings, ask, None)
    asked(board, dataclasses.replace(ask, kind="bye"))

    assert answer.error == "no space left on board-1 (/var/lib/fedge/node/x): free some"


def test_a_board_that_the_experiment_does_not_name_is_told_the_names(board):
    stranger = board.settings.model_copy(update={"board": "nano-7"})

    answer, _ = real.answer_request(EXPERIMENT, stranger, RequestMessage("front", policy="balanced"), None)

    assert "nano-7" in answer.error
    assert "board-1, board-2" in answer.error


def test_without_a_daemon_the_answer_says_what_to_do(board, tmp_path):
    lonely = board.settings.model_copy(update={"power_socket": str(tmp_path / "none.sock")})

    answer, _ = real.answer_request(EXPERIMENT, lonely, RequestMessage("front", policy="balanced"), None)

    assert "fedge-powerd" in answer.error


def test_a_task_that_a_worker_cannot_load_is_refused_by_name(board):
    own = EXPERIMENT.model_copy(update={"workload": EXPERIMENT.workload.model_copy(update={"task": "mine:Task"})})

    answer, _ = real.answer_request(own, board.settings, RequestMessage("front", policy="balanced"), None)

    assert "task file (.py)" in answer.error


def test_a_task_file_of_the_run_is_found_where_the_run_was_unpacked(tmp_path, monkeypatch):
    (tmp_path / "linear.py").write_text("def model(shape): ...\n", encoding="utf-8")
    monkeypatch.setattr(board_session, "__file__", str(tmp_path / "fedge" / "node" / "post.py"))
    own = EXPERIMENT.model_copy(
        update={"workload": EXPERIMENT.workload.model_copy(update={"task": "/home/mary/linear.py"})}
    )

    assert board_session.build_task_request(own)["source"] == "def model(shape): ...\n"


def test_a_task_file_that_did_not_come_along_is_named(monkeypatch, tmp_path):
    own = EXPERIMENT.model_copy(
        update={"workload": EXPERIMENT.workload.model_copy(update={"task": "/home/mary/linear.py"})}
    )

    with pytest.raises(BadInput, match=r"/home/mary/linear.py, which is neither here"):
        board_session.build_task_request(own)

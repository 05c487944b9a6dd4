"""Injects planned faults into the boards of a test fleet, undoes each, and watches boards and run."""

from __future__ import annotations

import itertools
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.fleet.chaos_faults import (
    ROUND,
    BoardFaultOutcome,
    PlannedFault,
    RunProgress,
    find_cause,
    judge_run,
)
from experiments.fleet.fleet_assessment import assess_fleet, local_versions, query_hosts
from experiments.fleet.playbook_runner import execute_playbook
from experiments.fleet.remote_run import STOP_WITHIN_S
from experiments.fleet.selected_fleet import SelectedFleet
from experiments.fleet.status_records import BoardStatus
from fedge.child_processes import end_process
from fedge.errors import BadInput, RunFailed
from fedge.phases import begin_phase

if TYPE_CHECKING:
    from rich.console import Console

BACK_LIMIT_S = 240.0
"""Default limit for a board to be well again: the SuperLink counts one that was cut off as online for a minute, and
its SuperNode tries again every 15 s."""
GOOD_CHECKS = 2
"""Status checks in a row that must find a board well: between two attempts to connect all its services are active for
once."""
SPARE_S = 60
"""Seconds after its time at which a fault ends by the board's own timer, when nobody has undone it."""
RELEASE_S = 60.0
"""Limit for the leases of a run that has ended: 15 s each, and the restoring of modes."""
POLL_S = 1.0
LAST_WORDS_S = 15.0
"""Limit for reading what an ended run has said: a process that it left may hold the pipe for ever."""


@dataclass(frozen=True, slots=True)
class AttackedFleet:
    """A fleet under attack.

    Attributes:
        folder: Where Ansible's output goes, a file per call.
        hold_s: How long a fault lasts that does not pass at once.
    """

    fleet: SelectedFleet
    folder: Path
    console: Console
    hold_s: float
    owner: str = field(default_factory=lambda: uuid.uuid4().hex)
    began_s: float = field(default_factory=time.monotonic)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def now_s(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self.began_s

    def call_board(self, board: str, verb: str, fault: str = "", undo_s: float = 0.0) -> str:
        """Begin a fault, which the board undoes by itself after ``undo_s`` seconds, or ``undo`` it.

        Returns:
            Why the board did not; empty if it did.
        """
        words = " ".join([verb, self.owner, *([fault, f"{undo_s:.0f}"] if fault else [])])
        call = replace(self.fleet.build_call("chaos.yml"), limit=board, variables={"chaos_words": words})
        outcome = execute_playbook(call, self._name_log(verb), lambda *_: None)
        failure = outcome.state.failures_by_host.get(board)
        return failure.text if failure else outcome.words if outcome.code else ""

    def inspect_boards(self, boards: Sequence[str]) -> dict[str, BoardStatus]:
        """Return the present status of boards."""
        options = replace(self.fleet.options, limit=",".join(boards))
        part = replace(self.fleet, options=options, hosts=frozenset(boards))
        found = query_hosts(part, self._name_log("status"), self.console)
        status = assess_fleet(found.fleet, found.answers, local_versions(), found.unreachable)
        return {board.name: board for board in status.boards}

    def _name_log(self, what: str) -> Path:
        return self.folder / f"{next(self.numbers):04d}-{what}.log"


def try_inspect(target: AttackedFleet, boards: Sequence[str]) -> dict[str, BoardStatus]:
    """Return the present status of boards; nothing if the query itself failed, which a fault may cause."""
    try:
        return target.inspect_boards(boards)
    except RunFailed:
        return {}


def is_back(before: BoardStatus, now: BoardStatus) -> bool:
    """Return whether a board is as well as before a fault."""
    return now.is_healthy and (now.services, now.node) == (before.services, before.node)


def compare_power(before: BoardStatus, now: BoardStatus) -> bool | None:
    """Return whether a board has the power mode found at the start; None while somebody holds it, or it says none."""
    return None if now.holder or not now.mode else now.mode == before.mode


def inspect_start(target: AttackedFleet) -> dict[str, BoardStatus]:
    """Return the status of the boards before the first fault.

    Raises:
        BadInput: If one is not well or works for somebody: what a fault does to it could not be told.
    """
    begin_phase("checks the boards")
    found = target.inspect_boards(target.fleet.boards)
    for name, board in found.items():
        wrong = [finding.what for finding in board.findings if finding.severity == "fault"]
        if wrong or board.holder:
            right = "boards that are well and free; `fedge fleet status` says what to do"
            raise BadInput(name, wrong[0] if wrong else f"a board that works for {board.holder}", right)
    return found


def attack_fleet(
    target: AttackedFleet,
    planned: Sequence[PlannedFault],
    before: Mapping[str, BoardStatus],
    observe_run: Callable[[], RunProgress] | None,
    report: Callable[[BoardFaultOutcome], None],
) -> tuple[list[BoardFaultOutcome], bool]:
    """Inject the faults until the run ends; return what became of them, and whether Ctrl-C ended it.

    Args:
        target: The fleet.
        planned: The faults in order; one that is late begins at once.
        before: The boards' status before the first.
        observe_run: Returns what the run has said until now; None without a run.
        report: Called with each outcome as far as it is known then.
    """
    outcomes: list[BoardFaultOutcome] = []

    def is_over() -> bool:
        return observe_run is not None and observe_run().code is not None

    try:
        for one in planned:
            begin_phase(f"{one.fault} on {one.board} comes next")
            while target.now_s() < one.at_s and not is_over():
                time.sleep(POLL_S)
            if is_over():
                break
            inject_fault(target, one, before[one.board], outcomes)
            report(outcomes[-1])
        while observe_run is not None and not is_over():
            begin_phase("waits for the run's end")
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        return outcomes, True
    return outcomes, False


def inject_fault(
    target: AttackedFleet, planned: PlannedFault, before: BoardStatus, outcomes: list[BoardFaultOutcome]
) -> None:
    """Make a fault, undo it and wait until the board is well; the outcome is added also if Ctrl-C interrupts it."""
    began_s, board = target.now_s(), planned.board
    outcome = BoardFaultOutcome(began_s, board, planned.fault)
    lasts_s = 0.0 if planned.fault.startswith("kill-") else target.hold_s
    try:
        begin_phase(f"{planned.fault} on {board}")
        refusal = target.call_board(board, "begin", planned.fault, lasts_s + SPARE_S)
        outcome = replace(outcome, refusal=refusal)
        if not refusal:
            time.sleep(lasts_s)
            if lasts_s:
                target.call_board(board, "undo")
            outcome = wait_for_board(target, outcome, before)
    except KeyboardInterrupt:
        outcome = replace(outcome, refusal="interrupted")
        raise
    finally:
        # Also where it was refused: a part of it may have been done.
        outcomes.append(replace(outcome, undone=not target.call_board(board, "undo")))


def wait_for_board(target: AttackedFleet, outcome: BoardFaultOutcome, before: BoardStatus) -> BoardFaultOutcome:
    """Check a board until it is well; return the outcome with the time that this took, at most."""
    begin_phase(f"waits for {outcome.board} after {outcome.fault}")
    well_s: list[float] = []
    while target.now_s() < outcome.at_s + BACK_LIMIT_S:
        now = try_inspect(target, [outcome.board]).get(outcome.board)
        well_s = [*well_s, target.now_s() - outcome.at_s] if now is not None and is_back(before, now) else []
        if now is not None and len(well_s) == GOOD_CHECKS:
            return replace(outcome, back_s=well_s[0], power_kept=compare_power(before, now))
        time.sleep(POLL_S)
    return outcome


def finish_outcomes(
    target: AttackedFleet,
    outcomes: Sequence[BoardFaultOutcome],
    before: Mapping[str, BoardStatus],
    progress: RunProgress | None,
) -> list[BoardFaultOutcome]:
    """Return the outcomes with what is known only at the end: of the run, and of modes that the run had set."""
    last: dict[str, BoardStatus] = {}
    boards = sorted({one.board for one in outcomes if one.power_kept is None})
    ends_s = target.now_s() + RELEASE_S
    while boards and target.now_s() < ends_s:
        last |= try_inspect(target, boards)
        boards = [name for name in boards if name not in last or compare_power(before[name], last[name]) is None]
    done = []
    for one in outcomes:
        known = one.power_kept is not None or one.board not in last
        kept = one.power_kept if known else compare_power(before[one.board], last[one.board])
        run, held = ("", None) if progress is None else judge_run(progress, one.at_s + (one.back_s or 0.0))
        done.append(replace(one, run=run, run_held=held, power_kept=kept))
    return done


@contextmanager
def follow_run(command: Sequence[str], log: Path, now_s: Callable[[], float]) -> Iterator[Callable[[], RunProgress]]:
    """Run a command beside the faults; yield a function that returns its progress. It ends with the block."""
    lines: list[str] = []
    rounds_at_s: list[float] = []
    # A session of its own: Ctrl-C is for this program, which undoes its fault before the run ends.
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )

    def read_lines() -> None:
        with log.open("w", encoding="utf-8") as out:
            for raw in process.stdout or ():
                line = raw.decode("utf-8", "replace")
                out.write(line)
                out.flush()
                lines.append(line)
                if ROUND.match(line):
                    rounds_at_s.append(now_s())

    reader = threading.Thread(target=read_lines, daemon=True)
    reader.start()

    def observe() -> RunProgress:
        code = process.poll()
        if code is not None:
            reader.join(LAST_WORDS_S)
        return RunProgress(tuple(rounds_at_s), code, find_cause(lines) if code else "")

    try:
        yield observe
    finally:
        end_process(process, STOP_WITHIN_S + SPARE_S)
        reader.join(LAST_WORDS_S)

"""Faults on the boards of a test fleet: which, when and where, and the verdict on each; nothing here acts."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from experiments.fleet.inventory import NAMES_SHOWN, format_names
from experiments.fleet.selected_fleet import SelectedFleet
from experiments.report.quantities import duration
from experiments.report.tables import Column, Table, build_table, text_cell, value_cell
from fedge.errors import BadInput

FAULTS: Mapping[str, str] = {
    "kill-worker": "the trainer and its supervisor are killed",
    "kill-client": "the client and what starts it are killed",
    "kill-powerd": "the power daemon is killed",
    "kill-supernode": "the SuperNode is killed",
    "stop-worker": "the trainer hangs",
    "stop-supernode": "the SuperNode hangs",
    "cut-link": "the board does not reach the server",
}
"""Faults that ``ansible/chaos.sh`` makes and undoes. A hanging power daemon is none of them: nobody would watch the
temperature; nor are a restart, a wrong clock and a full disk, which a board might not come back from by itself.
"""
MARK, MARKED = "chaos", "allowed"
"""Variable of the inventory, and its value, that make a board one for tests."""
UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
ROUND = re.compile(r"round \d+/\d+ ")
CAUSE = re.compile(r"fedge: (?!note)(.+)")


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault, ``at_s`` seconds after the start."""

    at_s: float
    board: str
    fault: str


@dataclass(frozen=True, slots=True)
class RunProgress:
    """Progress of a run as far as it has reported it.

    Attributes:
        rounds_at_s: When each of its rounds ended, in seconds after the start.
        code: Its exit code; None while it goes on.
        cause: What it gave as the reason for its end; empty if nothing.
    """

    rounds_at_s: tuple[float, ...] = ()
    code: int | None = None
    cause: str = ""


@dataclass(frozen=True, slots=True)
class BoardFaultOutcome:
    """A fault and what became of it.

    Attributes:
        at_s: When it began, in seconds after the start.
        refusal: Why the board could not be given the fault; empty if it had it.
        undone: Whether its undoing was confirmed by the board.
        back_s: Seconds from its begin until the board was seen well again, at most; None if it was not.
        run: What became of the run; empty without one.
        run_held: Whether the run went on, or stopped with a cause; None without a run.
        power_kept: Whether the power mode is the one found at the start; None if somebody still holds the board.
    """

    at_s: float
    board: str
    fault: str
    refusal: str = ""
    undone: bool = True
    back_s: float | None = None
    run: str = ""
    run_held: bool | None = None
    power_kept: bool | None = None

    @property
    def problems(self) -> tuple[str, ...]:
        """Expectations that did not hold."""
        wrong = {
            "its undoing failed": not self.undone,
            "the board did not come back": self.back_s is None and not self.refusal,
            "the run did not go on": self.run_held is False and not self.refusal,
            "another power mode": self.power_kept is False,
        }
        return tuple(name for name, is_so in wrong.items() if is_so)

    @property
    def verdict(self) -> str:
        found = f"failed: {', '.join(self.problems)}" if self.problems else "held"
        return f"not tried: {self.refusal}{f'; {found}' if self.problems else ''}" if self.refusal else found


@dataclass(frozen=True, slots=True)
class FaultCount:
    """How many faults of a kind were tried, and after how many of these nothing was left."""

    fault: str
    tried: int
    held: int


def parse_faults(text: str) -> tuple[str, ...]:
    """Return the faults of ``--faults``."""
    chosen = tuple(dict.fromkeys(text.split(",")))
    if strange := [name for name in chosen if name not in FAULTS]:
        raise BadInput("--faults", repr(strange[0]), f"some of {','.join(FAULTS)}")
    return chosen


def parse_duration_s(option: str, text: str) -> float:
    """Return the seconds of a duration such as 90, 90s, 20m or 2h."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if found is None or float(found[1]) <= 0:
        raise BadInput(option, repr(text), "seconds, minutes or hours, such as 90, 20m or 2h")
    return float(found[1]) * UNITS_S[found[2]]


def check_marks(fleet: SelectedFleet) -> None:
    """Refuse boards that are not marked as ones for tests.

    Raises:
        BadInput: Names them, and how they are marked.
    """
    boards = [board for board in fleet.inventory.boards if board.name in fleet.hosts]
    if unmarked := [board.name for board in boards if board.text(MARK) != MARKED]:
        right = f"`{MARK}: {MARKED}` among the vars of these boards, if they are there for tests; others with --limit"
        raise BadInput(str(fleet.options.inventory), f"{format_names(unmarked, NAMES_SHOWN)} without a mark", right)


def plan_faults(
    boards: Sequence[str], faults: Sequence[str], *, every_s: float, for_s: float, seed: int
) -> tuple[PlannedFault, ...]:
    """Return a fault every ``every_s`` seconds; each board gets each of them once before any comes again."""
    generator = random.Random(seed)
    pairs = list(itertools.product(boards, faults))
    count = int(for_s / every_s)
    passes = itertools.chain.from_iterable(generator.sample(pairs, len(pairs)) for _ in itertools.count())
    return tuple(
        PlannedFault(every_s * (number + 1), *pair) for number, pair in enumerate(itertools.islice(passes, count))
    )


def judge_run(progress: RunProgress, since_s: float) -> tuple[str, bool]:
    """Return what became of a run since a fault, and whether it may be so: it went on, or says why it did not."""
    if any(at_s > since_s for at_s in progress.rounds_at_s):
        return "went on", True
    if progress.code is None:
        return "no round since", False
    if progress.code == 0:
        return "was over", True
    return (f"stopped: {progress.cause}", True) if progress.cause else (f"died with {progress.code}", False)


def find_cause(lines: Sequence[str]) -> str:
    """Return the reason that a command's last lines give for its end; empty if there is none, or a traceback."""
    last = lines[-20:]
    if any(line.startswith("Traceback (") for line in last):
        return ""
    found = [match[1] for line in last if (match := CAUSE.match(line))]
    return found[-1] if found else ""


def list_outcomes(outcomes: Sequence[BoardFaultOutcome]) -> Table:
    """Build the table of the faults."""
    columns: tuple[Column[BoardFaultOutcome], ...] = (
        ("at", lambda one: value_cell(one.at_s, duration, "s")),
        ("board", lambda one: text_cell(one.board)),
        ("fault", lambda one: text_cell(one.fault)),
        ("back within", lambda one: value_cell(one.back_s, duration, "s")),
        ("run", lambda one: text_cell(one.run)),
        ("power mode", lambda one: text_cell({True: "as found", False: "another", None: ""}[one.power_kept])),
        ("verdict", lambda one: text_cell(one.verdict)),
    )
    return build_table("chaos", columns, outcomes, "Faults")


def count_outcomes(outcomes: Sequence[BoardFaultOutcome]) -> tuple[FaultCount, ...]:
    """Count the faults of each kind that was tried."""
    tried = [one for one in outcomes if not one.refusal]
    kinds = [(fault, [one for one in tried if one.fault == fault]) for fault in FAULTS]
    return tuple(
        FaultCount(fault, len(these), sum(not one.problems for one in these)) for fault, these in kinds if these
    )


def list_counts(counts: Sequence[FaultCount]) -> Table:
    """Build the summary by kind of fault."""
    columns: tuple[Column[FaultCount], ...] = (
        ("fault", lambda one: text_cell(one.fault)),
        ("what happens", lambda one: text_cell(FAULTS[one.fault])),
        ("tried", lambda one: value_cell(one.tried, "d")),
        ("held", lambda one: value_cell(one.held, "d")),
        ("failed", lambda one: value_cell(one.tried - one.held, "d")),
    )
    return build_table("chaos-summary", columns, counts, "By fault")


def outcomes_to_dicts(outcomes: Sequence[BoardFaultOutcome]) -> Iterator[dict[str, Any]]:
    """Yield each outcome for JSON."""
    yield from ({**asdict(one), "verdict": one.verdict} for one in outcomes)

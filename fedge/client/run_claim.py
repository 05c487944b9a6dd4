"""The reservation of a board for one run at a time: a small file with an expiry time, in case the server dies."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from fedge.atomic_files import write_text
from fedge.errors import BadInput
from fedge.json_reader import read_json

logger = logging.getLogger(__name__)

CLAIM_FILE = "claim.json"
"""Name of the file in the board's state folder."""
MAX_LENGTH_RATIO = 2.0
# A claim with more than this many times its length left was written under a wrong clock. Default: tolerates clock
# corrections of up to one claim length.


@dataclass(frozen=True, slots=True)
class RunClaim:
    """A reservation of the board.

    Attributes:
        until_s: Unix time at which it expires.
        stands_s: Its length in seconds.
    """

    run: str
    until_s: float
    stands_s: float


def claim_left_s(claim: RunClaim | None, run: str, now_s: float) -> float:
    """Return for how many more seconds ``claim`` blocks ``run``, or 0 if it does not.

    A run's own claim and an expired claim do not block it. Neither does a claim from an implausible future, which a
    board without a battery-backed clock may have written.
    """
    if claim is None or claim.run == run:
        return 0.0
    left = claim.until_s - now_s
    return left if 0.0 < left <= MAX_LENGTH_RATIO * claim.stands_s else 0.0


def explain_refusal(board: str, claim: RunClaim, left: float) -> str:
    """Return the message for another run."""
    return f'{board} works for run "{claim.run}" (for {left:.0f} s more); wait, or stop that run'


def read_claim(path: Path) -> RunClaim | None:
    """Read the claim from a file; None if the file is missing or invalid."""
    if not path.exists():
        return None
    try:
        content = read_json(path, "a claim")
        return RunClaim(str(content["run"]), float(content["until_s"]), float(content["stands_s"]))
    except (BadInput, ArithmeticError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s cannot be read (%s): nobody's claim is known", path, error)
        return None


def write_claim(path: Path, run: str, stands_s: float, now_s: float) -> None:
    """Reserve the board for ``run`` for ``stands_s`` seconds from the Unix time ``now_s``, replacing the file
    atomically.
    """
    write_text(path, json.dumps(asdict(RunClaim(run, now_s + stands_s, stands_s))))


@contextmanager
def hold_claim(path: Path, run: str, stands_s: float, wall_s: Callable[[], float]) -> Iterator[None]:
    """Reserve the board during the context and for ``stands_s`` seconds after it; an empty ``run`` reserves nothing."""
    if not run:
        yield
        return
    write_claim(path, run, stands_s, wall_s())
    try:
        yield
    finally:
        try:
            write_claim(path, run, stands_s, wall_s())
        except OSError as error:  # the earlier claim is still valid, and the work is done
            logger.warning("%s cannot be renewed: %s", path, error)


def release_claim(path: Path, run: str) -> None:
    """Remove the claim if it belongs to ``run``."""
    claim = read_claim(path)
    if claim is not None and claim.run == run:
        path.unlink(missing_ok=True)

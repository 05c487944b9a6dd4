"""For which run a board works, one at a time: a small file that says until when, so that a server that died lets go."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

CLAIM_FILE = "claim.json"
"""The file's name in the board's state folder."""
MAX_LENGTH_RATIO = 2.0
"""A claim that has more than so many times its own length to go was written under another clock. Chosen by us."""


@dataclass(frozen=True, slots=True)
class RunClaim:
    """The board works for ``run`` until ``until_s``, unix time; it was made for ``stands_s`` seconds."""

    run: str
    until_s: float
    stands_s: float


def claim_left_s(claim: RunClaim | None, run: str, now_s: float) -> float:
    """For how many seconds more ``claim`` stands against ``run``; 0 when it does not.

    A claim of the run itself does not, nor one that has ended. A board without a battery-backed clock may find one from
    a future that never was: it does not stand either.
    """
    if claim is None or claim.run == run:
        return 0.0
    left = claim.until_s - now_s
    return left if 0.0 < left <= MAX_LENGTH_RATIO * claim.stands_s else 0.0


def explain_refusal(board: str, claim: RunClaim, left: float) -> str:
    """What another run is told."""
    return f'{board} works for run "{claim.run}" (for {left:.0f} s more); wait, or stop that run'


def read_claim(path: Path) -> RunClaim | None:
    """The claim in a file; None when there is none, or none that makes sense."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        return RunClaim(str(said["run"]), float(said["until_s"]), float(said["stands_s"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s cannot be read (%s): nobody's claim is known", path, error)
        return None


def write_claim(path: Path, run: str, stands_s: float, now_s: float) -> None:
    """The board works for ``run`` for ``stands_s`` from ``now_s`` on; the file is replaced as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(json.dumps(asdict(RunClaim(run, now_s + stands_s, stands_s))), encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def hold_claim(path: Path, run: str, stands_s: float, wall_s: Callable[[], float]) -> Iterator[None]:
    """The board as the run's during the block and for ``stands_s`` after it; an empty ``run`` claims nothing."""
    if not run:
        yield
        return
    write_claim(path, run, stands_s, wall_s())
    try:
        yield
    finally:
        try:
            write_claim(path, run, stands_s, wall_s())
        except OSError as error:  # the one made before still stands for a while, and the work is done
            logger.warning("%s cannot be renewed: %s", path, error)


def release_claim(path: Path, run: str) -> None:
    """The board is free again, if it was ``run`` that it worked for."""
    claim = read_claim(path)
    if claim is not None and claim.run == run:
        path.unlink(missing_ok=True)

"""A real client: answers one message at a time, reports its progress, and is reserved for one run at a time.

The reservation is a small file with an expiry time, in case the server dies.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from fedge.atomic_files import write_text
from fedge.client import real_round
from fedge.client.board_session import open_session
from fedge.client.progress import finish_reporter
from fedge.client.tracing_device import remove_service
from fedge.devices.local_board import NodeSettings
from fedge.errors import BadInput, describe_error
from fedge.experiment import Experiment, list_boards
from fedge.json_reader import read_json
from fedge.telemetry.live_records import BoardProgress
from fedge.telemetry.progress_files import ProgressReporter
from fedge.types import NamedArrays, TrainResult
from fedge.wire import ReplyMessage, RequestMessage
from fedge.worker.refusal import iter_causes

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


@contextmanager
def open_round_reporter(
    settings: NodeSettings, request: RequestMessage, steps: int, wall_s: Callable[[], float] = time.time
) -> Iterator[ProgressReporter]:
    """Open the reporter of one round of ``steps`` steps."""
    begun = BoardProgress(settings.board, 0.0, "fetching", run=request.run, round=request.round, steps=steps)
    reporter = ProgressReporter(settings.live_dir if settings.telemetry else None, begun, wall_s)
    reporter.report()
    with finish_reporter(reporter):
        yield reporter


DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)


def answer_request(
    experiment: Experiment,
    settings: NodeSettings,
    request: RequestMessage,
    arrays: NamedArrays | None,
    wall_s: Callable[[], float] = time.time,
) -> tuple[ReplyMessage, TrainResult | None]:
    """Answer a request on this board.

    Args:
        arrays: Global model by name; needed for a training or evaluation request.
        wall_s: Returns Unix time in seconds, used for the claims of runs.

    Returns:
        The reply and, after training, its result. An error on the board, or a claim of another run, is a reply with
        ``error``.
    """
    path, name = settings.state_dir / CLAIM_FILE, settings.board
    if request.kind == "bye":
        release_claim(path, request.run)
        remove_service(settings.worker_socket, next((one for one in list_boards(experiment) if one.name == name), None))
        return ReplyMessage(name), None
    standing = read_claim(path)
    left_s = claim_left_s(standing, request.run, wall_s())
    if standing is not None and left_s > 0:
        refusal = explain_refusal(name, standing, left_s)
        return ReplyMessage(name, error=refusal, held_s=left_s, held_by=standing.run), None
    if request.kind == "hello":
        return ReplyMessage(name), None
    started_s = time.monotonic()
    try:
        with (
            hold_claim(path, request.run, request.claim_s, wall_s),
            open_session(experiment, settings) as session,
        ):
            request = real_round.drop_unlike_knowledge(session, request)
            if request.kind == "front":
                reply, trained = real_round.answer_front(session, request)
            elif request.kind == "evaluate":
                reply, trained = real_round.evaluate_model(session, request, arrays or {})
            else:
                with open_round_reporter(settings, request, session.steps) as reporter:
                    reply, trained = real_round.answer_round(session, request, arrays or {}, reporter)
        return dataclasses.replace(reply, handled_s=time.monotonic() - started_s), trained
    except Exception as error:
        logger.warning("%s failed in round %s", name, request.round, exc_info=error)
        return ReplyMessage(name, error=explain_error(error, settings)), None


def explain_error(error: BaseException, settings: NodeSettings) -> str:
    """Return the message of an error; a full disk is named as such, whatever was being written."""
    full = next(
        (each for each in iter_causes(error) if isinstance(each, OSError) and each.errno in DISK_FULL_ERRNOS), None
    )
    if full is not None:
        return f"no space left on {settings.board} ({full.filename or settings.state_dir}): free some"
    return describe_error(error)

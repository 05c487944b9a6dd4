"""A real client: answers one message at a time, and reports its progress."""

from __future__ import annotations

import dataclasses
import errno
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedge.client import real_round
from fedge.client.board_session import open_session
from fedge.client.progress import finish_reporter
from fedge.client.run_claim import CLAIM_FILE, claim_left_s, explain_refusal, hold_claim, read_claim, release_claim
from fedge.client.tracing_device import remove_service
from fedge.devices.local_board import NodeSettings
from fedge.errors import describe_error
from fedge.experiment import Experiment, list_boards
from fedge.telemetry.live_records import BoardProgress
from fedge.telemetry.progress_files import ProgressReporter
from fedge.types import NamedArrays, TrainResult
from fedge.wire import ReplyMessage, RequestMessage
from fedge.worker.refusal import iter_causes

logger = logging.getLogger(__name__)


@contextmanager
def open_round_reporter(settings: NodeSettings, request: RequestMessage, steps: int) -> Iterator[ProgressReporter]:
    """Open the reporter of one round of ``steps`` steps."""
    begun = BoardProgress(settings.board, 0.0, "fetching", run=request.run, round=request.round, steps=steps)
    reporter = ProgressReporter(settings.live_dir if settings.telemetry else None, begun, time.time)
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
    standing = read_claim(path)
    left_s = claim_left_s(standing, request.run, wall_s())
    if request.kind == "bye":
        release_claim(path, request.run)
        if left_s == 0.0:  # otherwise the service is of the run that has the board now
            board = next((one for one in list_boards(experiment) if one.name == name), None)
            remove_service(settings.worker_socket, board)
        return ReplyMessage(name), None
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
            reply = dataclasses.replace(reply, recorded=session.recorded)
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

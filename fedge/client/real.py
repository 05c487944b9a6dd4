"""What a real board is doing for a run, told to its telemetry service, where the board has one."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedge.client import installed_service, real_round, run_claim
from fedge.client.board_session import open_session
from fedge.devices.node_settings import NodeSettings
from fedge.errors import FedgeError
from fedge.experiment import Experiment, list_boards
from fedge.telemetry.live_records import BoardProgress
from fedge.telemetry.progress_reporter import ProgressReporter
from fedge.types import NamedArrays, TrainResult
from fedge.wire import ReplyMessage, RequestMessage


@contextmanager
def open_round_reporter(
    settings: NodeSettings, ask: RequestMessage, steps: int, wall_s: Callable[[], float] = time.time
) -> Iterator[ProgressReporter]:
    """The teller of one round of ``steps`` minibatches, which ends as done or failed."""
    begun = BoardProgress(settings.board, 0.0, "fetching", run=ask.run, round=ask.round, steps=steps)
    teller = ProgressReporter(settings.live_dir if settings.telemetry else None, begun, wall_s)
    teller.report()
    try:
        yield teller
        teller.finish("done")
    except BaseException as error:
        teller.finish("failed", error=str(error))
        raise


logger = logging.getLogger(__name__)

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)


def answer_request(
    experiment: Experiment,
    settings: NodeSettings,
    ask: RequestMessage,
    arrays: NamedArrays | None,
    wall_s: Callable[[], float] = time.time,
) -> tuple[ReplyMessage, TrainResult | None]:
    """What this board says to ``ask``; whatever fails on the board is an answer with ``error``.

    It works for one run at a time; ``wall_s`` is the unix time by which their claims are kept.
    """
    path, name = settings.state_dir / run_claim.CLAIM_FILE, settings.board
    if ask.kind == "bye":
        run_claim.release_claim(path, ask.run)
        installed_service.remove_service(
            settings.worker_socket, next((one for one in list_boards(experiment) if one.name == name), None)
        )
        return ReplyMessage(name), None
    standing = run_claim.read_claim(path)
    left_s = run_claim.claim_left_s(standing, ask.run, wall_s())
    if standing is not None and left_s > 0:
        return ReplyMessage(name, error=run_claim.explain_refusal(name, standing, left_s), held_s=left_s), None
    if ask.kind == "hello":
        return ReplyMessage(name), None
    try:
        with run_claim.hold_claim(path, ask.run, ask.claim_s, wall_s), open_session(experiment, settings) as post:
            if ask.kind == "front":
                return real_round.answer_front(post, ask)
            with open_round_reporter(settings, ask, post.steps) as teller:
                return real_round.answer_round(post, ask, arrays or {}, teller)
    except Exception as error:
        logger.warning("%s failed in round %s", name, ask.round, exc_info=error)
        return ReplyMessage(name, error=explain_error(error, settings)), None


def explain_error(error: BaseException, settings: NodeSettings) -> str:
    """Why an answer failed, in words; a full disk by its name, whatever was being written."""
    full = next(
        (each for each in _iter_causes(error) if isinstance(each, OSError) and each.errno in DISK_FULL_ERRNOS), None
    )
    if full is not None:
        return f"no space left on {settings.board} ({full.filename or settings.state_dir}): free some"
    return str(error) if isinstance(error, FedgeError) else f"{type(error).__name__}: {error}"


def _iter_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__

"""A real board's client: answers one message for the run that the board works for, whatever fails on it included."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Iterator

from fedge.errors import FedgeError
from fedge.experiment import Experiment, boards
from fedge.node import claim, serving, share
from fedge.node.post import post_of
from fedge.node.settings import NodeSettings
from fedge.node.telling import telling
from fedge.types import NamedArrays, TrainResult
from fedge.wire import Answer, Ask

logger = logging.getLogger(__name__)

FULL = (errno.ENOSPC, errno.EDQUOT)


def answer(
    experiment: Experiment,
    settings: NodeSettings,
    ask: Ask,
    arrays: NamedArrays | None,
    wall_s: Callable[[], float] = time.time,
) -> tuple[Answer, TrainResult | None]:
    """What this board says to ``ask``; whatever fails on the board is an answer with ``error``.

    It works for one run at a time; ``wall_s`` is the unix time by which their claims are kept.
    """
    path, name = settings.state_dir / claim.NAME, settings.board
    if ask.kind == "bye":
        claim.release(path, ask.run)
        serving.remove(settings.worker_socket, next((one for one in boards(experiment) if one.name == name), None))
        return Answer(name), None
    standing = claim.read(path)
    left_s = claim.left_s(standing, ask.run, wall_s())
    if standing is not None and left_s > 0:
        return Answer(name, error=claim.refusal(name, standing, left_s), held_s=left_s), None
    if ask.kind == "hello":
        return Answer(name), None
    try:
        with claim.kept(path, ask.run, ask.claim_s, wall_s), post_of(experiment, settings) as post:
            if ask.kind == "front":
                return share.front(post, ask)
            with telling(settings, ask, post.steps) as teller:
                return share.trained(post, ask, arrays or {}, teller)
    except Exception as error:
        logger.warning("%s failed in round %s", name, ask.round, exc_info=error)
        return Answer(name, error=reason_of(error, settings)), None


def reason_of(error: BaseException, settings: NodeSettings) -> str:
    """Why an answer failed, in words; a full disk by its name, whatever was being written."""
    full = next((each for each in _causes(error) if isinstance(each, OSError) and each.errno in FULL), None)
    if full is not None:
        return f"no space left on {settings.board} ({full.filename or settings.state_dir}): free some"
    return str(error) if isinstance(error, FedgeError) else f"{type(error).__name__}: {error}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__

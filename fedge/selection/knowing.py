"""What a selector goes by where a client's figures are missing or make no sense; clients by name."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedge.types import Client, Floats, Front, FrontPoint


def by_name(clients: Sequence[Client]) -> list[Client]:
    """The clients in the order of their names, so that the order in which they are offered changes nothing."""
    return sorted(clients, key=lambda client: client.board)


def seats(count: int, clients: Sequence[Client]) -> int:
    """How many are taken: ``count``, at most all of them, at least one if there is one."""
    return min(max(1, count), len(clients))


def samples_of(clients: Sequence[Client]) -> Floats:
    """Training samples, at least 1, shape (n,); an unknown number is the median of the known ones, or 1."""
    return completed([known(client.samples, low=0.0) for client in clients], least=1.0)


def durations_s(clients: Sequence[Client]) -> Floats:
    """Seconds of a round, shape (n,); an unknown duration is the median of the known ones, or 1."""
    return completed([duration_s(client) for client in clients], least=1e-9)


def duration_s(client: Client) -> float | None:
    """How long its last round took; before that what its front expects at MAXN; None when neither is known."""
    seen = known(client.busy_s, low=0.0)
    front = front_of(client)
    expected = None if front is None else front.link_s + front.maxn.work_s
    return expected if seen is None else seen


def loss_of(client: Client) -> float | None:
    """Its last loss, at least 0; None when it is unknown or not finite."""
    loss = known(client.loss)
    return None if loss is None else max(0.0, loss)


def accuracy_of(client: Client) -> float | None:
    """Its last accuracy; None when it is unknown or not finite."""
    return known(client.accuracy)


def front_of(client: Client) -> Front | None:
    """Its front; None when there is none, or one with figures that cannot be."""
    front = client.front
    if front is None or not (_some(front.link_s) and _some(front.idle_w) and _some(front.maxn_idle_w)):
        return None
    return front if all(_sensible(point) for point in (front.maxn, *front.points)) else None


def _sensible(point: FrontPoint) -> bool:
    return _some(point.work_s) and point.work_s > 0.0 and _some(point.work_j) and _some(point.time_sd_log)


def _some(value: float) -> bool:
    return math.isfinite(value) and value >= 0.0


def known(value: float | None, low: float = -math.inf) -> float | None:
    """The value; None when it is None, not finite or below ``low``."""
    return None if value is None or not math.isfinite(value) or value < low else float(value)


def completed(values: Sequence[float | None], least: float) -> Floats:
    """The values, none below ``least``, with the median of the known ones (or ``least``) for None; shape (n,)."""
    usual = float(np.median([value for value in values if value is not None] or [least]))
    whole = np.array([usual if value is None else value for value in values], dtype=np.float64)
    return np.maximum(whole, least)

"""Clients in the order of their names, and their figures, with a fallback where one is missing or implausible."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedge.types import ClientStatus, Floats, Front, FrontPoint


def sort_by_name(clients: Sequence[ClientStatus]) -> list[ClientStatus]:
    """Return the clients sorted by name, so that the order in which they are listed changes nothing."""
    return sorted(clients, key=lambda client: client.board)


def clamp_count(count: int, clients: Sequence[ClientStatus]) -> int:
    """Return ``count``, at most the number of clients and at least one."""
    return min(max(1, count), len(clients))


def estimate_samples(clients: Sequence[ClientStatus]) -> Floats:
    """Return training samples, at least 1, shape (n,); an unknown number is the median of the known ones, or 1."""
    return fill_unknown([finite_or_none(client.samples, low=0.0) for client in clients], least=1.0)


def estimate_durations_s(clients: Sequence[ClientStatus]) -> Floats:
    """Return seconds of a round, shape (n,); an unknown duration is the median of the known ones, or 1e-9."""
    return fill_unknown([estimate_duration_s(client) for client in clients], least=1e-9)


def estimate_duration_s(client: ClientStatus) -> float | None:
    """Return the seconds of a client's last round, else those its front expects at MAXN, else None."""
    seen = finite_or_none(client.busy_s, low=0.0)
    front = valid_front(client)
    expected = None if front is None else front.link_s + front.maxn.work_s
    return expected if seen is None else seen


def valid_loss(client: ClientStatus) -> float | None:
    """Return a client's last loss, at least 0, or None if it is unknown or not finite."""
    loss = finite_or_none(client.loss)
    return None if loss is None else max(0.0, loss)


def valid_accuracy(client: ClientStatus) -> float | None:
    """Return a client's last accuracy, or None if it is unknown or not finite."""
    return finite_or_none(client.accuracy)


def valid_front(client: ClientStatus) -> Front | None:
    """Return a client's front, or None if there is none or a figure in it is implausible."""
    front = client.front
    if front is None or not (
        _is_nonnegative(front.link_s) and _is_nonnegative(front.idle_w) and _is_nonnegative(front.maxn_idle_w)
    ):
        return None
    return front if all(_is_valid_point(point) for point in (front.maxn, *front.points)) else None


def _is_valid_point(point: FrontPoint) -> bool:
    return (
        _is_nonnegative(point.work_s)
        and point.work_s > 0.0
        and _is_nonnegative(point.work_j)
        and _is_nonnegative(point.time_sd_log)
    )


def _is_nonnegative(value: float) -> bool:
    return math.isfinite(value) and value >= 0.0


def finite_or_none(value: float | None, low: float = -math.inf) -> float | None:
    """Return the value, or None if it is None, not finite or below ``low``."""
    return None if value is None or not math.isfinite(value) or value < low else float(value)


def fill_unknown(values: Sequence[float | None], least: float) -> Floats:
    """Return the values, each at least ``least``, with the median of the known ones for None; shape (n,)."""
    usual = float(np.median([value for value in values if value is not None] or [least]))
    whole = np.array([usual if value is None else value for value in values], dtype=np.float64)
    return np.maximum(whole, least)

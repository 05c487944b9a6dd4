"""Clock offsets as intervals: each remote reading lies between two readings of the control node's clock."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.fleet.status.host_facts import Facts, as_mapping, as_number

UNITS = ((86400.0, "days"), (3600.0, "h"), (60.0, "min"))


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """Lower and upper bound on how far one clock is ahead of another, in seconds."""

    least_s: float
    most_s: float

    @property
    def middle_s(self) -> float:
        return (self.least_s + self.most_s) / 2

    @property
    def uncertainty_s(self) -> float:
        return abs(self.most_s - self.least_s) / 2


def measure_offset(told: Facts) -> ClockOffset | None:
    """Bound a host's clock offset against the control node.

    Args:
        told: ``asked_at_s`` and ``answered_at_s`` by the control node's clock, and the host's ``facts`` with ``at_s``
            and optionally ``done_at_s`` by the host's clock (Unix time, seconds).

    Returns:
        The bounds, or None if a reading is missing.
    """
    facts = as_mapping(told.get("facts"))
    asked_s, answered_s, at_s = (
        as_number(told.get("asked_at_s")),
        as_number(told.get("answered_at_s")),
        as_number(facts.get("at_s")),
    )
    if asked_s is None or answered_s is None or at_s is None:
        return None
    done_s = as_number(facts.get("done_at_s"))
    return ClockOffset((at_s if done_s is None else done_s) - answered_s, at_s - asked_s)


def subtract_offset(clock: ClockOffset | None, server: ClockOffset | None) -> ClockOffset | None:
    """Bound a board's clock offset against the server from both offsets against the control node."""
    if clock is None or server is None:
        return None
    return ClockOffset(clock.least_s - server.most_s, clock.most_s - server.least_s)


def format_duration(seconds: float) -> str:
    """Format a duration for people, in the largest fitting unit."""
    for unit_s, unit in UNITS:
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"

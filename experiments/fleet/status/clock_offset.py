"""How far a host's clock is off, known as a span: it was looked at between two looks at the control node's clock."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.fleet.status.host_facts import Facts, as_mapping, as_number

UNITS = ((86400.0, "days"), (3600.0, "h"), (60.0, "min"))


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """How far a host's clock is ahead of another: between ``least_s`` and ``most_s``."""

    least_s: float
    most_s: float

    @property
    def middle_s(self) -> float:
        return (self.least_s + self.most_s) / 2

    @property
    def uncertainty_s(self) -> float:
        return abs(self.most_s - self.least_s) / 2


def measure_offset(told: Facts) -> ClockOffset | None:
    """Against the control node's: from the host's two looks at its clock, between the two of the control node."""
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
    """A board's clock against the server's, both known against the control node's."""
    if clock is None or server is None:
        return None
    return ClockOffset(clock.least_s - server.most_s, clock.most_s - server.least_s)


def format_duration(seconds: float) -> str:
    """A time span as people say it."""
    for unit_s, unit in UNITS:
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"

"""How far a host's clock is off, known as a span: it was looked at between two looks at the control node's clock."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.fleet.status.facts import Facts, mapping, number

UNITS = ((86400.0, "days"), (3600.0, "h"), (60.0, "min"))


@dataclass(frozen=True, slots=True)
class Clock:
    """How far a host's clock is ahead of another: between ``least_s`` and ``most_s``."""

    least_s: float
    most_s: float

    @property
    def middle_s(self) -> float:
        return (self.least_s + self.most_s) / 2

    @property
    def give_s(self) -> float:
        return abs(self.most_s - self.least_s) / 2


def clock_of(told: Facts) -> Clock | None:
    """Against the control node's: from the host's two looks at its clock, between the two of the control node."""
    facts = mapping(told.get("facts"))
    asked_s, answered_s, at_s = (
        number(told.get("asked_at_s")),
        number(told.get("answered_at_s")),
        number(facts.get("at_s")),
    )
    if asked_s is None or answered_s is None or at_s is None:
        return None
    done_s = number(facts.get("done_at_s"))
    return Clock((at_s if done_s is None else done_s) - answered_s, at_s - asked_s)


def against(clock: Clock | None, server: Clock | None) -> Clock | None:
    """A board's clock against the server's, both known against the control node's."""
    if clock is None or server is None:
        return None
    return Clock(clock.least_s - server.most_s, clock.most_s - server.least_s)


def duration(seconds: float) -> str:
    """A time span as people say it."""
    for unit_s, unit in UNITS:
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"

"""A board on the bench: the device, the work it does, how it rests, and what is recorded of it beside its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.protocols import Clock, Device
from fedge.types import Label, Modes, Workload


@dataclass(frozen=True, slots=True, eq=False)
class ProfilingBench:
    """What a campaign needs of a board, real or emulated.

    ``work(count)`` does the next ``count`` minibatches; ``prepare`` is called before a mode is set, for what must not
    be metered. ``rest(seconds)`` lets the board cool; ``temperature_c`` is what its hottest sensor says, None where
    there is none or it is lost. ``candidates`` are the modes that may be measured,
    ``knowledge`` is what an explorer is made with. ``total_power`` is the formula behind the watts. ``software`` is
    what the figures depend on, name -> version: a campaign goes on only where it is the same.
    """

    board: str
    device: Device
    workload: Workload
    work: Callable[[int], object]
    idle_for: Callable[[float], None]
    temperature_c: Callable[[], float | None]
    clock: Clock
    candidates: Modes
    knowledge: PriorKnowledge
    label: Label
    source: str
    """Where the numbers come from, in words."""
    total_power: str
    emulated: bool
    software: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[], object] = lambda: None

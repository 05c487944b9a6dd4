"""A board under profiling: the device, its work, how it rests, and metadata for the record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.protocols import Clock, Device
from fedge.types import Label, Modes, Workload


@dataclass(frozen=True, slots=True, eq=False)
class ProfilingBench:
    """A real or emulated board under profiling.

    Attributes:
        board: Kind of board.
        device: Sets modes and measures steps.
        workload: Work of one step.
        work: Runs the next ``count`` steps.
        idle_for: Lets the board rest for some seconds.
        temperature_c: Reads the hottest sensor in degrees Celsius; None if there is none or it was lost.
        clock: Clock of the campaign.
        candidates: Modes that may be measured.
        knowledge: Prior knowledge for the explorer.
        label: Label of the measurements.
        source: Where the numbers come from, in words.
        total_power: Formula of the measured power.
        emulated: Whether the board is emulated.
        software: Versions that the figures depend on; a campaign is resumed only if they are unchanged.
        prepare: Called before a mode is set, for work that must not be measured.
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
    total_power: str
    emulated: bool
    software: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[], object] = lambda: None

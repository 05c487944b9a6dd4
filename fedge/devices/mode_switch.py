"""The time of a change of power mode on an emulated board, by knob; ``fedge board-check`` measures it on a real one.

References:
    arXiv 2606.16106 with the author's data (dankang21/jetson-latency-lab, Orin Nano, L4T 36): time from the write until
    a new clock takes effect, median of 150 to 200 changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fedge.types import LabelledValue, PowerMode

_ORIN_NANO = "arXiv 2606.16106: median on an Orin Nano, taken for every board"
SWITCH_S: Mapping[str, LabelledValue] = MappingProxyType(
    {
        "cores": LabelledValue(0.005, "estimated", "our choice per core: no length is published for a Jetson"),
        "cpu_mhz": LabelledValue(0.001, "estimated", _ORIN_NANO),
        "gpu_mhz": LabelledValue(0.005, "estimated", _ORIN_NANO),
        "mem_mhz": LabelledValue(0.008, "estimated", _ORIN_NANO),
    }
)
"""Seconds of a new value of each knob, for ``cores`` of every core that goes on or off line. Knobs change one after the
other, as fedge-powerd writes them. The clocks are measured, but by others on one board: estimated for all others. With
5 ms a core, a change of eight cores and all clocks takes about 50 ms; with 20 ms, boards with a service missed its
latency in every third round with a probe.
"""


def mode_change_s(before: PowerMode, after: PowerMode) -> float:
    """Return the seconds of a change of mode; 0 between equal modes."""
    clocks = (name for name in ("cpu_mhz", "gpu_mhz", "mem_mhz") if getattr(before, name) != getattr(after, name))
    return abs(after.cores - before.cores) * SWITCH_S["cores"].value + sum(SWITCH_S[name].value for name in clocks)

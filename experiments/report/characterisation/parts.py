"""The parts that an epoch's time is made of: their names, and the colour that each has everywhere on the page."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.report.palette import GREY


@dataclass(frozen=True, slots=True)
class Part:
    """One part of an epoch or of a minibatch; ``field`` is its name in the records, in seconds."""

    field: str
    name: str
    colour: str


STALL = Part("stall_s", "stall", "#E69F00")
COPY = Part("copy_s", "copy", "#CC79A7")
COMPUTE = Part("compute_s", "compute", "#0072B2")
OVERHEAD = Part("overhead_s", "overhead", GREY)
FETCH = Part("fetch_s", "fetch", "#56B4E9")
PREPROCESS = Part("preprocess_s", "preprocess", "#7A6FAC")
REST = Part("rest_s", "rest of the epoch", "#c4cad1")
"""End to end less the timed parts: starting and ending the loader, and what nobody timed."""
STACKED = (STALL, COPY, COMPUTE, OVERHEAD)
"""What follows one another in a minibatch, and adds up to it."""
FOLLOWED = (STALL, COMPUTE, FETCH, PREPROCESS)
"""What the timeline shows; the last two overlap with training where workers load, else they make the stall."""
LINES = ("#009E73", "#D55E00", "#8C8C1A", "#8b4a2b", "#117a8b", "#c2185b")
"""Of boards and workloads; none is a part's."""

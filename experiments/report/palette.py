"""Colours of a report: the palette of Okabe and Ito, distinguishable with colour blindness, on light and dark."""

from __future__ import annotations

from collections.abc import Sequence

COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C8C1A", "#7A6FAC"),
    *("#8B4A2B", "#B5179E", "#7FC241"),
)
"""The eight of Okabe and Ito, with brown, magenta and lime for comparisons of more."""
LINE_DASHES = ("solid", "dash", "dot", "dashdot")
"""Line patterns as a second cue besides colour."""
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "pentagon", "hexagram", "star-square")
"""Marker shapes as a second cue besides colour, for greyscale prints."""
GREY = "#7d8590"
"""Neutral colour for lines and marks; readable on white and on black."""
FETCH, SEND, WAIT = "#5f7189", "#9db0c8", "rgba(128,138,150,0.22)"
EVALUATION = "#e8ecf1"
ALARM = "#c8102e"
SHARE_COLOURS = ((0.0, "#f3e9c8"), (0.25, "#a9c6a0"), (0.5, "#5b9d9b"), (0.75, "#2f6690"), (1.0, "#1d2f5e"))
"""Sequential scale from light to dark for a share of a maximum; lightness alone conveys the order."""


def assign_colours(names: Sequence[str]) -> dict[str, str]:
    """Assign colours to names in order; colours repeat if there are more names."""
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}


def assign_symbols(names: Sequence[str]) -> dict[str, str]:
    """Assign marker shapes to names in order, so that names with the same colour differ in shape."""
    shift = [i % len(SYMBOLS) + i // len(COLOURS) for i in range(len(names))]
    return {name: SYMBOLS[shift[i] % len(SYMBOLS)] for i, name in enumerate(names)}


def assign_dashes(names: Sequence[str]) -> dict[str, str]:
    """Assign line patterns to names in order, so that names with the same colour differ in pattern."""
    return {name: LINE_DASHES[i // len(COLOURS) % len(LINE_DASHES)] for i, name in enumerate(names)}

"""The colours of a report: Okabe and Ito's, which people with colour-blindness tell apart, on white and on black."""

from __future__ import annotations

from collections.abc import Sequence

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C8C1A", "#7A6FAC")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "pentagon", "hexagram", "star-square")
"""A second mark beside the colour, for prints in grey."""
GREY = "#7d8590"
"""Lines and marks of no kind in particular; readable on white and on black."""
FETCH, SEND, WAIT = "#5f7189", "#9db0c8", "rgba(128,138,150,0.22)"
ALARM = "#c8102e"
SHARE_COLOURS = ((0.0, "#f3e9c8"), (0.25, "#a9c6a0"), (0.5, "#5b9d9b"), (0.75, "#2f6690"), (1.0, "#1d2f5e"))
"""Light to dark, for a share of a maximum; lightness alone tells the order."""


def assign_colours(names: Sequence[str]) -> dict[str, str]:
    """One colour per name, in order."""
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}


def assign_symbols(names: Sequence[str]) -> dict[str, str]:
    """One mark per name, in order; where colours repeat, marks do not."""
    shift = [i % len(SYMBOLS) + i // len(COLOURS) for i in range(len(names))]
    return {name: SYMBOLS[shift[i] % len(SYMBOLS)] for i, name in enumerate(names)}

"""The headline figures at the top of a page: each with its name, and what it is to be held against."""

from __future__ import annotations

from collections.abc import Collection, Iterable

Card = tuple[str, str, str]
"""Name, figure, aside; as HTML, so that names of users' things have to be escaped before."""


def cards(every: Iterable[Card], wide: Collection[str] = ()) -> str:
    """The cards as HTML; those whose names are among ``wide`` take a whole row of a phone."""
    items = "".join(
        f'<div{_class(name, wide)}><dt>{name}</dt><dd class="figure">{value}</dd><dd class="aside">{aside}</dd></div>'
        for name, value, aside in every
    )
    return f'<dl class="cards">{items}</dl>'


def _class(name: str, wide: Collection[str]) -> str:
    return ' class="wide"' if name in wide else ""

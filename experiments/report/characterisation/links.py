"""Links from words to points: a point's key leads to its row in the table and marks it in the pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

MOST = 8
"""Links of one finding; chosen by us."""


def anchor(key: str) -> str:
    """The id of a point's row."""
    return f"point-{key}"


def link(key: str, word: str) -> str:
    """To the point's row; ``word`` is escaped here."""
    return f'<a class="point" href="#{anchor(key)}" data-point="{escape(key)}">{escape(word)}</a>'


def links(keys: Sequence[str], names: Mapping[str, str]) -> str:
    """To each point that the page has, by its short name, and how many more there are."""
    known = [key for key in dict.fromkeys(keys) if key in names]
    if not known:
        return ""
    more = f" and {len(known) - MOST:,} more" if len(known) > MOST else ""
    shown = " · ".join(link(key, names[key]) for key in known[:MOST])
    return f'<p class="points">{"Point" if len(known) == 1 else "Points"}: {shown}{more}</p>'

"""One HTML page: head, sections with charts and tables; one template, which escapes every text that is not ``Markup``.

The page needs nothing else: Plotly, style and data are in it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from markupsafe import Markup

from experiments.report.chart import JSON_DIGITS, SHARE_COLOURS, Chart, to_json_value
from fedge.atomic_files import write_text
from fedge.types import Label

if TYPE_CHECKING:
    from jinja2 import Environment

LABELS = get_args(Label)
EMPTY = Markup()


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a page: heading, introduction and charts, side by side if there is room.

    Attributes:
        html: Tables and legends below the charts.
        min_width: Least width of a chart, as CSS; chosen by the number of charts if empty.
    """

    title: str
    lead: str | Markup
    charts: tuple[Chart, ...] = ()
    html: Markup = EMPTY
    min_width: str = ""

    @property
    def column_width(self) -> str:
        """Return the least width of a chart, as CSS."""
        if self.min_width:
            return self.min_width
        if len(self.charts) <= 1 or any(chart.frames for chart in self.charts):
            return "100%"
        return "300px" if len(self.charts) == 3 else "420px"


@dataclass(frozen=True, slots=True)
class Card:
    """A headline figure.

    Attributes:
        remark: Reference or explanation.
        wide: Whether it spans the full width on a phone.
    """

    name: str
    value: str
    remark: str | Markup = ""
    wide: bool = False


def write_page(out: Path, title: str, sections: Iterable[Section], foot: str | Markup, **head: Any) -> None:
    """Write a page atomically; the arguments are those of ``render_page``."""
    write_text(out, render_page(title, sections, foot, **head))


def render_page(
    title: str,
    sections: Iterable[Section],
    foot: str | Markup,
    *,
    facts: Iterable[str | Markup],
    heading: str = "",
    lead: Markup = EMPTY,
    cards: Iterable[Card] = (),
    notes: Iterable[str | Markup] = (),
    below: Markup = EMPTY,
) -> str:
    """Render a page.

    Args:
        title: Title of the window, and the heading unless there is another.
        sections: Its sections.
        foot: Its last line.
        facts: The line of facts below the heading.
        heading: Another heading.
        lead: Paragraphs before the headline figures.
        cards: The headline figures.
        notes: Paragraphs after them.
        below: What follows the notes: tables, style, scripts.
    """
    from plotly.offline import get_plotlyjs

    head = Markup('<h1>{}</h1><p class="soft">{}</p>').format(heading or title, Markup(" · ").join(facts))
    figures, sections = tuple(cards), tuple(sections)
    head += lead + (render_cards(figures) if figures else EMPTY) + Markup().join(map(render_paragraph, notes)) + below
    charts = [to_json_value(_chart_data(chart), JSON_DIGITS) for section in sections for chart in section.charts]
    # "<" is escaped, so that no text in the data can end the script element.
    data = json.dumps(charts, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=title,
            head=head,
            sections=sections,
            foot=foot,
            charts=Markup(data),  # noqa: S704 -- escaped above
            plotly=Markup(get_plotlyjs()),  # noqa: S704 -- the library's own text
            share_colours=", ".join(colour for _, colour in SHARE_COLOURS),
        )
    )


def render_cards(cards: Iterable[Card]) -> Markup:
    """Render headline figures."""
    item = Markup('<div{}><dt>{}</dt><dd class="figure">{}</dd><dd class="aside">{}</dd></div>')
    wide = Markup(' class="wide"')
    items = (item.format(wide if card.wide else "", card.name, card.value, card.remark) for card in cards)
    return Markup('<dl class="cards">{}</dl>').format(Markup().join(items))


def render_paragraph(text: str | Markup, kind: str = "") -> Markup:
    """Render a paragraph; ``kind`` is its CSS class, such as ``caption`` or ``soft``."""
    return Markup("<p{}>{}</p>").format(Markup(' class="{}"').format(kind) if kind else "", text)


def render_badge(label: str) -> Markup:
    """Render a provenance label (measured, calibrated, estimated)."""
    return Markup('<span class="badge {}">{}</span>').format(label if label in LABELS else "unknown", label)


def render_template(part: str, *values: object, **more: object) -> Markup:
    """Render a macro of the characterisation's template, which escapes every text that is not ``Markup``."""
    macro: Callable[..., Markup] = getattr(_environment().get_template("characterisation.html").module, part)
    return macro(*values, **more)


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("experiments.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _chart_data(chart: Chart) -> dict[str, object]:
    """Return a chart's data for the page's script; headings and captions are in the HTML."""
    plain = {name: getattr(chart, name) for name in ("key", "data", "layout", "height_px", "spans")}
    parts = ("label", "data", "layout", "summary")
    return {**plain, "frames": [{name: getattr(frame, name) for name in parts} for frame in chart.frames]}

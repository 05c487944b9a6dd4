"""Time, stall, energy and power against each knob that was turned: a line, or a group of bars, per family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from experiments.report.characterisation.bars import error_bars, with_interval
from experiments.report.characterisation.basis import Basis, basis_of, first_apart
from experiments.report.characterisation.families import (
    NUMERIC,
    Family,
    along,
    axes_of,
    families_of,
    held,
    similar,
    value_name,
)
from experiments.report.characterisation.names import TITLES, axis_title, whole_word
from experiments.report.characterisation.parts import LINES
from experiments.report.characterisation.settings import Setting
from experiments.report.characterisation.telling import change
from experiments.report.chart import Chart, Section, Trace, axis
from experiments.report.palette import GREY, SYMBOLS
from experiments.report.quantities import Scale, energy_scale, time_scale

MOST_FAMILIES = 6
"""Drawn per knob; as many as there are colours. Chosen by us, as are the next two."""
LONG = 9
"""Characters of a value's name from which bars lie."""
HEIGHT_PX = 270


@dataclass(frozen=True, slots=True)
class Quantity:
    """What is drawn over the knob: a figure of an epoch."""

    field: str
    title: str
    """Before "of an epoch"."""
    unit: str

    def titled(self, basis: Basis) -> str:
        """With what it is of."""
        if self is POWER:
            return self.title
        if self in AT_FIRST:
            return f"{self.title} epoch" if basis.whole else f"{self.title} epoch, per {basis.words},"
        return f"{self.title} of {basis.title}"

    def axis(self, basis: Basis, unit: str) -> str:
        """The title of its axis."""
        if self is POWER:
            return f"mean power ({unit})"
        of = f"per {basis.words}"
        if self in AT_FIRST:
            of = "epoch" if basis.whole else f"epoch {of}"
        return f"{self.title.lower()} {of} ({unit})"


TIME = Quantity("e2e_s", "Time", "s")
STALL = Quantity("stall_s", "Stall", "s")
ENERGY = Quantity("energy_j", "Energy", "J")
POWER = Quantity("power_w", "Power while it runs", "W")
AT_FIRST = (Quantity("first_e2e_s", "Time of the first", "s"), Quantity("first_stall_s", "Stall of the first", "s"))
"""Where the page cache may be empty: what storage and cache are about."""


def sections(settings: Sequence[Setting], metered: bool) -> list[Section]:
    """One per knob."""
    return [_section(settings, knob, metered) for knob in axes_of(settings)]


def _section(settings: Sequence[Setting], knob: str, metered: bool) -> Section:
    every = families_of(settings, knob)
    apart = [alike[:MOST_FAMILIES] for alike in similar(every)]
    first = AT_FIRST if knob in {"storage", "cache"} and first_apart(settings) else ()
    watts = (ENERGY, *((POWER,) if len(apart) == 1 else ())) if metered else ()
    quantities = (*first, TIME, STALL, *watts)
    charts = []
    for place, drawn in enumerate(apart):
        basis = basis_of([one for family in drawn for one in family.settings])
        some = _Some(drawn, basis, str(place or ""), drawn[0].settings[0].point.workload if len(apart) > 1 else "")
        charts += [chart for one in quantities if (chart := _chart(some, one)) is not None]
    shown = [family for drawn in apart for family in drawn]
    whose = "The first line's other" if len(every) > 1 else "The other"
    words = [f"With 95 % intervals. {whose} knobs: {escape(held(shown[0], settings))}."]
    if len(shown) < len(every):
        words.append(f"{len(shown)} of {len(every):,} lines are drawn: those nearest to the plan's base.")
    if not metered:
        words.append("Nobody metered power, so there is no energy to draw.")
    title = f"{'Time and energy' if metered else 'Time'} against {TITLES[knob]}"
    legends = "".join(_legend(drawn) for drawn in apart if len(drawn) > 1)
    return Section(title, " ".join(words) + legends, tuple(charts))


@dataclass(frozen=True, slots=True)
class _Some:
    """Families that share their charts; ``mark`` makes the charts' keys differ, ``workload`` is for their titles."""

    families: Sequence[Family]
    basis: Basis
    mark: str
    workload: str


def _legend(families: Sequence[Family]) -> str:
    """One for all charts of the section, so that it never covers any."""
    shown = "".join(
        f'<span class="key"><i class="swatch" style="background:{LINES[i]}"></i>{escape(one.name)}</span>'
        for i, one in enumerate(families)
    )
    return f'<span class="keys">{shown}</span>'


def _chart(some: _Some, quantity: Quantity) -> Chart | None:
    """None where nobody knows the quantity of any of the settings."""
    families, basis, knob = some.families, some.basis, some.families[0].axis
    values = [basis.value(one, quantity.field) for family in families for one in family.settings]
    if not any(value is not None for value in values):
        return None
    scale = _scale(quantity, values)
    long = knob not in NUMERIC and max(len(value_name(one, knob)) for each in families for one in each.settings) > LONG
    style = _Style(quantity, basis, scale, flat=long)
    data = [_trace(family, i, style) for i, family in enumerate(families)]
    amount = axis(quantity.axis(basis, scale.unit), rangemode="tozero")
    knobs = _ticks(families, knob) if knob in NUMERIC else axis("" if long else axis_title(knob), type="category")
    layout: dict[str, Any] = {
        "xaxis": amount if long else knobs,
        "yaxis": {**knobs, "autorange": "reversed"} if long else amount,
        "showlegend": False,
        "barmode": "group",
        "hovermode": "closest",
    }
    height = HEIGHT_PX if not long else max(HEIGHT_PX, 90 + 17 * len(values))
    said = change(quantity.titled(basis), families, quantity.field, basis)
    title = escape(f"{some.workload}: {said}" if some.workload else said)
    return Chart(f"{quantity.field}-{knob}{some.mark}", title, "", data, layout, height)


def _scale(quantity: Quantity, values: Sequence[float | None]) -> Scale:
    if quantity is ENERGY:
        return energy_scale(values)
    return Scale("W", 1.0) if quantity is POWER else time_scale(values)


def _ticks(families: Sequence[Family], knob: str) -> dict[str, Any]:
    """The values themselves, where there are few; sizes that double stand at equal distances."""
    found = sorted({float(value) for family in families for value in family.values})
    log = knob == "batch_size" and found[0] > 0 and found[-1] > 8 * found[0]
    ticks = {"tickvals": found, "ticktext": [f"{one:g}" for one in found]} if len(found) <= 10 else {}
    return axis(axis_title(knob), **({"type": "log"} if log else {}), **ticks)


@dataclass(frozen=True, slots=True)
class _Style:
    """What all traces of a chart share; ``flat`` bars lie, so that long words have room."""

    quantity: Quantity
    basis: Basis
    scale: Scale
    flat: bool


def _trace(family: Family, place: int, style: _Style) -> Trace:
    """A line over numbers, bars over words."""
    colour = LINES[place % len(LINES)]
    amounts = [style.basis.amount(one, style.quantity.field) for one in family.settings]
    heights = [None if one is None else one.value / style.scale.per for one in amounts]
    common: Trace = {
        "name": escape(family.name),
        "hovertext": [
            f"<b>{with_interval(amount, style.quantity.unit)}</b><br>{escape(whole_word(one.point))}"
            for one, amount in zip(family.settings, amounts, strict=True)
        ],
        "hoverinfo": "text",
        "customdata": [one.key for one in family.settings],
    }
    if family.axis in NUMERIC:
        line = {"color": colour, "width": 2}
        marker = {"color": colour, "size": 8, "symbol": SYMBOLS[place % len(SYMBOLS)]}
        bars = error_bars(amounts, style.scale.per, colour)
        x = [float(along(one, family.axis)) for one in family.settings]
        drawn = {"mode": "lines+markers", "x": x, "y": heights, "error_y": bars, "line": line, "marker": marker}
        return {"type": "scatter", **drawn, **common}
    names = [escape(value_name(one, family.axis)) for one in family.settings]
    bars = error_bars(amounts, style.scale.per, GREY)
    lying = {"orientation": "h", "x": heights, "y": names, "error_x": bars}
    standing = {"x": names, "y": heights, "error_y": bars}
    return {"type": "bar", "marker": {"color": colour}, **(lying if style.flat else standing), **common}

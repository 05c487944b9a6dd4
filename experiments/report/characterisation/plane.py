"""The time-energy plane: every setting's epoch, those that no other beats, and the power modes that have a name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from experiments.report.characterisation.bars import error_bars, with_interval
from experiments.report.characterisation.basis import Basis, basis_of
from experiments.report.characterisation.names import KINDS, mode_names, same_mode, whole_word
from experiments.report.characterisation.parts import LINES
from experiments.report.characterisation.settings import Setting
from experiments.report.chart import LEGEND, Chart, Frame, Section, Trace, axis
from experiments.report.palette import ALARM, GREY
from experiments.report.quantities import Scale, energy_scale, time_scale
from fedge.pareto import front_mask

MOST_DOTS = 1200
"""Dominated settings drawn in one view. Chosen by us, as are the next two."""
MOST_VIEWS = 24
MOST_NUMBERS = 8000
"""Dominated settings drawn in all views together."""
Group = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class _Style:
    """What all marks of a view share: what figures are per, and the axes' units."""

    basis: Basis
    times: Scale
    joules: Scale


def section(settings: Sequence[Setting]) -> Section | None:
    """The plane with a menu of what was run where; None where nobody metered power, as the page's head says."""
    title = "Time and energy"
    both = [one for one in settings if one.value("energy_j") is not None]
    if not both:
        return None
    groups: dict[Group, list[Setting]] = {}
    for one in both:
        groups.setdefault((one.point.workload, one.point.board, one.point.kind), []).append(one)
    groups = {group: some for group, some in groups.items() if len(some) > 1}
    if not groups:
        return Section(title, "Each board has one setting of each workload: there is nothing to choose from.", ())
    lead = (
        "Each mark is a setting: what an epoch took and what it used. Coloured: no other setting is both faster and "
        "cheaper. Faint: another one is."
    )
    return Section(title, lead, (_chart(groups),))


def _chart(groups: dict[Group, list[Setting]]) -> Chart:
    shown = list(groups.items())[:MOST_VIEWS]
    most = min(MOST_DOTS, MOST_NUMBERS // len(shown))
    frames = []
    for (workload, board, kind), settings in shown:
        data, layout = _view(settings, most)
        front = sum(_front(settings, basis_of(settings)))
        left = max(0, len(settings) - front - most)
        told = f"{len(settings):,} settings, {front} on the front" + (f"; {left:,} dominated not drawn" if left else "")
        frames.append(Frame(f"{workload}, {board}, {KINDS[kind]}", data, layout, told))
    caption = "Bars: 95 % intervals of the settings on the front."
    if len(shown) < len(groups):
        caption += f" The menu has the first {len(shown)} of {len(groups)}."
    if len(frames) == 1:
        (only,) = frames
        return Chart("plane", escape(f"{only.label}: {only.told}"), caption, only.data, only.layout, 430)
    return Chart("plane", "Which settings no other beats", caption, [], {}, 430, tuple(frames), menu="show")


def _front(settings: Sequence[Setting], basis: Basis) -> list[bool]:
    times = np.array([basis.value(one, "e2e_s") for one in settings], dtype=np.float64)
    joules = np.array([basis.value(one, "energy_j") for one in settings], dtype=np.float64)
    return [bool(one) for one in front_mask(times, joules)]


def _view(settings: Sequence[Setting], most: int) -> tuple[list[Trace], dict[str, Any]]:
    basis = basis_of(settings)
    marked = _front(settings, basis)
    front = sorted(
        (one for one, best in zip(settings, marked, strict=True) if best), key=lambda one: _time_s(one, basis)
    )
    others = [one for one, best in zip(settings, marked, strict=True) if not best]
    if len(others) > most:
        rows = np.sort(np.random.default_rng(0).permutation(len(others))[:most])
        others = [others[int(row)] for row in rows]
    style = _Style(
        basis,
        time_scale([basis.value(one, "e2e_s") for one in settings]),
        energy_scale([basis.value(one, "energy_j") for one in settings]),
    )
    data = [_dots(others, style), _line(front, style)]
    named = _named(settings, basis)
    if named:
        data.append(_names(named, style))
    layout = {
        "xaxis": axis(f"time of {basis.title} ({style.times.unit})"),
        "yaxis": axis(f"energy of {basis.title} ({style.joules.unit})"),
        "legend": LEGEND,
        "hovermode": "closest",
    }
    return data, layout


def _place(settings: Sequence[Setting], style: _Style) -> Trace:
    return {
        "type": "scatter",
        "x": [style.times.of(style.basis.value(one, "e2e_s")) for one in settings],
        "y": [style.joules.of(style.basis.value(one, "energy_j")) for one in settings],
        "hovertext": [_told(one, style.basis) for one in settings],
        "hoverinfo": "text",
        "customdata": [one.key for one in settings],
    }


def _told(one: Setting, basis: Basis) -> str:
    time, energy, power = (basis.amount(one, field) for field in ("e2e_s", "energy_j", "power_w"))
    figures = f"{with_interval(time, 's')}, {with_interval(energy, 'J')}, {with_interval(power, 'W')}"
    return f"<b>{escape(whole_word(one.point))}</b><br>{figures}<br>point {one.key}"


def _dots(settings: Sequence[Setting], style: _Style) -> Trace:
    marker = {"color": GREY, "size": 7, "opacity": 0.5}
    return {**_place(settings, style), "mode": "markers", "name": "beaten by another", "marker": marker}


def _line(front: Sequence[Setting], style: _Style) -> Trace:
    return {
        **_place(front, style),
        "mode": "lines+markers",
        "name": "front",
        "line": {"color": LINES[0], "width": 2},
        "marker": {"color": LINES[0], "size": 8},
        "error_x": error_bars([style.basis.amount(one, "e2e_s") for one in front], style.times.per, LINES[0]),
        "error_y": error_bars([style.basis.amount(one, "energy_j") for one in front], style.joules.per, LINES[0]),
    }


def _named(settings: Sequence[Setting], basis: Basis) -> list[tuple[str, Setting]]:
    """Of every named mode the fastest setting."""
    found: dict[str, Setting] = {}
    presets = mode_names(settings[0].point.board)
    for one in settings:
        mode = one.point.mode
        name = next((word for each, word in presets.items() if mode is not None and same_mode(each, mode)), None)
        if name is not None and (name not in found or _time_s(one, basis) < _time_s(found[name], basis)):
            found[name] = one
    return list(found.items())


def _time_s(setting: Setting, basis: Basis) -> float:
    return basis.value(setting, "e2e_s") or 0.0


def _names(named: Sequence[tuple[str, Setting]], style: _Style) -> Trace:
    return {
        **_place([one for _, one in named], style),
        "mode": "markers+text",
        "name": "named power modes, each at its fastest",
        "text": [escape(name) for name, _ in named],
        "textposition": "top center",
        "textfont": {"size": 11.5},
        "cliponaxis": False,
        "marker": {"symbol": "star", "size": 14, "color": ALARM, "line": {"width": 1.2, "color": "white"}},
    }

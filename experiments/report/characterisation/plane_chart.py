"""The section of the time-energy plane: all settings, the Pareto front, and the named power modes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from experiments.report.characterisation.chart_elements import LINE_COLOURS, format_with_interval, make_error_bars
from experiments.report.characterisation.knob_labels import KIND_NAMES, format_setting, is_same_mode, preset_names
from experiments.report.characterisation.setting_summary import FigureBasis, SettingSummary, choose_basis
from experiments.report.chart import LEGEND, Chart, ChartFrame, Section, Trace, axis
from experiments.report.palette import ALARM, GREY
from experiments.report.quantities import UnitScale, energy_scale, time_scale
from fedge.pareto import front_mask

MAX_DOTS = 1200
"""Dominated settings drawn in one view; with the next two constants, a default that limits the page's size."""
MAX_VIEWS = 24
MAX_DOTS_IN_ALL = 8000
"""Dominated settings drawn in all views together."""
PlaneGroup = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class _PlaneStyle:
    """Style that all marks of a view share: the basis of the values and the axes' units."""

    basis: FigureBasis
    times: UnitScale
    joules: UnitScale


def build_plane_section(settings: Sequence[SettingSummary]) -> Section | None:
    """Build the plane with a menu of workload, board and kind.

    Args:
        settings: All settings.

    Returns:
        The section, or None if no power was metered.
    """
    title = "Time and energy"
    both = [one for one in settings if one.get_mean("energy_j") is not None]
    if not both:
        return None
    groups: dict[PlaneGroup, list[SettingSummary]] = {}
    for one in both:
        groups.setdefault((one.point.workload, one.point.board, one.point.kind), []).append(one)
    groups = {group: some for group, some in groups.items() if len(some) > 1}
    if not groups:
        return Section(title, "Each board has one setting of each workload: there is nothing to choose from.", ())
    lead = (
        "Each mark is a setting: what an epoch took and what it used. Coloured: no other setting is both faster and "
        "cheaper. Faint: another one is."
    )
    return Section(title, lead, (_build_chart(groups),))


def _build_chart(groups: dict[PlaneGroup, list[SettingSummary]]) -> Chart:
    shown = list(groups.items())[:MAX_VIEWS]
    most = min(MAX_DOTS, MAX_DOTS_IN_ALL // len(shown))
    frames = []
    for (workload, board, kind), settings in shown:
        data, layout = _build_view(settings, most)
        front = sum(_mark_front(settings, choose_basis(settings)))
        left = max(0, len(settings) - front - most)
        told = f"{len(settings):,} settings, {front} on the front" + (f"; {left:,} dominated not drawn" if left else "")
        frames.append(ChartFrame(f"{workload}, {board}, {KIND_NAMES[kind]}", data, layout, told))
    caption = "Bars: 95 % intervals of the settings on the front."
    if len(shown) < len(groups):
        caption += f" The menu has the first {len(shown)} of {len(groups)}."
    if len(frames) == 1:
        (only,) = frames
        return Chart(
            "plane",
            title=escape(f"{only.label}: {only.told}"),
            caption=caption,
            data=only.data,
            layout=only.layout,
            height_px=430,
        )
    return Chart(
        "plane",
        title="Which settings no other beats",
        caption=caption,
        data=[],
        layout={},
        height_px=430,
        frames=tuple(frames),
        menu="show",
    )


def _mark_front(settings: Sequence[SettingSummary], basis: FigureBasis) -> list[bool]:
    times = np.array([basis.get_mean(one, "e2e_s") for one in settings], dtype=np.float64)
    joules = np.array([basis.get_mean(one, "energy_j") for one in settings], dtype=np.float64)
    return [bool(one) for one in front_mask(times, joules)]


def _build_view(settings: Sequence[SettingSummary], most: int) -> tuple[list[Trace], dict[str, Any]]:
    basis = choose_basis(settings)
    marked = _mark_front(settings, basis)
    front = sorted(
        (one for one, best in zip(settings, marked, strict=True) if best), key=lambda one: _setting_time_s(one, basis)
    )
    others = [one for one, best in zip(settings, marked, strict=True) if not best]
    if len(others) > most:
        rows = np.sort(np.random.default_rng(0).permutation(len(others))[:most])
        others = [others[int(row)] for row in rows]
    style = _PlaneStyle(
        basis,
        time_scale([basis.get_mean(one, "e2e_s") for one in settings]),
        energy_scale([basis.get_mean(one, "energy_j") for one in settings]),
    )
    data = [_make_dominated_trace(others, style), _make_front_trace(front, style)]
    named = _find_named_modes(settings, basis)
    if named:
        data.append(_make_named_modes_trace(named, style))
    layout = {
        "xaxis": axis(f"time of {basis.title} ({style.times.unit})"),
        "yaxis": axis(f"energy of {basis.title} ({style.joules.unit})"),
        "legend": LEGEND,
        "hovermode": "closest",
    }
    return data, layout


def _make_trace(settings: Sequence[SettingSummary], style: _PlaneStyle) -> Trace:
    return {
        "type": "scatter",
        "x": [style.times.convert(style.basis.get_mean(one, "e2e_s")) for one in settings],
        "y": [style.joules.convert(style.basis.get_mean(one, "energy_j")) for one in settings],
        "hovertext": [_make_hover_text(one, style.basis) for one in settings],
        "hoverinfo": "text",
        "customdata": [one.key for one in settings],
    }


def _make_hover_text(one: SettingSummary, basis: FigureBasis) -> str:
    time, energy, power = (basis.get_estimate(one, field) for field in ("e2e_s", "energy_j", "power_w"))
    figures = (
        f"{format_with_interval(time, 's')}, {format_with_interval(energy, 'J')}, {format_with_interval(power, 'W')}"
    )
    return f"<b>{escape(format_setting(one.point))}</b><br>{figures}<br>point {one.key}"


def _make_dominated_trace(settings: Sequence[SettingSummary], style: _PlaneStyle) -> Trace:
    marker = {"color": GREY, "size": 7, "opacity": 0.5}
    return {**_make_trace(settings, style), "mode": "markers", "name": "beaten by another", "marker": marker}


def _make_front_trace(front: Sequence[SettingSummary], style: _PlaneStyle) -> Trace:
    return {
        **_make_trace(front, style),
        "mode": "lines+markers",
        "name": "front",
        "line": {"color": LINE_COLOURS[0], "width": 2},
        "marker": {"color": LINE_COLOURS[0], "size": 8},
        "error_x": make_error_bars(
            [style.basis.get_estimate(one, "e2e_s") for one in front], style.times.per, LINE_COLOURS[0]
        ),
        "error_y": make_error_bars(
            [style.basis.get_estimate(one, "energy_j") for one in front], style.joules.per, LINE_COLOURS[0]
        ),
    }


def _find_named_modes(settings: Sequence[SettingSummary], basis: FigureBasis) -> list[tuple[str, SettingSummary]]:
    """Return the fastest setting of each named power mode."""
    found: dict[str, SettingSummary] = {}
    presets = preset_names(settings[0].point.board)
    for one in settings:
        mode = one.point.mode
        name = next((word for each, word in presets.items() if mode is not None and is_same_mode(each, mode)), None)
        if name is not None and (
            name not in found or _setting_time_s(one, basis) < _setting_time_s(found[name], basis)
        ):
            found[name] = one
    return list(found.items())


def _setting_time_s(setting: SettingSummary, basis: FigureBasis) -> float:
    return basis.get_mean(setting, "e2e_s") or 0.0


def _make_named_modes_trace(named: Sequence[tuple[str, SettingSummary]], style: _PlaneStyle) -> Trace:
    return {
        **_make_trace([one for _, one in named], style),
        "mode": "markers+text",
        "name": "named power modes, each at its fastest",
        "text": [escape(name) for name, _ in named],
        "textposition": "top center",
        "textfont": {"size": 11.5},
        "cliponaxis": False,
        "marker": {"symbol": "star", "size": 14, "color": ALARM, "line": {"width": 1.2, "color": "white"}},
    }

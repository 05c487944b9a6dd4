"""The time-energy plane: all settings, the Pareto front, and the named power modes, numbered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from experiments.report.characterisation.chart_elements import LINE_COLOURS, format_with_interval, make_error_bars
from experiments.report.characterisation.setting_summary import (
    FigureBasis,
    SettingSummary,
    choose_basis,
    find_preset_name,
)
from experiments.report.chart import (
    Chart,
    ChartFrame,
    Trace,
    axis,
    legend_layout,
    line_trace,
    menu_chart,
    scatter_trace,
    xy_layout,
)
from experiments.report.page import Section
from experiments.report.palette import ALARM, GREY
from experiments.report.quantities import UnitScale, energy_scale, time_scale
from fedge.characterisation.point_knobs import KIND_NAMES, describe_point
from fedge.modes import front_mask

MAX_DOTS = 1200
"""Dominated settings drawn in one view; with the next two constants, a default that limits the page's size."""
MAX_VIEWS = 24
MAX_DOTS_IN_ALL = 8000
"""Dominated settings drawn in all views together."""
NEAR = (0.045, 0.06)
"""Distance below which named modes share a label, as shares of the axes: about the size of a label."""
PlaneGroup = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class _PlaneStyle:
    """Style that all marks of a view share: the basis of the values and the axes' units."""

    basis: FigureBasis
    times: UnitScale
    joules: UnitScale

    def locate(self, setting: SettingSummary) -> tuple[float | None, float | None]:
        """Return a setting's time and energy in the axes' units."""
        time_s, energy_j = (self.basis.get_mean(setting, field) for field in ("e2e_s", "energy_j"))
        return self.times.convert(time_s), self.joules.convert(energy_j)


def build_plane_section(settings: Sequence[SettingSummary]) -> Section | None:
    """Build the plane with a menu of workload, board and kind; None if no power was metered."""
    groups: dict[PlaneGroup, list[SettingSummary]] = {}
    for one in settings:
        if one.get_mean("energy_j") is not None:
            groups.setdefault((one.point.workload, one.point.board, one.point.kind), []).append(one)
    if not groups:
        return None
    title = "Time against energy"
    groups = {group: some for group, some in groups.items() if len(some) > 1}
    if not groups:
        return Section(title, "Each board has only one setting of each workload.")
    lead = "Time and energy of an epoch for each setting. Coloured: the Pareto front. Faint: dominated settings."
    return Section(title, lead, (_build_chart(groups),))


def _build_chart(groups: dict[PlaneGroup, list[SettingSummary]]) -> Chart:
    listed = list(groups.items())[:MAX_VIEWS]
    most = min(MAX_DOTS, MAX_DOTS_IN_ALL // len(listed))
    frames = tuple(
        _make_frame(f"{workload}, {board}, {KIND_NAMES[kind]}", settings, most)
        for (workload, board, kind), settings in listed
    )
    caption = "Bars: 95 % intervals of the settings on the front."
    if any(len(frame.data) > 2 for frame in frames):
        caption += " Stars: the power modes with a name, each at its fastest; numbers as in the legend."
    if len(listed) < len(groups):
        caption += f" The menu has the first {len(listed)} of {len(groups)}."
    return menu_chart("plane", "Pareto front of settings", frames, caption=caption, height_px=380)


def _make_frame(label: str, settings: Sequence[SettingSummary], most: int) -> ChartFrame:
    basis = choose_basis(settings)
    times_s, energies_j = ([basis.get_mean(one, field) for one in settings] for field in ("e2e_s", "energy_j"))
    style = _PlaneStyle(basis, time_scale(times_s), energy_scale(energies_j))
    on_front = front_mask(np.array(times_s, dtype=np.float64), np.array(energies_j, dtype=np.float64))
    front = sorted(
        (one for one, best in zip(settings, on_front, strict=True) if best), key=lambda one: _setting_time_s(one, basis)
    )
    others = [one for one, best in zip(settings, on_front, strict=True) if not best]
    hidden = max(0, len(others) - most)
    if hidden:
        rows = np.sort(np.random.default_rng(0).permutation(len(others))[:most])
        others = [others[int(row)] for row in rows]
    named = _group_named_modes(_find_named_modes(settings, basis), settings, style)
    data = [_make_dominated_trace(others, style), _make_front_trace(front, style)]
    data += [_make_named_modes_trace(group, style) for group in named]
    layout = xy_layout(
        axis(f"time of {basis.title} ({style.times.unit})"),
        axis(f"energy of {basis.title} ({style.joules.unit})"),
        legend_layout(len(data), [trace["name"] for trace in data]),
    )
    omitted = f"; {hidden:,} dominated not shown" if hidden else ""
    return ChartFrame(label, data, layout, f"{len(settings):,} settings, {len(front)} on the front{omitted}")


def _setting_time_s(setting: SettingSummary, basis: FigureBasis) -> float:
    return basis.get_mean(setting, "e2e_s") or 0.0


def _mark_settings(settings: Sequence[SettingSummary], style: _PlaneStyle) -> dict[str, Any]:
    places = [style.locate(one) for one in settings]
    return {
        "x": [x for x, _ in places],
        "y": [y for _, y in places],
        "hover": [_describe_setting(one, style.basis) for one in settings],
        "customdata": [one.key for one in settings],
    }


def _describe_setting(one: SettingSummary, basis: FigureBasis) -> str:
    units = {"e2e_s": "s", "energy_j": "J", "power_w": "W"}
    figures = ", ".join(format_with_interval(basis.get_estimate(one, field), unit) for field, unit in units.items())
    return Markup("<b>{}</b><br>{}<br>point {}").format(describe_point(one.point), figures, one.key)


def _make_dominated_trace(settings: Sequence[SettingSummary], style: _PlaneStyle) -> Trace:
    return scatter_trace(
        "dominated", **_mark_settings(settings, style), marker={"color": GREY, "size": 7, "opacity": 0.5}
    )


def _make_front_trace(front: Sequence[SettingSummary], style: _PlaneStyle) -> Trace:
    colour = LINE_COLOURS[0]
    times, joules = ([style.basis.get_estimate(one, field) for one in front] for field in ("e2e_s", "energy_j"))
    return line_trace(
        "front",
        **_mark_settings(front, style),
        colour=colour,
        markers=True,
        marker={"color": colour, "size": 8},
        error_x=make_error_bars(times, style.times.per, colour),
        error_y=make_error_bars(joules, style.joules.per, colour),
    )


# Named power modes ----------------------------------------------------------------------------------------------------

NamedMode = tuple[str, SettingSummary]


def _find_named_modes(settings: Sequence[SettingSummary], basis: FigureBasis) -> list[NamedMode]:
    """Return the fastest setting of each named power mode, the fastest mode first."""
    fastest: dict[str, SettingSummary] = {}
    for one in sorted(settings, key=lambda one: _setting_time_s(one, basis)):
        name = find_preset_name(one.point.board, one.point.mode)
        if name is not None:
            fastest.setdefault(name, one)
    return list(fastest.items())


def _group_named_modes(
    named: Sequence[NamedMode], settings: Sequence[SettingSummary], style: _PlaneStyle
) -> list[list[tuple[int, NamedMode]]]:
    """Number the modes, and group those whose labels would overlap among the settings of the view."""
    least = np.array(NEAR) * np.ptp(np.array([style.locate(one) for one in settings], dtype=np.float64), axis=0)
    places = [np.array(style.locate(one), dtype=np.float64) for _, one in named]
    groups: list[list[int]] = []
    for row, place in enumerate(places):
        near = (group for group in groups if (np.abs(place - places[group[0]]) <= least).all())
        group = next(near, None)
        if group is None:
            groups.append([row])
        else:
            group.append(row)
    return [[(row + 1, named[row]) for row in group] for group in groups]


def _make_named_modes_trace(group: Sequence[tuple[int, NamedMode]], style: _PlaneStyle) -> Trace:
    numbers = [number for number, _ in group]
    consecutive = len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1
    label = f"{numbers[0]}–{numbers[-1]}" if consecutive else ", ".join(map(str, numbers))
    return scatter_trace(
        ", ".join(f"{number} {name}" for number, (name, _) in group),
        **_mark_settings([one for _, (_, one) in group], style),
        mode="markers+text",
        marker={"symbol": "star", "size": 13, "color": ALARM, "line": {"width": 1.2, "color": "white"}},
        text=[label, *[""] * (len(group) - 1)],
        textposition="top center",
        textfont={"size": 12},
        cliponaxis=False,
    )

"""Write Grafana's dashboards of the fleet and of Ray's metrics into the monitoring role; the files are generated."""
# ruff: noqa: INP001 - a program beside the playbooks

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "roles" / "monitoring" / "files" / "dashboards"
SOURCE = {"type": "prometheus", "uid": "${source}"}
COLUMNS = 24
"""Columns of Grafana's grid."""
HEIGHTS = {"stat": 4, "timeseries": 8, "table": 9}
SCHEMA = 39
"""Schema version of Grafana 10; newer releases convert it when they read it."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel of a dashboard.

    Attributes:
        queries: Pairs of legend and PromQL expression.
        kind: Type of the panel: ``stat``, ``timeseries`` or ``table``.
    """

    title: str
    queries: Sequence[tuple[str, str]]
    unit: str = "none"
    width: int = 12
    kind: str = "timeseries"
    about: str = ""
    stacked: bool = False


OF = '{device=~"$device",board=~"$board"}'
KINDS = '{device=~"$device"}'
FLEET = (
    Panel("Energy of the run", queries=[("", f"sum(fedge_run_energy_joules{OF})")], unit="joule", width=4, kind="stat"),
    Panel("Power now", queries=[("", f"sum(fedge_board_power_watts{OF})")], unit="watt", width=4, kind="stat"),
    Panel("Accuracy", queries=[("", "fedge_run_accuracy_ratio")], unit="percentunit", width=4, kind="stat"),
    Panel("Last round", queries=[("", "fedge_round_duration_seconds")], unit="s", width=4, kind="stat"),
    Panel("Boards heard of", queries=[("", f"sum(fedge_board_up{OF})")], unit="none", width=4, kind="stat"),
    Panel("Oldest sample", queries=[("", f"max(fedge_board_sample_age_seconds{OF})")], unit="s", width=4, kind="stat"),
    Panel("Power by kind", [("{{device}}", f"sum by (device) (fedge_board_power_watts{OF})")], "watt", stacked=True),
    Panel("Power by board", [("{{board}}", f"sum by (board) (fedge_board_power_watts{OF})")], "watt"),
    Panel(
        "Energy by kind, in an hour",
        [("{{device}}", f"sum by (device) (increase(fedge_board_energy_joules_total{OF}[1h]))")],
        "joule",
        stacked=True,
        about="A board tells its energy once per round, when the round is over.",
    ),
    Panel("Energy of the run by board", [("{{board}}", f"sum by (board) (fedge_run_energy_joules{OF})")], "joule"),
    Panel(
        "Hottest",
        [("{{device}}", f"max by (device) (fedge_board_temperature_celsius{OF})")],
        "celsius",
    ),
    Panel("Temperature by board", [("{{board}}", f"max by (board) (fedge_board_temperature_celsius{OF})")], "celsius"),
    Panel(
        "Round time",
        [("time", "fedge_round_duration_seconds"), ("deadline", "fedge_round_deadline_seconds")],
        "s",
    ),
    Panel("Accuracy by time", [("accuracy", "fedge_run_accuracy_ratio")], "percentunit"),
    Panel("Boards by state", [("{{state}}", f"sum by (state) (fedge_boards{KINDS})")], "none", stacked=True),
    Panel("Results in an hour", [("{{status}}", "sum by (status) (increase(fedge_results_total[1h]))")], stacked=True),
    Panel(
        "Age of the last sample",
        [("{{board}}", f"max by (board) (fedge_board_sample_age_seconds{OF})")],
        "s",
        about="A board tells of itself once a second. Boards of an emulated fleet tell nothing once their run is over.",
    ),
    Panel(
        "Refused telemetry in an hour",
        [("{{reason}}", f"sum by (reason) (increase(fedge_board_refused_messages_total{OF}[1h]))")],
        about="Malformed, too large, sent twice, out of order, in another board's name, or ahead of time.",
    ),
    Panel("Saved against MAXN", [("{{baseline}}", "fedge_run_saving_ratio")], "percentunit"),
    Panel("Progress of the round", [("{{board}}", f"max by (board) (fedge_board_progress_ratio{OF})")], "percentunit"),
    Panel(
        "Boards",
        [
            ("Power (W)", f"sum by (board, device) (fedge_board_power_watts{OF})"),
            ("Energy of the run (J)", f"sum by (board, device) (fedge_run_energy_joules{OF})"),
            ("Temperature (°C)", f"max by (board, device) (fedge_board_temperature_celsius{OF})"),
            ("Age (s)", f"max by (board, device) (fedge_board_sample_age_seconds{OF})"),
            ("Refused", f"sum by (board, device) (fedge_board_refused_messages_total{OF})"),
        ],
        width=24,
        kind="table",
    ),
)
RUN = '{run=~"$run"}'
RAY = (
    Panel("Energy", queries=[("", f"sum(ray_fedge_energy_joules_total{RUN})")], unit="joule", width=6, kind="stat"),
    Panel("Power", queries=[("", f"sum(ray_fedge_power_watts{RUN})")], unit="watt", width=6, kind="stat"),
    Panel(
        "Slowest board's round", queries=[("", f"max(ray_fedge_round_seconds{RUN})")], unit="s", width=6, kind="stat"
    ),
    Panel("Accuracy", queries=[("", f"max(ray_fedge_accuracy_ratio{RUN})")], unit="percentunit", width=6, kind="stat"),
    Panel("Power by kind", [("{{device}}", f"sum by (device) (ray_fedge_power_watts{RUN})")], "watt", stacked=True),
    Panel("Power by board", [("{{board}}", f"sum by (board) (ray_fedge_power_watts{RUN})")], "watt"),
    Panel("Energy by board", [("{{board}}", f"sum by (board) (ray_fedge_energy_joules_total{RUN})")], "joule"),
    Panel("Round time by board", [("{{board}}", f"max by (board) (ray_fedge_round_seconds{RUN})")], "s"),
    Panel("Progress by board", [("{{board}}", f"max by (board) (ray_fedge_progress_ratio{RUN})")], "percentunit"),
    Panel("Temperature by board", [("{{board}}", f"max by (board) (ray_fedge_temperature_celsius{RUN})")], "celsius"),
    Panel(
        "Power modes",
        [("{{mode}}", f"count by (mode) (ray_fedge_mode_info{RUN} > 0)")],
        width=24,
        about="How many boards are in which mode; of boards that are shown by kind no mode is told.",
        stacked=True,
    ),
)


def dashboard(uid: str, title: str, panels: Sequence[Panel], variables: Mapping[str, str]) -> Json:
    """Return a dashboard, with its panels in reading order, in the form that Grafana reads from a file.

    ``uid`` is stable. ``variables`` are Prometheus label queries by variable name.
    """
    return {
        "uid": uid,
        "title": title,
        "tags": ["fedge"],
        "schemaVersion": SCHEMA,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [_source_variable(), *(_make_variable(name, query) for name, query in variables.items())]
        },
        "annotations": {"list": []},
        "panels": [_make_panel(i, panel, at) for i, (panel, at) in enumerate(_place_panels(panels), start=1)],
    }


def _source_variable() -> Json:
    """Return the variable that selects the data source; by default the role's own, called fedge."""
    current = {"text": "fedge", "value": "fedge"}
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus", "current": current}


def _make_variable(name: str, query: str) -> Json:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        # Above 1,000 boards metrics are aggregated by kind, and no series has a board label.
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _place_panels(panels: Sequence[Panel]) -> list[tuple[Panel, Json]]:
    """Place the panels from left to right, starting a new row when one is full."""
    placed, x, y, row = [], 0, 0, 0
    for panel in panels:
        if x + panel.width > COLUMNS:
            x, y = 0, y + row
        row = HEIGHTS[panel.kind]
        placed.append((panel, {"x": x, "y": y, "w": panel.width, "h": row}))
        x += panel.width
    return placed


def _make_panel(number: int, panel: Panel, at: Json) -> Json:
    table = panel.kind == "table"
    targets = [_make_target(i, legend, query, panel.kind) for i, (legend, query) in enumerate(panel.queries)]
    custom = {"stacking": {"mode": "normal" if panel.stacked else "none"}, "fillOpacity": 10} if not table else {}
    made: Json = {
        "id": number,
        "title": panel.title,
        "description": panel.about,
        "type": panel.kind,
        "datasource": SOURCE,
        "gridPos": at,
        "targets": targets,
        # A palette that colour-blind readers can distinguish.
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "custom": custom, "color": {"mode": "palette-classic-by-name"}},
            "overrides": _column_overrides(panel) if table else [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}} if panel.kind == "timeseries" else {},
    }
    if table:
        made["transformations"] = [{"id": "merge", "options": {}}]
    return made


def _column_overrides(panel: Panel) -> list[Json]:
    """Return the overrides that name a table's columns."""
    return [
        {
            "matcher": {"id": "byName", "options": f"Value #{chr(ord('A') + i)}"},
            "properties": [{"id": "displayName", "value": legend}],
        }
        for i, (legend, _) in enumerate(panel.queries)
    ]


def _make_target(i: int, legend: str, query: str, kind: str) -> Json:
    ways = {"timeseries": {"range": True}, "stat": {"instant": True}, "table": {"instant": True, "format": "table"}}
    return {"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": query, "legendFormat": legend, **ways[kind]}


def dashboards() -> dict[str, Json]:
    """Return each file's name and content."""
    variables = {
        "device": "label_values(fedge_board_up, device)",
        "board": 'label_values(fedge_board_up{device=~"$device"}, board)',
    }
    return {
        "fedge-fleet.json": dashboard("fedge-fleet", "fedge: the fleet", FLEET, variables),
        "fedge-ray.json": dashboard(
            "fedge-ray", "fedge: Ray's metrics", RAY, {"run": "label_values(ray_fedge_power_watts, run)"}
        ),
    }


def text(content: Json) -> str:
    """Return a file's text."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def main() -> int:
    """Write the files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, content in dashboards().items():
        (FOLDER / name).write_text(text(content), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

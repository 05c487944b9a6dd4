"""Grafana's dashboards: files that their program wrote, and queries that a real Prometheus understands and answers."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from contracts.processes import wait_for
from contracts.programs import load_program
from contracts.prometheus import needs_prometheus, prometheus

from server.dashboard.prometheus_metrics import CounterTotals, build_families, render_exposition
from server.dashboard.views import BoardView, FleetView, RoundPoint, RunInfo, Summary
from server.exporters import ray_actor, ray_boards

ANSIBLE = Path(__file__).resolve().parents[2] / "ansible"
FOLDER = ANSIBLE / "roles" / "monitoring" / "files" / "dashboards"
NOW_S = 1_800_000_000.0
VARIABLES = {"$device": ".*", "$board": ".*", "$run": ".*"}


program = load_program(ANSIBLE / "dashboards.py")
NAMES = sorted(path.name for path in FOLDER.glob("*.json"))


def board_of(name: str) -> Any:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def queries(name: str) -> list[str]:
    return [target["expr"] for panel in board_of(name)["panels"] for target in panel["targets"]]


def filled(query: str) -> str:
    """The query with Grafana's variables as they are when everything is chosen."""
    for variable, value in VARIABLES.items():
        query = query.replace(variable, value)
    assert "$" not in query, query
    return query


def whole_view(energy_j: float = 50.0) -> FleetView:
    """A fleet of which everything is known."""
    boards = tuple(
        BoardView(
            f"{device}-{i}",
            device,
            "training",
            mode="4C",
            power_w=5.0,
            temperature_c=40.0,
            progress=0.5,
            energy_j=energy_j,
            seen_at_s=NOW_S - i,
            refused={"huge": i},
        )
        for device in ("nano", "orin")
        for i in range(2)
    )
    point = RoundPoint(1, 0.0, 9.0, 9.0, 10.0, 200.0, 0.5, 1.0, 4, 4, 0, 0, 0, "")
    summary = Summary(1, 0.5, 1.0, 9.0, 10.0, 9.0, 200.0, 5.0, 0.2, 0.1, 1)
    run = RunInfo("test", "balanced", "local", "going", 3, NOW_S)
    return FleetView(run, summary, (point,), boards, refused={"huge": 2})


def ray_page() -> bytes:
    """What Ray shows of the mirror's metrics: its own prefix, and counters with ``_sum_known``."""
    tags = 'run="r",board="nano-1",device="nano"'
    counters = {ray_actor.ENERGY[0]}
    lines = [f"ray_{name}{{{tags}}} 1" for name, _ in ray_actor.GAUGES.values()]
    lines += [f"ray_{name}_total{{{tags}}} 1" for name in sorted(counters)]
    lines += [f'ray_{ray_actor.MODE[0]}{{{tags},mode="4C"}} 1', 'ray_fedge_accuracy_ratio{run="r"} 0.5']
    return "\n".join([*lines, ""]).encode()


@contextmanager
def served(pages: dict[str, Any]) -> Iterator[dict[str, str]]:
    """A server of ``/metrics`` for each page; yields where they are, as host:port."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.server.page()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Nothing is written."""

    servers = {}
    for name, page in pages.items():
        servers[name] = ThreadingHTTPServer(("127.0.0.1", 0), Page)
        servers[name].page = page
    threads = [threading.Thread(target=one.serve_forever, daemon=True) for one in servers.values()]
    for thread in threads:
        thread.start()
    try:
        yield {name: f"127.0.0.1:{one.server_port}" for name, one in servers.items()}
    finally:
        for one in servers.values():
            one.shutdown()
            one.server_close()


def test_the_files_are_what_their_program_writes():
    made = {name: program.text(content) for name, content in program.dashboards().items()}

    assert made == {name: (FOLDER / name).read_text(encoding="utf-8") for name in NAMES}, "run ansible/dashboards.py"


@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_has_what_grafana_wants_of_it(name):
    found = board_of(name)
    ids = [panel["id"] for panel in found["panels"]]

    assert found["uid"] == name.removesuffix(".json")
    assert len(ids) == len(set(ids))
    assert all(panel["datasource"]["uid"] == "${source}" for panel in found["panels"])
    assert found["templating"]["list"][0]["type"] == "datasource"


@pytest.mark.parametrize("name", NAMES)
def test_no_two_panels_lie_on_each_other(name):
    taken: set[tuple[int, int]] = set()
    for panel in board_of(name)["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken
        taken |= cells


def test_every_metric_of_the_fleets_dashboard_is_one_that_there_is():
    known = {family.name for family in build_families(whole_view(), NOW_S)}
    asked = {name for query in queries("fedge-fleet.json") for name in re.findall(r"fedge_\w+", query)}

    assert asked
    assert asked <= known


def test_every_metric_of_rays_dashboard_is_one_that_the_mirror_has():
    import inspect

    source = inspect.getsource(ray_actor) + inspect.getsource(ray_boards)
    asked = {name for query in queries("fedge-ray.json") for name in re.findall(r"ray_(fedge_\w+)", query)}

    assert asked
    assert all(f'"{name.removesuffix("_total")}"' in source for name in asked)


@pytest.mark.slow
@needs_prometheus
def test_prometheus_answers_every_query_of_every_dashboard(tmp_path):
    totals, seen = CounterTotals(), []

    def fleet_page() -> bytes:
        seen.append(1)
        return render_exposition(whole_view(50.0 * len(seen)), NOW_S, totals)

    with (
        served({"fleet": fleet_page, "ray": ray_page}) as ports,
        prometheus(tmp_path / "prometheus", ports) as found,
    ):
        # An increase is of two looks at least.
        wait_for(lambda: found.value("count_over_time(fedge_run_info[1h]) >= 3"), "three looks")
        wait_for(lambda: found.value("count(ray_fedge_power_watts)"), "a look at Ray's")
        empty = [query for name in NAMES for query in queries(name) if not found.asked(filled(query))]

    assert sum(len(queries(name)) for name in NAMES) >= 30
    assert not empty

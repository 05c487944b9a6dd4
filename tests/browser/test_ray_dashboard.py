"""`fedge run --ray-dashboard` for real: Ray's pages in a browser, its metrics in Prometheus, nothing left behind."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from browser.chromium import Page
from contracts.processes import list_commands

from experiments.backends import ray_cluster, ray_dashboard
from experiments.backends.sim_backend import find_free_port
from fedge.errors import BadInput
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
OWN = "FEDGE_TEST_OF_RAY"
"""In the environment of every process of the run, whoever starts it."""
FLEET = "[{device: nano, count: 2}, {device: xavier-nx}, {device: agx-orin-64gb}]"
BOARDS = {
    "nano-1": "nano-1 (Jetson Nano 4GB)",
    "nano-2": "nano-2 (Jetson Nano 4GB)",
    "xavier-nx-1": "xavier-nx-1 (Jetson Xavier NX 8GB)",
    "agx-orin-64gb-1": "agx-orin-64gb-1 (Jetson AGX Orin 64GB)",
}
SCRAPE_S = 3
"""Longer than the 2 s after which Ray's processes tell anew, and shorter than the 10 s that Ray writes."""
LIMIT_S = 200.0
"""Far more than it takes on an idle machine."""
TEXT = "document.body.innerText"
RAYS_OWN = re.compile(
    r"401 \(Unauthorized\)|status code 401|500 \(Internal Server Error\).*/api/(grafana|prometheus)_health"
)
"""What Ray's pages say themselves: before the log-in, and where there is no Grafana."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run that goes on until it is interrupted."""

    process: subprocess.Popen[str]
    folder: Path
    output: Path
    dashboard: str
    token_file: Path
    prometheus: str

    def ask(self, query: str) -> dict[str, float]:
        """PromQL: value by board."""
        with urlopen(f"{self.prometheus}/api/v1/query?query={quote(query)}", timeout=10) as told:
            found = json.load(told)["data"]["result"]
        return {each["metric"].get("board", ""): float(each["value"][1]) for each in found}


@contextmanager
def _prometheus(temp: Path, folder: Path, port: int) -> Iterator[None]:
    """Debian's Prometheus with the configuration that Ray writes, only that it asks more often."""
    written = (temp / "r" / "session_latest" / "metrics" / "prometheus" / "prometheus.yml").read_text()
    assert "scrape_interval: 10s" in written
    (folder / "prometheus.yml").write_text(written.replace("scrape_interval: 10s", f"scrape_interval: {SCRAPE_S}s"))
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(10)


def _told(output: Path, process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    ends_s = time.monotonic() + LIMIT_S
    while time.monotonic() < ends_s and process.poll() is None:
        if found := re.search(pattern, output.read_text()):
            return found
        time.sleep(0.1)
    pytest.fail(f"no {pattern!r} in: {output.read_text()[-2000:]}")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    if shutil.which("prometheus") is None:
        pytest.skip("needs Prometheus: apt-get install prometheus")
    place = tmp_path_factory.mktemp("shown")
    folder, output, port = place / "run", place / "output", find_free_port()
    command = [
        *(sys.executable, "-m", "experiments.cli.main", "run", "experiments/configs/quickstart.yaml"),
        *("--backend", "sim", "--ray-dashboard", "--folder", str(folder), "--set", "rounds=2000"),
        *("--set", "workload.local_epochs=0.2"),
        *("--set", f"fleet={FLEET}"),
    ]
    host = f"http://127.0.0.1:{port}"
    env = os.environ | {OWN: str(os.getpid()), "RAY_PROMETHEUS_HOST": host, "PYTHONUNBUFFERED": "1"}
    with output.open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, text=True, env=env)
    try:
        found = _told(output, process, r"Ray dashboard: (\S+) .*token in (\S+)\n")
        token_file = Path(found.group(2))
        (place / "tsdb").mkdir()
        with _prometheus(token_file.parent, place / "tsdb", port):
            _told(output, process, r"round 1/")
            yield Run(process, folder, output, found.group(1), token_file, host)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


@pytest.fixture
def logged_in(run: Run, page: Page) -> Page:
    """Ray's pages after their own log-in."""
    page.resize(1900, 1500)
    page.open(f"{run.dashboard}/#/actors")
    field = "input[type=password]"
    if page.wait_for(f"document.querySelector('{field}') ? 'asked' : {TEXT}.includes('FedgeBoards')", 30) == "asked":
        page.click(field)
        page.type(run.token_file.read_text())
        page.wait_for("[...document.querySelectorAll('button')].some(b => b.innerText == 'SUBMIT' && !b.disabled)")
        page.press("Enter")
        page.wait_for(f"document.querySelector('{field}') === null", 30)
    return page


def _errors(page: Page) -> list[str]:
    return [error for error in page.console_errors if not RAYS_OWN.search(error)]


def test_the_token_is_for_its_owner_alone_and_nobody_gets_in_without(run, page):
    assert run.token_file.stat().st_mode & 0o777 == 0o600
    assert run.token_file.parent.stat().st_mode & 0o777 == 0o700
    page.open(run.dashboard)
    assert page.evaluate("fetch('/api/v0/actors').then(answer => answer.status)") == 401
    assert run.token_file.read_text() not in run.output.read_text()


def test_the_actors_page_lists_every_board_by_name(run, logged_in, artefacts):
    names = json.dumps([*BOARDS.values()])
    logged_in.wait_for(f"{names}.every(name => {TEXT}.includes(name))", 40)
    logged_in.screenshot(artefacts / "ray-actors.png")
    assert not _errors(logged_in)


OPENED = """(() => {
    const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (words.nextNode()) {
        if (words.currentNode.data.trim() === 'Task Table') { words.currentNode.parentElement.click(); return true; }
    }
    return false;
})()"""
"""Unfolds the table of tasks; true once it was there."""
TASKS = "fetch('/api/v0/tasks?limit=10000&detail=false').then(answer => answer.json())"


def test_the_jobs_page_has_tasks_named_after_the_boards(run, logged_in, artefacts):
    logged_in.open(f"{run.dashboard}/#/jobs/01000000")
    logged_in.wait_for(OPENED, 30)
    logged_in.wait_for(f"/\\t({'|'.join(BOARDS)})\\t/.test({TEXT})", 30)
    logged_in.screenshot(artefacts / "ray-tasks.png", whole=True)
    # The table shows ten at a time; what it reads names them all.
    names = logged_in.evaluate(f"{TASKS}.then(told => told.data.result.result.map(task => task.name))")
    assert set(BOARDS) <= set(names)
    assert not _errors(logged_in)


def test_prometheus_has_every_boards_figures_as_the_store_has_them(run):
    ends_s, energy = time.monotonic() + LIMIT_S, dict[str, float]()
    while time.monotonic() < ends_s and set(energy) != set(BOARDS):
        energy = run.ask("ray_fedge_energy_joules_total")
        time.sleep(0.5)
    # All from the same scrapes, which need not be of the same round.
    figures = {name: run.ask(f"ray_fedge_{name}") for name in ("round_seconds", "power_watts", "mode_info")}
    rows = read_rows(run.folder, ClientRow)
    for board in BOARDS:
        own = [row for row in rows if row.board == board]
        sums = accumulate(row.energy_j for row in own)
        assert any(energy[board] == pytest.approx(total, rel=1e-9) for total in sums), board
        assert figures["round_seconds"][board] in {row.end_s - row.start_s for row in own}
        assert 0 < figures["power_watts"][board] < 100
        assert figures["mode_info"][board] == 1


def test_ray_finds_the_prometheus_that_it_was_told_of_and_the_page_says_what_is_missing(run, logged_in, artefacts):
    assert logged_in.evaluate("fetch('/api/prometheus_health').then(answer => answer.status)") == 200
    assert logged_in.evaluate("fetch('/api/grafana_health').then(answer => answer.status)") == 500
    logged_in.open(f"{run.dashboard}/#/metrics")
    logged_in.wait_for(f"{TEXT}.includes('Set up Prometheus and Grafana')", 30)
    logged_in.screenshot(artefacts / "ray-metrics.png")


def test_a_run_elsewhere_finds_the_dashboard_by_the_clusters_address_and_its_token_alone(run):
    place = run.token_file.parent
    port = next(place.glob(ray_dashboard.GCS_PORT)).read_text()
    env = os.environ | ray_dashboard.SETTINGS | {"RAY_ADDRESS": f"127.0.0.1:{port}"}
    found = ray_cluster.find_dashboard(env | {"RAY_AUTH_TOKEN_PATH": str(run.token_file)})
    assert found == run.dashboard
    with pytest.raises(BadInput, match="which asks for another token; its token: RAY_AUTH_MODE=token"):
        ray_cluster.find_dashboard(env | {"RAY_AUTH_TOKEN": "f" * 64})


def test_after_ctrl_c_no_process_and_no_token_is_left(run):
    assert any("gcs_server" in line for line in list_commands(f"{OWN}={os.getpid()}"))
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(40) == 130
    assert "fedge resume" in run.output.read_text()
    assert not list_commands(f"{OWN}={os.getpid()}")
    assert not run.token_file.parent.exists()

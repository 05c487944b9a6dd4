"""Ray's dashboard for a run: a Ray of the run's own, on loopback and with a token, or the cluster that is there."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from experiments.backends.processes import Launch, Log, ending, pause, private, spawn
from experiments.backends.superlink import free_port
from fedge.errors import BadInput, RunFailed
from fedge.experiment import Experiment, ExporterSpec, boards

OPTION = "--ray-dashboard"
EXPORTER = "ray"
USUAL_PORT = 8265
"""Ray's own; another one is taken where it is not free."""
START_WITHIN_S = 180.0
"""A busy machine with two cores took 30 s."""
LONGEST_PLACE = 20
"""Characters: Ray puts sockets some 85 further down, and the system allows 107."""
NEEDED = ("aiohttp", "aiohttp_cors", "opencensus", "opentelemetry.exporter.prometheus", "prometheus_client")
"""What Ray itself looks for before it starts its dashboard."""
MISSING = "Ray without its dashboard"
INSTALL = "pip install 'fedge[ray-dashboard]'"
SETTINGS = {
    # Without "clusters" Ray takes 127.0.0.1 for its own address, and listens there alone.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    # How often processes tell their metrics; Ray's own 10 s are longer than many emulated rounds.
    "RAY_metrics_report_interval_ms": "2000",
    # Of each part of the dashboard; Ray's own 30 s are not enough on a busy machine.
    "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": "120",
}
ADDRESS = re.compile(r"view the dashboard at\s.*?127\.0\.0\.1:(\d+)", re.DOTALL)
ASKING = "import ray, sys; print('dashboard=' + str(ray.init(log_to_driver=False).dashboard_url or '')); ray.shutdown()"


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Where the dashboard is; ``token_file`` holds what its log-in asks for, None where that is not known here."""

    address: str
    token_file: Path | None = None

    def __str__(self) -> str:
        if self.token_file is None:
            return f"Ray dashboard: {self.address}"
        return f"Ray dashboard: {self.address} until the run ends; it asks for the token in {self.token_file}"


def check(experiment: Experiment, port: int | None, env: Mapping[str, str]) -> None:
    """Raise ``BadInput`` where the dashboard cannot be had, or a port of ours makes no sense."""
    joins = _joins(env)
    if experiment.backend == "local":
        raise BadInput(OPTION, "backend local, which has no Ray", "backend sim, or fleet with RAY_ADDRESS set")
    if experiment.backend == "fleet" and not joins:
        right = "RAY_ADDRESS set to the Ray cluster that is to show the boards"
        raise BadInput(OPTION, "backend fleet, whose boards are not on Ray", right)
    if joins and port is not None:
        raise BadInput(f"{OPTION}-port", str(port), f"no port: the cluster at {env['RAY_ADDRESS']} has its own")
    if not joins and not all(map(_there, NEEDED)):
        raise BadInput(OPTION, MISSING, INSTALL)


def mirrored(experiment: Experiment, env: Mapping[str, str]) -> Experiment:
    """The experiment with the exporter that shows its boards on Ray."""
    if any(spec.name == EXPORTER for spec in experiment.exporters):
        return experiment
    # A simulation is on the cluster itself; a fleet's server is not.
    apart = experiment.backend == "fleet"
    spec = ExporterSpec(name=EXPORTER, options={"address": env["RAY_ADDRESS"]} if apart else {})
    return experiment.model_copy(update={"exporters": (*experiment.exporters, spec)})


@contextlib.contextmanager
def shown(
    experiment: Experiment, folder: Path, port: int | None, on_poll: Callable[[], None] = lambda: None
) -> Iterator[Dashboard]:
    """Have a dashboard inside: a Ray head of the run's own, or the cluster at RAY_ADDRESS, which stays as it is.

    Inside, RAY_ADDRESS and the token are in this process's environment, for the run to find. The head has this
    environment too, so RAY_PROMETHEUS_HOST and RAY_GRAFANA_HOST reach the dashboard. Every process of the head
    ends with the block, whatever happens. Raises ``RunFailed`` for a Ray that does not start, or is not there.
    """
    if _joins(os.environ):
        yield Dashboard(_dashboard_of(folder))
        return
    with _temporary() as temp:
        token = secrets.token_hex(32)
        env = private(os.environ, folder) | SETTINGS | {"RAY_AUTH_TOKEN": token}
        launch = Launch(temp, folder / ".flwr", folder / "logs", env, on_poll)
        with ending(launch):
            address, dashboard = _head(launch, port, len(boards(experiment)))
            token_file = temp / "token"
            token_file.touch(mode=0o600)
            token_file.write_text(token, encoding="utf-8")
            inside = SETTINGS | {"RAY_ADDRESS": address, "RAY_AUTH_TOKEN": token}
            with _environment(inside):
                yield Dashboard(dashboard, token_file)


def _joins(env: Mapping[str, str]) -> bool:
    return env.get("RAY_ADDRESS", "local") not in {"", "local"}


def _there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it
        return False


@contextlib.contextmanager
def _temporary() -> Iterator[Path]:
    """A folder of this user's alone with a short path, since Ray's sockets lie in it; gone afterwards.

    Ray opens its own folder to everybody, so that one lies in this one.
    """
    place = tempfile.gettempdir()
    short = place if len(place) <= LONGEST_PLACE else "/tmp"  # noqa: S108 - a folder of its own is made in it
    temp = Path(tempfile.mkdtemp(prefix="fedge-ray-", dir=short))
    try:
        yield temp
    finally:
        shutil.rmtree(temp, ignore_errors=True)


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def _head(launch: Launch, port: int | None, n_nodes: int) -> tuple[str, str]:
    """Start the head and wait for it; its address, and the dashboard's."""
    log = Log.open(launch.logs / "ray.log")
    gcs = free_port()
    process = spawn(launch, command(launch.app_dir, gcs, port or _free(USUAL_PORT), n_nodes), log)
    deadline = time.monotonic() + START_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        found = ADDRESS.search(log.text())
        if found:
            return f"127.0.0.1:{gcs}", f"http://127.0.0.1:{found.group(1)}"
        pause(launch, 0.1)
    taken = f"; is port {port} free?" if port else ""
    raise RunFailed(f"Ray did not start{taken}\n{log.tail()}")


def command(temp: Path, gcs: int, port: int, n_nodes: int) -> list[str]:
    """What starts the head; every port that Ray would take a fixed number for is a free one."""
    return [
        *("ray", "start", "--head", "--block", "--disable-usage-stats"),
        *("--log-style", "record", "--log-color", "false"),
        *("--node-ip-address", "127.0.0.1", "--port", str(gcs), "--temp-dir", str(temp / "r")),
        *("--include-dashboard", "true", "--dashboard-host", "127.0.0.1", "--dashboard-port", str(port)),
        *("--dashboard-agent-listen-port", "0", "--ray-client-server-port", str(free_port())),
        *("--min-worker-port", "0", "--max-worker-port", "0"),
        *("--num-cpus", str(max(1, min(n_nodes, os.cpu_count() or 1)))),
    ]


def _free(port: int) -> int:
    """``port``, or another one where somebody listens on it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return free_port()
    return port


def _dashboard_of(folder: Path) -> str:
    """The dashboard's address as the cluster at RAY_ADDRESS tells it; asked by another process, which then leaves."""
    env = private(os.environ, folder)
    try:
        asked = subprocess.run(
            [sys.executable, "-c", ASKING], env=env, capture_output=True, text=True, timeout=START_WITHIN_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise RunFailed(f"the Ray cluster at {os.environ['RAY_ADDRESS']} does not answer") from error
    found = re.search(r"^dashboard=(.*)$", asked.stdout, re.MULTILINE)
    if not found:
        lines = asked.stderr.strip().splitlines()
        raise RunFailed(f"no Ray cluster at {os.environ['RAY_ADDRESS']}: {lines[-1] if lines else 'no word'}")
    if not found.group(1):
        raise RunFailed(f"the Ray cluster at {os.environ['RAY_ADDRESS']} runs without its dashboard")
    return found.group(1) if "://" in found.group(1) else f"http://{found.group(1)}"

"""Ray's dashboard for a run: a Ray of the run's own, on loopback and with a token, or the cluster that is there."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from experiments.backends import ray_cluster
from experiments.backends.run_processes import (
    Launch,
    RunLog,
    end_processes_on_exit,
    poll_and_sleep,
    private_environment,
    spawn,
)
from fedge.errors import BadInput, RunFailed
from fedge.experiment import Experiment, ExporterSpec, list_boards

OPTION = "--ray-dashboard"
EXPORTER = "ray"
USUAL_PORT = 8265
"""Ray's own; where it is taken, Ray takes one that is free."""
CLIENT_PORTS = range(10_002, 30_000)
"""Below those that Linux gives to connections. Chosen by us."""
STARTING_MESSAGE = "Ray and its dashboard start"
START_WITHIN_S = 180.0
"""A busy machine with two cores took 40 s."""
MAX_TEMP_PATH = 20
"""Characters: Ray puts sockets some 85 further down, and the system allows 107."""
REQUIRED_MODULES = ("aiohttp", "aiohttp_cors", "opencensus", "opentelemetry.exporter.prometheus", "prometheus_client")
"""What Ray itself looks for before it starts its dashboard."""
MISSING = "Ray without its dashboard"
INSTALL = "pip install 'fedge[ray-dashboard]'"
SETTINGS = {
    # Without "clusters" Ray takes 127.0.0.1 for its own address, and listens there alone.
    ray_cluster.LOOPBACK_VARIABLE: "0",
    "RAY_AUTH_MODE": "token",
    # How often processes tell their metrics; Ray's own 10 s are longer than many emulated rounds.
    "RAY_metrics_report_interval_ms": "2000",
    # Of the dashboard and of each part of it; Ray's own 60 s and 30 s are not enough on a busy machine.
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "170",
    "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": "120",
}
ADDRESS = re.compile(r"view the dashboard at\s.*?127\.0\.0\.1:(\d+)", re.DOTALL)
GCS_PORT = "r/session_latest/gcs_server_port_*"
"""The file in which the head notes the port that it took."""


@dataclass(frozen=True, slots=True)
class RayDashboard:
    """Where the dashboard is; ``token_file`` holds what its log-in asks for, None where that is not known here."""

    address: str
    token_file: Path | None = None

    def __str__(self) -> str:
        if self.token_file is None:
            return f"Ray dashboard: {self.address}"
        return f"Ray dashboard: {self.address} until the run ends; it asks for the token in {self.token_file}"


def check_dashboard(experiment: Experiment, port: int | None, env: Mapping[str, str]) -> None:
    """Raise ``BadInput`` where the dashboard cannot be had, or a port of ours makes no sense."""
    joins = ray_cluster.uses_cluster(env)
    if experiment.backend == "local":
        raise BadInput(OPTION, "backend local, which has no Ray", "backend sim, or fleet with RAY_ADDRESS set")
    if experiment.backend == "fleet" and not joins:
        right = "RAY_ADDRESS set to the Ray cluster that is to show the boards"
        raise BadInput(OPTION, "backend fleet, whose boards are not on Ray", right)
    if joins:
        if port is not None:
            raise BadInput(f"{OPTION}-port", str(port), f"no port: the cluster at {env['RAY_ADDRESS']} has its own")
        ray_cluster.check_address(env)
        return
    if not all(map(_is_installed, REQUIRED_MODULES)):
        raise BadInput(OPTION, MISSING, INSTALL)
    if port is not None and not _is_free(port):
        raise BadInput(f"{OPTION}-port", f"{port}, which is taken", "another port, or none: Ray then finds one")


def add_ray_exporter(experiment: Experiment, env: Mapping[str, str]) -> Experiment:
    """The experiment with the exporter that shows its boards on Ray."""
    if any(spec.name == EXPORTER for spec in experiment.exporters):
        return experiment
    # A simulation is on the cluster itself; a fleet's server is not.
    apart = experiment.backend == "fleet"
    spec = ExporterSpec(name=EXPORTER, options={"address": env["RAY_ADDRESS"]} if apart else {})
    return experiment.model_copy(update={"exporters": (*experiment.exporters, spec)})


@contextlib.contextmanager
def open_dashboard(
    experiment: Experiment, folder: Path, port: int | None, on_poll: Callable[[], None] = lambda: None
) -> Iterator[RayDashboard]:
    """Have a dashboard inside: a Ray head of the run's own, or the cluster at RAY_ADDRESS, which stays as it is.

    Inside, RAY_ADDRESS and the token are in this process's environment, for the run to find. The head has this
    environment too, so RAY_PROMETHEUS_HOST and RAY_GRAFANA_HOST reach the dashboard. Every process of the head
    ends with the block, whatever happens. Raises ``RunFailed`` for a Ray that does not start, and ``BadInput`` for a
    cluster that is not there.
    """
    if ray_cluster.uses_cluster(os.environ):
        yield RayDashboard(ray_cluster.find_dashboard(private_environment(os.environ, folder)))
        return
    with _temporary_folder() as temp:
        token = secrets.token_hex(32)
        env = private_environment(os.environ, folder) | SETTINGS | {"RAY_AUTH_TOKEN": token}
        launch = Launch(temp, flwr_home=folder / ".flwr", logs=folder / "logs", env=env, on_poll=on_poll)
        with end_processes_on_exit(launch):
            address, dashboard = _start_head(launch, port, len(list_boards(experiment)))
            token_file = temp / "token"
            token_file.touch(mode=0o600)
            token_file.write_text(token, encoding="utf-8")
            inside = SETTINGS | {"RAY_ADDRESS": address, "RAY_AUTH_TOKEN": token}
            with _set_environment(inside):
                yield RayDashboard(dashboard, token_file)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it
        return False


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    """A folder of this user's alone with a short path, since Ray's sockets lie in it; gone afterwards.

    Ray opens its own folder to everybody, so that one lies in this one.
    """
    place = tempfile.gettempdir()
    short = place if len(place) <= MAX_TEMP_PATH else "/tmp"  # noqa: S108 - a folder of its own is made in it
    temp = Path(tempfile.mkdtemp(prefix="fedge-ray-", dir=short))
    try:
        yield temp
    finally:
        shutil.rmtree(temp, ignore_errors=True)


@contextlib.contextmanager
def _set_environment(values: Mapping[str, str]) -> Iterator[None]:
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


def _start_head(launch: Launch, port: int | None, n_nodes: int) -> tuple[str, str]:
    """Start the head and wait for it; its address, and the dashboard's."""
    log = RunLog.open(launch.logs / "ray.log")
    wanted = port or (USUAL_PORT if _is_free(USUAL_PORT) else 0)
    process = spawn(launch, head_command(launch.app_dir, wanted, n_nodes), log)
    deadline = time.monotonic() + START_WITHIN_S
    over = False
    while time.monotonic() < deadline and not over:
        over = process.poll() is not None  # before the last look: it leaves once everything has started
        found = ADDRESS.search(log.text())
        if found:
            gcs = next(launch.app_dir.glob(GCS_PORT)).read_text(encoding="utf-8").strip()
            return f"127.0.0.1:{gcs}", f"http://127.0.0.1:{found.group(1)}"
        poll_and_sleep(launch, 0.1)
    how = "ended" if over else f"was not there after {START_WITHIN_S:g} s"
    raise RunFailed(f"Ray's head did not start: it {how}\n{log.tail()}")


def head_command(temp: Path, port: int, n_nodes: int) -> list[str]:
    """What starts the head with its dashboard at ``port``, 0 for any; for the rest Ray takes free ports.

    Not with ``--block``, which ends all when one part does: Ray Client gives up where the rest needs more than 30 s.
    """
    return [
        *("ray", "start", "--head", "--disable-usage-stats"),
        *("--log-style", "record", "--log-color", "false"),
        *("--node-ip-address", "127.0.0.1", "--port", "0", "--temp-dir", str(temp / "r")),
        *("--include-dashboard", "true", "--dashboard-host", "127.0.0.1", "--dashboard-port", str(port)),
        *("--dashboard-agent-listen-port", "0", "--ray-client-server-port", str(_choose_client_port())),
        *("--min-worker-port", "0", "--max-worker-port", "0"),
        *("--num-cpus", str(max(1, min(n_nodes, os.cpu_count() or 1)))),
    ]


def _choose_client_port() -> int:
    """A free port for Ray Client, the one that Ray does not choose itself.

    It is taken seconds later, so it is none of those that the system gives to whoever asks for any.
    """
    return next(port for port in iter(lambda: secrets.choice(CLIENT_PORTS), None) if _is_free(port))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True

"""Ray's dashboard for a run: on a private Ray head with token on loopback, or on an existing cluster."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
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
from fedge.child_processes import set_environment
from fedge.errors import BadInput, RunFailed
from fedge.experiment import Experiment, ExporterSpec
from fedge.extras import build_install_command
from fedge.studies.ray_session import (
    LOOPBACK_VARIABLE,
    OWN_RAY_VARIABLE,
    check_address,
    choose_port,
    is_free_port,
    temporary_ray_folder,
    uses_cluster,
)

OPTION = "--ray-dashboard"
EXPORTER = "ray"
USUAL_PORT = 8265
"""Ray's default port; if it is taken, Ray picks a free one."""
STARTING_MESSAGE = "Ray and its dashboard start"
START_WITHIN_S = 180.0
"""Limit for Ray's start, in seconds; it took 40 s on a busy machine with two cores."""
REQUIRED_MODULES = ("aiohttp", "aiohttp_cors", "opencensus", "opentelemetry.exporter.prometheus", "prometheus_client")
"""Modules that Ray requires for its dashboard."""
MISSING = "Ray without its dashboard"
INSTALL = build_install_command("ray-dashboard")
SETTINGS = {
    # Without "clusters", Ray uses 127.0.0.1 as its own address and listens only there.
    LOOPBACK_VARIABLE: "0",
    "RAY_AUTH_MODE": "token",
    # Ray's default of 15 would leave its workers almost nothing beside any other busy program.
    "RAY_worker_niceness": "0",
    # Interval of metrics; Ray's default of 10 s is longer than many emulated rounds.
    "RAY_metrics_report_interval_ms": "2000",
    # Start-up limits of the dashboard and its modules; Ray's defaults of 60 s and 30 s are too short on a busy machine.
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "170",
    "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": "120",
}
ADDRESS = re.compile(r"view the dashboard at\s.*?127\.0\.0\.1:(\d+)", re.DOTALL)
GCS_PORT = "r/session_latest/gcs_server_port_*"
"""File in which the head records its port."""


@dataclass(frozen=True, slots=True)
class RayDashboard:
    """Location of a dashboard.

    Attributes:
        token_file: File with the login token; None if it is not known here.
    """

    address: str
    token_file: Path | None = None

    def __str__(self) -> str:
        if self.token_file is None:
            return f"Ray dashboard: {self.address}"
        return f"Ray dashboard: {self.address} until the run ends; it asks for the token in {self.token_file}"


def check_dashboard(experiment: Experiment, port: int | None, env: Mapping[str, str]) -> None:
    """Check that the dashboard can be started, on ``port`` if it is given, or found.

    Raises:
        BadInput: If Ray's dashboard is not installed, the cluster has none, or a port was given for a cluster.
    """
    if experiment.backend == "local":
        raise BadInput(OPTION, "backend local, which has no Ray", "backend sim, or fleet with RAY_ADDRESS set")
    if experiment.backend == "fleet" and not uses_cluster(env):
        right = "RAY_ADDRESS set to the Ray cluster that is to show the boards"
        raise BadInput(OPTION, "backend fleet, whose boards are not on Ray", right)
    check_dashboard_port(port, env)


def check_dashboard_port(port: int | None, env: Mapping[str, str]) -> None:
    """Check that Ray's dashboard can be started, on ``port`` if it is given, or that a cluster may be asked for it.

    Raises:
        BadInput: If Ray's dashboard is not installed, or a port is taken or was given for a cluster.
    """
    if uses_cluster(env):
        if port is not None:
            raise BadInput(f"{OPTION}-port", str(port), f"no port: the cluster at {env['RAY_ADDRESS']} has its own")
        check_address(env)
        return
    if not all(map(_is_installed, REQUIRED_MODULES)):
        raise BadInput(OPTION, MISSING, INSTALL)
    if port is not None and not is_free_port(port):
        raise BadInput(f"{OPTION}-port", f"{port}, which is taken", "another port, or none: Ray then finds one")


def add_ray_exporter(experiment: Experiment, env: Mapping[str, str]) -> Experiment:
    """Return the experiment with the exporter that shows its boards in Ray."""
    if any(spec.name == EXPORTER for spec in experiment.exporters):
        return experiment
    # A simulation runs on the cluster itself, a fleet's server does not.
    apart = experiment.backend == "fleet"
    spec = ExporterSpec(name=EXPORTER, options={"address": env["RAY_ADDRESS"]} if apart else {})
    return experiment.model_copy(update={"exporters": (*experiment.exporters, spec)})


@contextlib.contextmanager
def open_dashboard(n_nodes: int, folder: Path, port: int | None) -> Iterator[RayDashboard]:
    """Provide a dashboard inside the block: a private Ray head, or the existing cluster at RAY_ADDRESS.

    Inside the block, RAY_ADDRESS and the token are set in this process's environment for the run to find. The head
    inherits the environment, so RAY_PROMETHEUS_HOST and RAY_GRAFANA_HOST reach the dashboard. All processes of a
    private head end with the block.

    Args:
        n_nodes: Number of simulated clients or other tasks, which sets the CPU count of a private head.
        port: Port of the dashboard; None for Ray's default.

    Raises:
        RunFailed: If a private Ray does not start.
        BadInput: If the cluster at RAY_ADDRESS is not available.
    """
    if uses_cluster(os.environ):
        yield RayDashboard(ray_cluster.find_dashboard(private_environment(os.environ, folder)))
        return
    with temporary_ray_folder() as temp:
        token = secrets.token_hex(32)
        env = private_environment(os.environ, folder) | SETTINGS | {"RAY_AUTH_TOKEN": token}
        launch = Launch(temp, flwr_home=folder / ".flwr", logs=folder / "logs", env=env, on_poll=lambda: None)
        with end_processes_on_exit(launch):
            address, dashboard = _start_head(launch, port, n_nodes)
            token_file = temp / "token"
            token_file.touch(mode=0o600)
            token_file.write_text(token, encoding="utf-8")
            inside = SETTINGS | {"RAY_ADDRESS": address, "RAY_AUTH_TOKEN": token, OWN_RAY_VARIABLE: "1"}
            with set_environment(inside):
                yield RayDashboard(dashboard, token_file)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it
        return False


def _start_head(launch: Launch, port: int | None, n_nodes: int) -> tuple[str, str]:
    """Start the head, wait for it, and return its address and the dashboard's."""
    log = RunLog.open(launch.logs / "ray.log")
    wanted = port or (USUAL_PORT if is_free_port(USUAL_PORT) else 0)
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
    """Build the command that starts a Ray head with its dashboard.

    ``--block`` is not used: it ends everything as soon as one part ends, and Ray Client gives up if the others need
    more than 30 s.

    Args:
        port: Port of the dashboard, 0 for any; Ray picks free ports for the rest.
        n_nodes: Number of simulated clients, which sets the CPU count.
    """
    return [
        *("ray", "start", "--head", "--disable-usage-stats"),
        *("--log-style", "record", "--log-color", "false"),
        *("--node-ip-address", "127.0.0.1", "--port", "0", "--temp-dir", str(temp / "r")),
        *("--include-dashboard", "true", "--dashboard-host", "127.0.0.1", "--dashboard-port", str(port)),
        *("--dashboard-agent-listen-port", "0", "--ray-client-server-port", str(choose_port())),
        *("--min-worker-port", "0", "--max-worker-port", "0"),
        *("--num-cpus", str(max(1, min(n_nodes, os.cpu_count() or 1)))),
    ]

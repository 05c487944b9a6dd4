"""Runs a staged Flower app on a SuperLink of its own and ends every process of the run, whatever happens."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from experiments.backends.flower_app import CONNECTION, ConfigValue, run_config_toml
from experiments.backends.run_processes import (
    Launch,
    RunLog,
    end_processes_on_exit,
    poll_and_sleep,
    private_environment,
    spawn,
)
from experiments.backends.run_submission import open_serverapp_log, submit
from fedge.errors import RunFailed

logger = logging.getLogger(__name__)

START_WITHIN_S = 60.0
PORT_TRIES = 5


def simulate(
    app_dir: Path,
    run_dir: Path,
    run_config: Mapping[str, ConfigValue],
    n_nodes: int,
    *,
    on_poll: Callable[[], None] = lambda: None,
) -> None:
    """Run a staged app with ``n_nodes`` simulated clients and return when it has ended well.

    Starts a SuperLink of its own (state in ``run_dir``/.flwr, a free loopback port, logs in ``run_dir``/logs) and calls
    ``on_poll`` every 0.25 s while it waits. No process of the run outlives the call: not after an error, a signal or an
    exception out of ``on_poll``. With RAY_ADDRESS set, the clients run on that Ray cluster, each of whose machines must
    see ``run_dir`` under the same path; otherwise a Ray of the run's own is started and ended.
    Raises ``RunFailed`` with the reason and the end of the log that shows it.
    """
    env = simulation_environment(os.environ, app_dir.resolve(), run_dir.resolve())
    launch = Launch(
        app_dir.resolve(),
        flwr_home=run_dir.resolve() / ".flwr",
        logs=run_dir.resolve() / "logs",
        env=env,
        on_poll=on_poll,
    )
    launch.flwr_home.mkdir(parents=True, exist_ok=True)
    config_file = launch.flwr_home / "run-config.toml"
    config_file.write_text(run_config_toml(run_config), encoding="utf-8")
    with end_processes_on_exit(launch):
        superlink, log = _start_superlink(launch)
        options = ["--federation-config", federation_config(n_nodes, env)]
        submit(
            launch,
            log=open_serverapp_log(launch),
            config_file=config_file,
            options=options,
            check=lambda: _check_alive(superlink, log),
        )


def _check_alive(superlink: subprocess.Popen[bytes], log: RunLog) -> None:
    if superlink.poll() is not None:
        raise RunFailed(f"Flower's SuperLink died (exit {superlink.returncode})\n{log.tail()}")


def simulation_environment(base: Mapping[str, str], app_dir: Path, run_dir: Path) -> dict[str, str]:
    """The environment of a simulation's processes: a private one, with a Ray of the run's own or a named cluster."""
    env = private_environment(base, run_dir)
    # Flower hands PYTHONPATH on to Ray's actors, wherever those were started.
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(app_dir), base.get("PYTHONPATH", ""))))
    # "local" keeps Ray from joining a cluster that somebody else started on this machine.
    env["RAY_ADDRESS"] = base.get("RAY_ADDRESS") or "local"
    if env["RAY_ADDRESS"] == "local":
        # Ray listens on every interface, and whoever reaches it may run code: only this run's processes know the token.
        env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return env


def federation_config(n_nodes: int, env: Mapping[str, str]) -> str:
    """Flower's simulation settings; a Ray cluster that exists already has its own number of cores."""
    settings = f"num-supernodes={n_nodes} client-resources-num-cpus=1 client-resources-num-gpus=0.0"
    if env["RAY_ADDRESS"] != "local":
        return settings
    return f"{settings} init-args-num-cpus={max(1, min(n_nodes, os.cpu_count() or 1))}"


def _start_superlink(launch: Launch) -> tuple[subprocess.Popen[bytes], RunLog]:
    """A SuperLink that listens, and its log; tries another port when somebody takes the one that was free."""
    log = RunLog.open(launch.logs / "superlink.log")
    for _ in range(PORT_TRIES):
        port = find_free_port()
        log = RunLog.open(log.path)
        options = ["--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
        process = spawn(launch, ["flower-superlink", *options], log)
        if _wait_until_listening(launch, process, log, port):
            _write_connection(launch.flwr_home, port)
            return process, log
        if "address already in use" not in log.text().lower():
            break
        logger.info("port %d was taken by another program, trying the next", port)
    raise RunFailed(f"Flower's SuperLink did not start\n{log.tail()}")


def find_free_port() -> int:
    """A loopback port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_listening(launch: Launch, process: subprocess.Popen[bytes], log: RunLog, port: int) -> bool:
    """Wait for the SuperLink; its own log tells, since on a contested port somebody else's would answer a request."""
    deadline = time.monotonic() + START_WITHIN_S
    while time.monotonic() < deadline:
        if f"Uvicorn running on http://127.0.0.1:{port}" in log.text():
            return True
        if process.poll() is not None:
            return False
        poll_and_sleep(launch, 0.1)
    return False


def _write_connection(flwr_home: Path, port: int) -> None:
    address = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "127.0.0.1:{port}"\n'
    (flwr_home / "config.toml").write_text(f"{address}insecure = true\n", encoding="utf-8")

"""Connection to Ray: a private Ray on this machine, which ends with its use, or the cluster at RAY_ADDRESS."""

from __future__ import annotations

import errno
import math
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

from fedge.child_processes import THREAD_VARIABLES, handle_signals, set_environment
from fedge.errors import BadInput, RunFailed, one_line
from fedge.import_path import ROOT

ADDRESS_VARIABLE = "RAY_ADDRESS"
OWN_RAY_VARIABLE = "FEDGE_OWN_RAY"
"""Set where RAY_ADDRESS is that of a Ray which this process has started, which has no other machines."""
LISTENS_WITHIN_S = 5.0
"""Default limit for a cluster's machine to accept a connection, in seconds."""
ASKED_EVERY_S, HEAD_GONE_S = 1.0, 20.0
"""Seconds between two looks at a cluster's head, and without an answer after which it is dead. Ray ends the process
after 60, and says no cure.
"""
LOOPBACK_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Unless this is 0, Ray uses 127.0.0.1 as the machine's network address."""
ADDRESS_ADVICE = "the address of a running Ray cluster, such as 10.0.0.5:6379"
START_COMMAND = "ray start --head --include-dashboard true"
MAX_TEMP_PATH = 20
"""Longest temporary path, in characters: Ray appends about 85 for its sockets, and Linux allows 107."""
FREE_PORTS = range(10_002, 30_000)
"""Candidate ports, below Linux's range of ephemeral ports (32768 and above), see choose_port."""
OBJECT_STORE_BYTES = 200_000_000
"""Ray's own default is 30 % of the memory; results are a few MB and are fetched as their tasks end."""
QUIET_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's future behaviour, which keeps it from warning on every start.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
PRIVATE_SETTINGS = QUIET_SETTINGS | {
    # Ray executes any client's code: it listens on loopback only, and asks for a token.
    LOOPBACK_VARIABLE: "0",
    # Workers start with the tasks' own environment; those that Ray starts in advance would not be used.
    "RAY_prestart_worker_first_driver": "0",
    # Ray's default of 15 would leave tasks almost nothing beside any other busy program.
    "RAY_worker_niceness": "0",
    # How long Ray's parts wait for each other; the default of 30 s is too short on a busy machine.
    "RAY_agent_register_timeout_ms": "300000",
}


def uses_cluster(env: Mapping[str, str]) -> bool:
    """Return whether the environment names a cluster that runs join."""
    return env.get(ADDRESS_VARIABLE, "local") not in {"", "local"}


def check_address(env: Mapping[str, str]) -> None:
    """Raise ``BadInput`` if RAY_ADDRESS has an unsupported form."""
    if "://" in env[ADDRESS_VARIABLE]:
        raise BadInput(
            ADDRESS_VARIABLE, repr(env[ADDRESS_VARIABLE]), "the address of the cluster's head, such as 10.0.0.5:6379"
        )


def resolve_address(address: str) -> str:
    """Resolve ``address`` as Ray does to a host and port that accept connections.

    Raises:
        BadInput: If it is no address, or nothing accepts a connection there.
    """
    from ray._private.services import canonicalize_bootstrap_address_or_die

    try:
        resolved: str = canonicalize_bootstrap_address_or_die(address)
        host, port = resolved.rsplit(":", 1)
        number = int(port)
    except ConnectionError as error:
        right = f"{ADDRESS_ADVICE}, or one here: {START_COMMAND}"
        raise BadInput(ADDRESS_VARIABLE, f"{address}: no Ray, or more than one, on this machine", right) from error
    except ValueError as error:
        raise BadInput(ADDRESS_VARIABLE, repr(address), ADDRESS_ADVICE) from error
    try:
        socket.create_connection((host.strip("[]"), number), LISTENS_WITHIN_S).close()
    except (OSError, OverflowError) as error:
        raise _no_answer_error(address, resolved, error) from error
    return resolved


def _no_answer_error(address: str, resolved: str, error: Exception) -> BadInput:
    reason = getattr(error, "strerror", None) or str(error)
    if resolved == address:
        return BadInput(ADDRESS_VARIABLE, f"{address}, where nothing answers ({reason})", ADDRESS_ADVICE)
    right = f"{ADDRESS_ADVICE}; for one on 127.0.0.1 alone, {LOOPBACK_VARIABLE}=0 too"
    return BadInput(ADDRESS_VARIABLE, f"{address}, for Ray {resolved}, where nothing answers ({reason})", right)


@contextmanager
def open_ray(cpus: float) -> Iterator[None]:
    """Connect this process to Ray inside the block: one that is open already, RAY_ADDRESS's, or a private one.

    Args:
        cpus: Number of processor cores that a private Ray hands out to tasks.

    Raises:
        BadInput: If the cluster at RAY_ADDRESS cannot be reached, or refuses access or versions.
        RunFailed: If a private Ray does not start.
    """
    if _is_connected():
        yield
        return
    # Ray prints messages of its machines to standard output, which is for a command's results.
    opened = _join_cluster() if uses_cluster(os.environ) else _start_private_ray(cpus)
    with redirect_stdout(sys.stderr), opened, handle_signals(numbers=(signal.SIGTERM,)):  # Ray's own prints its stack
        yield


class RayWatch:
    """Notices that the Ray to which this process is connected has died; Ray itself ends the process a minute later."""

    def __init__(self) -> None:
        from ray._private.worker import global_worker

        host, _, port = global_worker.node.gcs_address.rpartition(":")
        self._raylet, self._head = str(global_worker.node.raylet_socket_name), (host.strip("[]"), int(port))
        self._heard_s = time.monotonic()

    def check(self) -> None:
        """Raise ``RunFailed`` if Ray on this machine, or the head of its cluster for ``HEAD_GONE_S``, is gone."""
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(LISTENS_WITHIN_S)
            if link.connect_ex(self._raylet) in {errno.ECONNREFUSED, errno.ENOENT}:
                raise RunFailed("Ray on this machine died (out of memory?); call this again")
        if time.monotonic() - self._heard_s < ASKED_EVERY_S:
            return
        try:
            socket.create_connection(self._head, LISTENS_WITHIN_S).close()
            self._heard_s = time.monotonic()
        except OSError as error:
            if time.monotonic() - self._heard_s > HEAD_GONE_S:
                address = ":".join(map(str, self._head))
                raise RunFailed(f"Ray's head at {address} died (out of memory?); call this again") from error


def _is_connected() -> bool:
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


@contextmanager
def _join_cluster() -> Iterator[None]:
    check_address(os.environ)
    import ray

    address = os.environ[ADDRESS_VARIABLE]
    try:
        with set_environment(QUIET_SETTINGS):
            ray.init(
                address=resolve_address(address),
                runtime_env={"env_vars": dict.fromkeys(THREAD_VARIABLES, "1")},
                log_to_driver=False,
                configure_logging=False,
            )
    except (ray.exceptions.RayError, RuntimeError, ConnectionError) as error:
        right = "a running cluster with the same Ray and Python as here, and its token in RAY_AUTH_TOKEN if it has one"
        raise BadInput(ADDRESS_VARIABLE, f"{address}: {one_line(error)}", right) from error
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _start_private_ray(cpus: float) -> Iterator[None]:
    """Start Ray on loopback; its processes end with the block, and with this process if that is killed."""
    access = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _make_token()} if _accepts_token() else {}
    with temporary_ray_folder() as temp, set_environment(PRIVATE_SETTINGS | access), _keep_to_loopback():
        import ray

        # Folders that a killed task leaves are deleted with the others. Modules are found as in this process.
        paths = {"TMPDIR": str(temp), "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), *sys.path)))}
        try:
            node = _start_node(math.ceil(cpus), temp / "r")
        except Exception as error:  # Ray raises the bare class when a part of it does not start in time
            raise RunFailed(f"Ray did not start: {one_line(error)}") from error
        try:
            ray.init(
                address=node.gcs_address,
                runtime_env={"env_vars": dict.fromkeys(THREAD_VARIABLES, "1") | paths},
                log_to_driver=False,
                configure_logging=False,
            )
            yield
        finally:
            ray.shutdown()
            node.kill_all_processes(check_alive=False, allow_graceful=True)


@contextmanager
def _keep_to_loopback() -> Iterator[None]:
    """Let Ray connect to 127.0.0.1 itself, also if it was imported before ``LOOPBACK_VARIABLE`` was set.

    Otherwise it would try the machine's other address, where a private Ray does not listen, for minutes.
    """
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _start_node(cpus: int, temp: Path) -> Any:
    """Start a Ray head without the parts that nobody uses here: dashboard, autoscaler, log monitor.

    ``ray.init`` starts them all, and gives up if the agent for the dashboard needs more than 15 s, which it does on a
    machine with several busy programs per core.
    """
    from ray import _raylet
    from ray._private import utils
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    raylet: Any = _raylet  # compiled, without types

    class QuietNode(Node):  # type: ignore[misc]  # untyped
        def start_raylet(self, *args: Any, **options: Any) -> None:
            # What an agent without dashboard writes once it runs; the raylet waits for it.
            for name in ("METRICS_AGENT_PORT", "METRICS_EXPORT_PORT", "DASHBOARD_AGENT_LISTEN_PORT"):
                raylet.persist_port(self._session_dir, self._node_id, getattr(raylet, f"{name}_NAME"), -1)
            super().start_raylet(*args, **options)

    wanted = RayParams(
        node_ip_address="127.0.0.1",
        num_cpus=cpus,
        object_store_memory=OBJECT_STORE_BYTES,
        temp_dir=str(temp),
        include_dashboard=False,
        include_log_monitor=False,
        no_monitor=True,
        min_worker_port=0,
        max_worker_port=0,
        runtime_env_agent_port=choose_port(),
    )
    found = utils.get_dashboard_dependency_error
    utils.get_dashboard_dependency_error = lambda: ImportError("not needed")  # starts the smaller agent
    try:
        return QuietNode(wanted, head=True, shutdown_at_exit=False, spawn_reaper=True)
    finally:
        utils.get_dashboard_dependency_error = found


def choose_port() -> int:
    """Return a free port for a part of Ray that does not choose one by itself.

    Ray binds it seconds later, so it must lie outside the ephemeral range that the kernel hands out meanwhile.
    """
    return next(port for port in iter(lambda: secrets.choice(FREE_PORTS), None) if is_free_port(port))


def is_free_port(port: int) -> bool:
    """Return whether a program may listen on a port of loopback at this moment."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _accepts_token() -> bool:
    """Return whether Ray can ask for a token in this process, which it decides when it is loaded."""
    if "ray" not in sys.modules:
        return True
    from ray._private.authentication.authentication_utils import is_token_auth_enabled

    return bool(is_token_auth_enabled())


@cache
def _make_token() -> str:
    """Return the token of this process, which Ray keeps from its first use on."""
    return secrets.token_hex(32)


@contextmanager
def temporary_ray_folder() -> Iterator[Path]:
    """Yield a private folder with a short path for Ray's sockets; it is deleted afterwards.

    Ray makes its own folder accessible to everybody, so that one is created inside this one.
    """
    place = tempfile.gettempdir()
    short = place if len(place) <= MAX_TEMP_PATH else "/tmp"  # noqa: S108 - a folder of its own is made in it
    temp = Path(tempfile.mkdtemp(prefix="fedge-ray-", dir=short))
    try:
        yield temp
    finally:
        shutil.rmtree(temp, ignore_errors=True)

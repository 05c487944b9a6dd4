"""The Ray cluster at RAY_ADDRESS, as far as runs need it: its dashboard, and machines that all read the same app.

A subprocess finds the dashboard; it is killed if it does not finish in time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedge.errors import BadInput, one_line
from fedge.studies.ray_session import (
    ADDRESS_ADVICE,
    ADDRESS_VARIABLE,
    LISTENS_WITHIN_S,
    START_COMMAND,
    open_ray,
    resolve_address,
)
from fedge.studies.task_pool import MACHINES_FIELD, describe_package

ASK_WITHIN_S = 12.0
"""Default limit of the query, in seconds; Ray's own attempts last 35 s, too long before a run starts."""


MACHINE_WITHIN_S = 120.0
"""Limit for each machine to import fedge, in seconds, on a busy one."""


def check_machines(app: Path) -> int:
    """Check that every machine of the cluster with a core for clients reads the app of a run as this one does.

    Returns:
        The number of cores for clients.

    Raises:
        BadInput: If the cluster cannot be used, or a machine has another fedge in the app's folder, or none.
    """
    with open_ray(0):
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        own, asked, cores = describe_package(app), {}, 0
        task = ray.remote(num_cpus=0)(_make_remote_function())
        for node in _list_machines():
            place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            asked[task.options(scheduling_strategy=place).remote(str(app))] = node
        for reference, node in asked.items():
            try:
                found = ray.get(reference, timeout=MACHINE_WITHIN_S)
            except ray.exceptions.RayError as error:
                if node["NodeID"] not in {one["NodeID"] for one in _list_machines()}:
                    continue  # Ray notices seconds later that a machine is gone
                found = f"no answer ({one_line(error)})"
            if found != own:
                right = f"{own}, as in {app} here: all machines must see the run folder under this path"
                raise BadInput(MACHINES_FIELD, f"{found} on {node['NodeManagerHostname']}", right)
            cores += int(node["Resources"]["CPU"])
        return cores


def _list_machines() -> list[dict[str, Any]]:
    """Return Ray's descriptions of the machines with a core for clients."""
    import ray

    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0.0) >= 1.0]


def _make_remote_function() -> Callable[[str], str]:
    """Return the function of a machine, which Ray sends by value: it must run where another fedge is, or none."""

    def describe_app(app: str) -> str:
        import importlib
        import sys
        from pathlib import Path

        sys.path.insert(0, app)  # as it is for Flower's clients
        if not Path(app).is_dir():
            return f"no folder {app}"
        try:
            importlib.import_module("clients.app")  # with all that it needs
            description: str = importlib.import_module("fedge.studies.task_pool").describe_package()
        except ImportError as error:
            return f"{type(error).__name__}: {error}"
        return description

    return describe_app


def find_dashboard(env: Mapping[str, str], within_s: float = ASK_WITHIN_S) -> str:
    """Return the dashboard's URL of the cluster at RAY_ADDRESS in ``env``, which also has the token.

    Raises:
        BadInput: If the cluster does not respond in time, refuses the token, has another version of Ray or Python, or
            has no dashboard.
    """
    command = [sys.executable, "-m", __name__]
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            command, env={**env, **paths}, capture_output=True, text=True, timeout=within_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        got = f"{env[ADDRESS_VARIABLE]}, where no Ray answered within {within_s:g} s"
        raise BadInput(ADDRESS_VARIABLE, got, ADDRESS_ADVICE) from error
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        reason = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise BadInput(ADDRESS_VARIABLE, f"{env[ADDRESS_VARIABLE]}, which could not be asked: {reason}", ADDRESS_ADVICE)
    return _parse_answer(json.loads(lines[-1]))


def _parse_answer(answer: Mapping[str, str]) -> str:
    """Extract the dashboard's URL from the subprocess's output."""
    if "got" in answer:
        raise BadInput(ADDRESS_VARIABLE, answer["got"], answer["right"])
    found = answer["dashboard"]
    return found if "://" in found else f"http://{found}"


def query_dashboard(address: str) -> str:
    """Ask the cluster at ``address`` for its dashboard; may block for Ray's own timeouts.

    Raises:
        BadInput: If the cluster cannot be reached, refuses access or has no dashboard.
    """
    from ray.exceptions import AuthenticationError, RayError

    resolved = resolve_address(address)
    try:
        found = _read_dashboard_url(resolved)
    except AuthenticationError as error:
        right = "its token: RAY_AUTH_MODE=token with RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
        raise BadInput(ADDRESS_VARIABLE, f"{address}, which asks for another token", right) from error
    except RayError as error:
        raise BadInput(ADDRESS_VARIABLE, f"{address}: {one_line(error)}", ADDRESS_ADVICE) from error
    except RuntimeError as error:
        right = "a cluster with the same Ray and Python as here"
        raise BadInput(ADDRESS_VARIABLE, f"{address}: {one_line(error)}", right) from error
    if not found:
        raise BadInput(
            ADDRESS_VARIABLE, f"{address}, which runs without its dashboard", f"a cluster that has one: {START_COMMAND}"
        )
    return found


def _read_dashboard_url(resolved: str) -> str:
    from ray import _raylet
    from ray._private.utils import check_version_info

    raylet: Any = _raylet  # compiled, without types
    client = raylet.GcsClient(address=resolved)
    versions = client.internal_kv_get(b"CLUSTER_METADATA", b"cluster", timeout=LISTENS_WITHIN_S)
    if versions:
        check_version_info(json.loads(versions), "here")
    found: bytes | None = client.internal_kv_get(b"webui:url", b"dashboard", timeout=LISTENS_WITHIN_S)
    return (found or b"").decode()


def main(address: str) -> str:
    """Return the subprocess's output, one JSON line: ``dashboard``, or the error as ``got`` and ``right``."""
    try:
        return json.dumps({"dashboard": query_dashboard(address)})
    except BadInput as error:
        return json.dumps({"got": error.got, "right": error.right})


if __name__ == "__main__":
    sys.stdout.write(f"\n{main(os.environ[ADDRESS_VARIABLE])}\n")

"""Finds the dashboard of a running Ray cluster with a subprocess, which is killed if it does not finish in time."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from fedge.errors import BadInput

ADDRESS_VARIABLE = "RAY_ADDRESS"
ASK_WITHIN_S = 12.0
"""Default limit of the query, in seconds; Ray's own attempts last 35 s, too long before a run starts."""
LISTENS_WITHIN_S = 5.0
"""Default limit for a cluster's machine to accept a connection, in seconds."""
LOOPBACK_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Unless this is 0, Ray uses 127.0.0.1 as the machine's network address."""
ADDRESS_ADVICE = "the address of a running Ray cluster, such as 10.0.0.5:6379"
START_COMMAND = "ray start --head --include-dashboard true"


def uses_cluster(env: Mapping[str, str]) -> bool:
    """Return whether the environment names a cluster that runs join."""
    return env.get(ADDRESS_VARIABLE, "local") not in {"", "local"}


def check_address(env: Mapping[str, str]) -> None:
    """Raise ``BadInput`` if RAY_ADDRESS has an unsupported form."""
    if "://" in env[ADDRESS_VARIABLE]:
        raise BadInput(
            ADDRESS_VARIABLE, repr(env[ADDRESS_VARIABLE]), "the address of the cluster's head, such as 10.0.0.5:6379"
        )


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

    resolved = _resolve_address(address)
    try:
        found = _read_dashboard_url(resolved)
    except AuthenticationError as error:
        right = "its token: RAY_AUTH_MODE=token with RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
        raise BadInput(ADDRESS_VARIABLE, f"{address}, which asks for another token", right) from error
    except RayError as error:
        raise BadInput(ADDRESS_VARIABLE, f"{address}: {_join_lines(error)}", ADDRESS_ADVICE) from error
    except RuntimeError as error:
        right = "a cluster with the same Ray and Python as here"
        raise BadInput(ADDRESS_VARIABLE, f"{address}: {_join_lines(error)}", right) from error
    if not found:
        raise BadInput(
            ADDRESS_VARIABLE, f"{address}, which runs without its dashboard", f"a cluster that has one: {START_COMMAND}"
        )
    return found


def _resolve_address(address: str) -> str:
    """Resolve ``address`` as Ray does to a host and port that accept connections."""
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


def _no_answer_error(address: str, resolved: str, error: Exception) -> BadInput:
    reason = getattr(error, "strerror", None) or str(error)
    if resolved == address:
        return BadInput(ADDRESS_VARIABLE, f"{address}, where nothing answers ({reason})", ADDRESS_ADVICE)
    right = f"{ADDRESS_ADVICE}; for one on 127.0.0.1 alone, {LOOPBACK_VARIABLE}=0 too"
    return BadInput(ADDRESS_VARIABLE, f"{address}, for Ray {resolved}, where nothing answers ({reason})", right)


def _join_lines(error: Exception) -> str:
    return " ".join(str(error).split())


def main(address: str) -> str:
    """Return the subprocess's output, one JSON line: ``dashboard``, or the error as ``got`` and ``right``."""
    try:
        return json.dumps({"dashboard": query_dashboard(address)})
    except BadInput as error:
        return json.dumps({"got": error.got, "right": error.right})


if __name__ == "__main__":
    sys.stdout.write(f"\n{main(os.environ[ADDRESS_VARIABLE])}\n")

"""Submits a staged app to a SuperLink and waits for its end: `flwr run --stream`, then how it ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from experiments.backends.processes import POLL_S, Launch, Log, pause, spawn
from experiments.backends.staging import CONNECTION
from fedge.errors import RunFailed

FLOWER_SAYS = "Simulation failed with exception: "


def submit(launch: Launch, config_file: Path, options: Sequence[str], check: Callable[[], None]) -> None:
    """Submit the app and wait for its end; ``flwr run --stream`` ends with the run and carries the ServerApp's log.

    ``check`` is called while it waits and raises when going on makes no sense. Raises ``RunFailed`` for a run that does
    not end well.
    """
    log = Log.open(launch.logs / "serverapp.log")
    command = ["flwr", "run", str(launch.app_dir), CONNECTION, "-c", str(config_file), *options, "--stream"]
    stream = spawn(launch, command, log)
    while stream.poll() is None:
        check()
        pause(launch, POLL_S)
    if stream.returncode != 0:
        raise RunFailed(f"`flwr run` failed (exit {stream.returncode})\n{log.tail()}")
    status, details = _outcome(launch)
    if status != "finished:completed":
        raise RunFailed(f"the run ended as {status}: {details.removeprefix(FLOWER_SAYS)}\n{log.tail()}")


def _outcome(launch: Launch) -> tuple[str, str]:
    """Status and details of the one run that this SuperLink knows."""
    log = Log.open(launch.logs / "outcome.log")
    listing = spawn(launch, ["flwr", "list", CONNECTION, "--format", "json"], log)
    while listing.poll() is None:
        pause(launch, POLL_S)
    try:
        text = log.text()
        run = json.loads(text[text.index("{") :])["runs"][0]
        return str(run["status"]), str(run["status-details"])
    except (ValueError, LookupError, TypeError) as error:
        raise RunFailed(f"cannot read how the run ended ({error!r})\n{log.tail()}") from error

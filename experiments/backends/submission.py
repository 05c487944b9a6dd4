"""Submits a staged app to a SuperLink and waits for its end: `flwr run --stream`, then how it ended."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from experiments.backends.processes import POLL_S, Launch, Log, pause, spawn
from experiments.backends.staging import CONNECTION
from fedge.errors import RunFailed

FLOWER_SAYS = re.compile(r"^(ServerApp|Simulation) failed with exception: ")
"""What Flower 1.41 puts before the reason."""
STARTED = re.compile(r"started run (\d+)", re.IGNORECASE)
STOP_WITHIN_S = 15.0


def log_of(launch: Launch) -> Log:
    """The ServerApp's log, from this launch on: a resumed run appends to it."""
    return Log.open(launch.logs / "serverapp.log")


def run_id(log: Log) -> str | None:
    """Flower's number of the run that was submitted; None as long as it has not told."""
    found = STARTED.search(log.text())
    return found.group(1) if found else None


@contextmanager
def stopping(launch: Launch, log: Log) -> Iterator[None]:
    """Stop the run on a SuperLink that lives on, when the block ends before the run does."""
    try:
        yield
    except BaseException:
        number = run_id(log)
        if number is not None:
            _stop(launch, number)
        raise


def _stop(launch: Launch, number: str) -> None:
    """Ask the SuperLink to stop the run; one that has ended already refuses, which is as good."""
    process = spawn(launch, ["flwr", "stop", number, CONNECTION], Log.open(launch.logs / "stop.log"))
    end_s = time.monotonic() + STOP_WITHIN_S
    while process.poll() is None and time.monotonic() < end_s:
        time.sleep(POLL_S)


def submit(launch: Launch, log: Log, config_file: Path, options: Sequence[str], check: Callable[[], None]) -> None:
    """Submit the app and wait for its end; ``flwr run --stream`` ends with the run and carries the ServerApp's log.

    ``check`` is called while it waits and raises when going on makes no sense. Raises ``RunFailed`` for a run that does
    not end well.
    """
    command = ["flwr", "run", str(launch.app_dir), CONNECTION, "-c", str(config_file), *options, "--stream"]
    stream = spawn(launch, command, log)
    while stream.poll() is None:
        check()
        pause(launch, POLL_S)
    if stream.returncode != 0:
        raise RunFailed(f"`flwr run` failed (exit {stream.returncode})\n{log.tail()}")
    status, details = _outcome(launch, run_id(log))
    if status != "finished:completed":
        raise RunFailed(f"the run ended as {status}: {FLOWER_SAYS.sub('', details)}\n{log.tail()}")


def _outcome(launch: Launch, number: str | None) -> tuple[str, str]:
    """Status and details of the run, or of the newest one where Flower has not told its number."""
    log = Log.open(launch.logs / "outcome.log")
    listing = spawn(launch, ["flwr", "list", CONNECTION, "--format", "json"], log)
    while listing.poll() is None:
        pause(launch, POLL_S)
    try:
        text = log.text()
        runs = json.loads(text[text.index("{") :])["runs"]
        run = next((run for run in runs if str(run["run-id"]) == number), None) if number else runs[0]
        if run is None:
            raise RunFailed(f"the SuperLink does not know run {number} any more\n{log.tail()}")
        return str(run["status"]), str(run["status-details"])
    except (ValueError, LookupError, TypeError) as error:
        raise RunFailed(f"cannot read how the run ended ({error!r})\n{log.tail()}") from error

"""Submits a staged app to a SuperLink with `flwr run --stream`, waits for its end and reads the outcome."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from experiments.backends.flower_app import CONNECTION, ConfigValue, run_config_toml
from experiments.backends.run_processes import POLL_S, Launch, RunLog, poll_and_sleep, spawn
from fedge.errors import RunFailed
from fedge.experiment import SuperlinkSpec
from fedge.phases import begin_phase

FLOWER_FAILURE_PREFIX = re.compile(r"^(ServerApp|Simulation) failed with exception: ")
"""Prefix that Flower 1.41 puts before the reason of a failure."""
STARTED = re.compile(r"started run (\d+)", re.IGNORECASE)
STOP_WITHIN_S = 15.0
NO_PHASES: Mapping[str, str] = {}


def prepare_launch(
    app: Path,
    folder: Path,
    env: Mapping[str, str],
    on_poll: Callable[[], None],
    *,
    config: Mapping[str, ConfigValue],
) -> tuple[Launch, Path]:
    """Return the launch of a staged app in a run folder, and the TOML file with its run config."""
    launch = Launch(app.resolve(), flwr_home=folder / ".flwr", logs=folder / "logs", env=env, on_poll=on_poll)
    launch.flwr_home.mkdir(parents=True, exist_ok=True)
    config_file = launch.flwr_home / "run-config.toml"
    config_file.write_text(run_config_toml(config), encoding="utf-8")
    return launch, config_file


def write_connection(flwr_home: Path, superlink: SuperlinkSpec) -> None:
    """Write Flower's ``config.toml`` for a SuperLink; without a certificate the connection is not encrypted."""
    root = superlink.root_certificates
    trust = f'root-certificates = "{root}"' if root else "insecure = true"
    head = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
    (flwr_home / "config.toml").write_text(f'{head}address = "{superlink.address}"\n{trust}\n', encoding="utf-8")


def open_serverapp_log(launch: Launch) -> RunLog:
    """Open the ServerApp's log at the beginning of this launch; a resumed run appends to the file."""
    return RunLog.open(launch.logs / "serverapp.log")


def find_run_id(log: RunLog) -> str | None:
    """Return Flower's id of the submitted run, or None as long as it is not logged."""
    found = STARTED.search(log.text())
    return found.group(1) if found else None


@contextmanager
def stop_run_on_error(launch: Launch, log: RunLog) -> Iterator[None]:
    """Stop the run on a SuperLink that keeps running if the block raises before the run has ended."""
    try:
        yield
    except BaseException:
        number = find_run_id(log)
        if number is not None:
            _stop_run(launch, number)
        raise


def _stop_run(launch: Launch, number: str) -> None:
    """Ask the SuperLink to stop the run; it rejects the request if the run has already ended, which is harmless."""
    process = spawn(launch, ["flwr", "stop", number, CONNECTION], RunLog.open(launch.logs / "stop.log"))
    end_s = time.monotonic() + STOP_WITHIN_S
    while process.poll() is None and time.monotonic() < end_s:
        time.sleep(POLL_S)


def submit(
    launch: Launch,
    log: RunLog,
    config_file: Path,
    options: Sequence[str],
    *,
    check: Callable[[], None],
    is_complete: Callable[[], bool] = lambda: False,
    phases: Mapping[str, str] = NO_PHASES,
) -> None:
    """Submit the app and wait for its end; ``flwr run --stream`` ends with the run and prints the ServerApp's log.

    Args:
        check: Called while waiting; raises if waiting is pointless.
        is_complete: Returns True once the run's results are written. Flower's own end takes some seconds more, and
            asking for the outcome as long again.
        phases: Phases of the start, in order, by the words in the log with which they begin.

    Raises:
        RunFailed: If the submission or the run fails.
    """
    command = ["flwr", "run", str(launch.app_dir), CONNECTION, "-c", str(config_file), *options, "--stream"]
    begin_phase("submitting the run", announce=True)
    stream, waiting = spawn(launch, command, log), list(phases.items())
    while stream.poll() is None:
        if is_complete():
            return
        check()
        if waiting and waiting[0][0] in log.text().lower():
            begin_phase(waiting.pop(0)[1], announce=True)
        poll_and_sleep(launch, POLL_S)
    if stream.returncode != 0:
        raise RunFailed(f"`flwr run` failed (exit {stream.returncode})\n{log.tail()}")
    if is_complete():
        return
    status, details = _read_outcome(launch, find_run_id(log))
    if status != "finished:completed":
        raise RunFailed(f"the run ended as {status}: {FLOWER_FAILURE_PREFIX.sub('', details)}\n{log.tail()}")


def _read_outcome(launch: Launch, number: str | None) -> tuple[str, str]:
    """Return status and details of the run, or of the newest one if its id is unknown."""
    log = RunLog.open(launch.logs / "outcome.log")
    listing = spawn(launch, ["flwr", "list", CONNECTION, "--format", "json"], log)
    while listing.poll() is None:
        poll_and_sleep(launch, POLL_S)
    try:
        text = log.text()
        runs = json.loads(text[text.index("{") :])["runs"]
        run = next((run for run in runs if str(run["run-id"]) == number), None) if number else runs[0]
        if run is None:
            raise RunFailed(f"the SuperLink does not know run {number} any more\n{log.tail()}")
        return str(run["status"]), str(run["status-details"])
    except (ValueError, LookupError, TypeError) as error:
        raise RunFailed(f"cannot read how the run ended ({error!r})\n{log.tail()}") from error

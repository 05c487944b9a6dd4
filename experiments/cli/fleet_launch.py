"""``fedge fleet run``: checks an experiment here, runs it on the fleet's server and fetches its run folder."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from experiments.backends import launcher
from experiments.cli.command_output import check_folder, is_quiet, print_plan, warn
from experiments.cli.run_experiment import describe_plan
from experiments.fleet import remote_run, selected_fleet
from experiments.fleet.inventory import Inventory, format_names
from experiments.fleet.remote_run import pack_experiment
from experiments.fleet.selected_fleet import FleetOptions
from experiments.fleet.server_connection import ServerConnection, build_connection
from experiments.report.tables import print_lines
from experiments.spec import experiment_checks
from experiments.spec.experiment_loader import load_experiment
from fedge.errors import BadInput
from fedge.experiment import Experiment, SuperlinkSpec, list_boards
from fedge.telemetry.run_folder import REPORT, RUNS
from fedge.worker.builtin_tasks import TASKS
from fedge.workloads.datasets import DATA_FIELD as DATA

CA_PATH = "/etc/fedge/tls/ca.crt"
"""Path of the fleet's CA on a provisioned server."""
MAX_NAMES_SHOWN = 5


def run_on_fleet(
    config: Path, overrides: Sequence[str], out: Path | None, options: FleetOptions, *, dry_run: bool = False
) -> int:
    """Run an experiment on the fleet, or only check it here; return the exit code of the run on the server."""
    console = Console(file=sys.stdout)
    check_folder("--folder", out or RUNS)
    experiment = load_experiment(config, [*overrides, f"backend={experiment_checks.FLEET_BACKEND}"], note=warn)
    found = selected_fleet.read_fleet(options).inventory
    check_boards(experiment, found, config)
    folder = launcher.choose_folder(experiment, out)
    check_locally(experiment, console)
    if dry_run:
        plan = describe_plan(experiment, folder)
        print_plan({**plan, "server": found.server.name}, as_json=False)
        return 0
    server = build_connection(found.server)
    packed = pack_experiment(adapt_to_server(experiment, server))
    remote_run.prepare_folder(folder)
    job = remote_run.send_bundle(server, packed, experiment.name)
    print_lines(console, [f"the experiment is on {server.name} in {job}"])
    try:
        code = remote_run.follow_run(
            server, job, _terminal_width(), lambda line: print_lines(console, [line]), quiet=is_quiet()
        )
    except KeyboardInterrupt:
        # An interrupted run's folder is fetched as well: it is the only record of what happened.
        _fetch(server, job, folder, console)
        raise
    _fetch(server, job, folder, console)
    return code


def check_boards(experiment: Experiment, found: Inventory, config: Path) -> None:
    """Raise ``BadInput`` for boards of the experiment that are missing from the inventory."""
    known = found.board_names
    strange = [board.name for board in list_boards(experiment) if board.name not in known]
    if strange:
        right = (
            f"boards of {found.path}: {format_names(list(known), MAX_NAMES_SHOWN)}; NAME with `count` means "
            f"NAME-1, NAME-2 ..."
        )
        raise BadInput(f"{config}: fleet", f"{format_names(strange, MAX_NAMES_SHOWN)}, not in the inventory", right)


def check_locally(experiment: Experiment, console: Console) -> None:
    """Perform the checks of `fedge run`, except those of the server's own certificates and data."""
    from experiments.backends import strategy_check

    # The real address is the server's, so one that is always valid stands in: loopback in plain text.
    spec = SuperlinkSpec(connect_timeout_s=experiment.superlink.connect_timeout_s)
    local = experiment.model_copy(update={"superlink": spec})
    try:
        experiment_checks.check_experiment(local)
    except BadInput as error:
        if error.where != DATA:
            raise
        print_lines(console, ["note: the data is not on this machine; the server checks it, and what depends on it"])
    strategy_check.check_strategy(local)
    network = TASKS.get(experiment.workload.task)
    if network is not None and network.dataset == "digits":
        lines = (
            f"note: {experiment.workload.task} reads scikit-learn's digits, which provisioned boards do not have",
            "      (boards with a data_folder of their own train on that); synthetic-cnn needs nothing",
        )
        print_lines(console, lines)


def adapt_to_server(experiment: Experiment, server: ServerConnection) -> Experiment:
    """Return the experiment with the SuperLink as the server reaches it, whatever the file says."""
    changes = {"address": f"127.0.0.1:{server.port}", "root_certificates": CA_PATH}
    return experiment.model_copy(update={"superlink": experiment.superlink.model_copy(update=changes)})


def _fetch(server: ServerConnection, job: str, folder: Path, console: Console) -> None:
    if remote_run.fetch_folder(server, job, folder):
        report = folder / REPORT
        print_lines(console, [f"report on this machine: {report}"] if report.is_file() else [])
        print_lines(console, [f"run folder: {folder} (on {server.name}: {job}/{remote_run.RUN})"])
    else:
        print_lines(console, [f"the run on {server.name} made no folder; what was sent is in {job}"])


def _terminal_width() -> dict[str, str]:
    """Return this terminal's width as a variable for the run, which has no terminal."""
    return {"COLUMNS": str(shutil.get_terminal_size().columns)} if sys.stdout.isatty() else {}

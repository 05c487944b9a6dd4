"""``fedge fleet run``: an experiment checked here, played on the fleet's server, its run folder fetched."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from experiments import checks, launch
from experiments.commands import fleet_choice
from experiments.commands.fleet_choice import Options
from experiments.fleet import remote
from experiments.fleet.bundle import bundle
from experiments.fleet.inventory import Inventory, several
from experiments.fleet.ssh import Server, server_of
from experiments.schema import load_experiment
from fedge.errors import BadInput
from fedge.experiment import Experiment, SuperlinkSpec, boards
from fedge.worker.networks import TASKS
from fedge.workloads.data import WHERE as DATA

CA = "/etc/fedge/tls/ca.crt"
"""Where provisioning puts the fleet's CA on the server."""
NAMES_SHOWN = 5


def run(config: Path, overrides: Sequence[str], out: Path | None, options: Options) -> int:
    """Play an experiment on the fleet; returns the exit code of the run on the server."""
    console = Console(file=sys.stdout)
    experiment = load_experiment(config, [*overrides, f"backend={checks.FLEET}"])
    found = fleet_choice.read(options).inventory
    check_boards(experiment, found, config)
    folder = launch.new_folder(experiment, out)
    check_here(experiment, console)
    server = server_of(found.server)
    packed = bundle(at_server(experiment, server))
    remote.prepare(folder)
    job = remote.send(server, packed, experiment.name)
    _say(console, f"the experiment is on {server.name} in {job}")
    try:
        code = remote.follow(server, job, _width(), lambda line: _say(console, line))
    except KeyboardInterrupt:
        # What a stopped run has is worth as much as a failed one's: it is the only trace of what went on.
        _fetch(server, job, folder, console)
        raise
    _fetch(server, job, folder, console)
    return code


def check_boards(experiment: Experiment, found: Inventory, config: Path) -> None:
    """Raise ``BadInput`` for boards of the experiment that the inventory does not have."""
    known = found.board_names
    strange = [board.name for board in boards(experiment) if board.name not in known]
    if strange:
        right = (
            f"boards of {found.path}: {several(list(known), NAMES_SHOWN)}; NAME with `count` means NAME-1, NAME-2 ..."
        )
        raise BadInput(f"{config}: fleet", f"{several(strange, NAMES_SHOWN)}, not in the inventory", right)


def check_here(experiment: Experiment, console: Console) -> None:
    """Everything that `fedge run` checks, but for what only the server can know: its certificates, its data."""
    from experiments.backends import strategies

    # Loopback in plain text: an address that is right anywhere, since the real one is the server's.
    spec = SuperlinkSpec(connect_timeout_s=experiment.superlink.connect_timeout_s)
    here = experiment.model_copy(update={"superlink": spec})
    try:
        checks.check(here)
    except BadInput as error:
        if error.where != DATA:
            raise
        _say(console, "note: the data is not on this machine; the server checks it, and what depends on it")
    strategies.check(here)
    network = TASKS.get(experiment.workload.task)
    if network is not None and network.dataset == "digits":
        _say(
            console,
            f"note: {experiment.workload.task} reads scikit-learn's digits, which provisioned boards do not have",
        )
        _say(console, "      (boards with a data_folder of their own train on that); synthetic-cnn needs nothing")


def at_server(experiment: Experiment, server: Server) -> Experiment:
    """The experiment with the SuperLink as it is on the server, whatever the file says."""
    changes = {"address": f"127.0.0.1:{server.port}", "root_certificates": CA}
    return experiment.model_copy(update={"superlink": experiment.superlink.model_copy(update=changes)})


def _fetch(server: Server, job: str, folder: Path, console: Console) -> None:
    if remote.fetch(server, job, folder):
        _say(console, f"run folder: {folder} (on {server.name}: {job}/{remote.RUN})")
    else:
        _say(console, f"the run on {server.name} made no folder; what was sent is in {job}")


def _width() -> dict[str, str]:
    """This terminal's width, since the run there has none."""
    return {"COLUMNS": str(shutil.get_terminal_size().columns)} if sys.stdout.isatty() else {}


def _say(console: Console, line: str) -> None:
    console.print(line, soft_wrap=True, highlight=False, markup=False)

"""The ServerApp of plain ``flwr run .``: runs an experiment's YAML, by default the quickstart, on any number of nodes.

Rows and report are those of ``fedge run``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from experiments.backends import launcher
from experiments.report.run.live_terminal import print_run_summary
from experiments.report.tables import print_lines
from experiments.spec.backend_keys import change_backend
from experiments.spec.experiment_loader import load_experiment
from fedge.clock import RealClock
from fedge.errors import BadInput
from fedge.experiment import Experiment
from fedge.telemetry import run_folder
from server.run import run_experiment
from server.transport.emulating_port import EmulatingNodes

ROOT = Path(__file__).resolve().parents[2]

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that the run config names and write its report."""
    experiment, folder = load_run_config(context.run_config)

    def run(experiment: Experiment, folder: Path, refresh: launcher.Refresh) -> None:
        run_experiment(experiment, EmulatingNodes(grid, experiment, RealClock()), folder)

    summary = launcher.start_run(experiment, folder, lambda: None, backend=run)
    console = Console()
    print_run_summary(console, summary)
    print_lines(console, [f"report: {folder / run_folder.REPORT}"])


def load_run_config(config: Mapping[str, object]) -> tuple[Experiment, Path]:
    """Load the experiment of the run config and choose the run's folder.

    Raises:
        BadInput: The experiment is invalid, or one that plain ``flwr run`` cannot run.
    """
    path = Path(str(config["experiment"])).expanduser()
    experiment = load_experiment(path if path.is_file() else ROOT / path)
    if experiment.backend == "fleet" or experiment.plugins:
        got = "real boards" if experiment.backend == "fleet" else f"plugins {', '.join(experiment.plugins)}"
        raise BadInput(str(path), got, "`fedge run` for it: `flwr run .` emulates boards, without plug-ins")
    experiment = change_backend(experiment, "sim")
    launcher.check_runnable(experiment)
    return experiment, launcher.choose_folder(experiment, Path(str(config["folder"])) if config["folder"] else None)

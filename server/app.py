"""The Flower ServerApp: reads the resolved experiment from the run config and lets the coordinator run it."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedge.clock import RealClock
from fedge.experiment import Experiment, boards
from server.grid_port import GridPort
from server.runs import play

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run, or go on with, the experiment of the run folder."""
    experiment = Experiment.model_validate_json(str(context.run_config["experiment"]))
    folder = Path(str(context.run_config["folder"]))
    names = [board.name for board in boards(experiment)]
    least = 1 if experiment.backend == "fleet" else len(names)
    port = GridPort(grid, names, RealClock(), experiment.superlink.connect_timeout_s, least)
    play(experiment, port, folder)

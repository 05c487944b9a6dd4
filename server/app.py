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
    port = GridPort(grid, [board.name for board in boards(experiment)], RealClock())
    play(experiment, port, folder)

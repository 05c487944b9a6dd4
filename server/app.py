"""The Flower ServerApp: reads the resolved experiment from the run config and lets the coordinator run it."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedge.clock import RealClock
from fedge.experiment import Experiment, boards
from server.claiming import Claiming
from server.grid_port import GridPort
from server.runs import claim_of, play

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run, or go on with, the experiment of the run folder; real boards are told when it is over."""
    experiment = Experiment.model_validate_json(str(context.run_config["experiment"]))
    folder = Path(str(context.run_config["folder"]))
    names = [board.name for board in boards(experiment)]
    real = experiment.backend == "fleet"
    claiming = Claiming(claim_of(experiment, folder), experiment.reply_timeout_s) if real else None
    least = 1 if real else len(names)
    port = GridPort(grid, names, RealClock(), experiment.superlink.connect_timeout_s, least, claiming)
    try:
        play(experiment, port, folder, overdue=port)
    finally:
        port.farewell()

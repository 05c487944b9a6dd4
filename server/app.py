"""The Flower ServerApp: read the resolved experiment from the run configuration and run or resume it."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedge.clock import RealClock
from fedge.experiment import Experiment, list_boards
from fedge.garbage_collection import collect_rarely
from server.run import is_run_over, read_claim_name, run_experiment
from server.transport.claim_terms import ClaimTerms
from server.transport.emulating_port import EmulatingNodes
from server.transport.grid_port import GridPort

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run or resume the experiment of the run folder; release the claimed real boards at the end."""
    experiment = Experiment.model_validate_json(str(context.run_config["experiment"]))
    folder = Path(str(context.run_config["folder"]))
    if experiment.backend != "fleet":
        with collect_rarely():
            run_experiment(experiment, EmulatingNodes(grid, experiment, RealClock(), folder), folder)
        return
    port = GridPort(
        grid,
        boards=[board.name for board in list_boards(experiment)],
        clock=RealClock(),
        claiming=ClaimTerms(read_claim_name(experiment, folder), experiment.reply_timeout_s, is_run_over),
        connect_timeout_s=experiment.superlink.connect_timeout_s,
    )
    try:
        run_experiment(experiment, port, folder, overdue=port)
    finally:
        port.release_boards()

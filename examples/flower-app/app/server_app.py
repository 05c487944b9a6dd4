"""The ServerApp: FedAvg, wrapped for power modes."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from app.task import Net
from fedge.flower import PowerAware

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds; with ``folder``, store the rows that ``fedge report`` reads."""
    torch.manual_seed(0)
    folder = str(context.run_config["folder"])
    strategy = PowerAware(FedAvg(), "balanced", folder=folder or None)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=int(str(context.run_config["num-server-rounds"])),
    )

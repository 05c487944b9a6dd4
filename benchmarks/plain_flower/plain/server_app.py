"""The ServerApp, as in Flower's quickstart: FedAvg's own loop, and a test of the global model after every round."""

from __future__ import annotations

from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from plain.task import network, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds with one phase of messages each, since the server evaluates the model, as in fedge."""
    config = context.run_config
    name, folder = str(config["model"]), Path(str(config["samples"]))
    shape = int(config["channels"]), int(config["size"])

    def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
        model = network(name, *shape)
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord(test(model, folder))

    nodes = int(config["nodes"])
    sampled = int(config["sampled"]) or nodes
    strategy = FedAvg(
        fraction_train=sampled / nodes, fraction_evaluate=0.0, min_train_nodes=sampled, min_available_nodes=nodes
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(network(name, *shape).state_dict()),
        num_rounds=int(config["rounds"]),
        evaluate_fn=evaluate,
    )

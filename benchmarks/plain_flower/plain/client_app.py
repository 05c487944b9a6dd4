"""The ClientApp, as in Flower's quickstart: build the network, load the weights, train, send them back."""

from __future__ import annotations

from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from plain.task import network
from plain.task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Run one round of training on the node's own samples."""
    config = context.run_config
    model = network(str(config["model"]), int(config["channels"]), int(config["size"]))
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    metrics = train_fn(
        model,
        folder=_find_samples(context),
        steps=int(config["steps"]),
        batch_size=int(config["batch-size"]),
        rate=float(config["learning-rate"]),
        momentum=float(config["momentum"]),
    )
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)


def _find_samples(context: Context) -> Path:
    """Return the folder of the node's samples: a board stores them with its settings, a simulated node has a number."""
    node = context.node_config
    if "settings" in node:
        return Path(str(node["settings"])).parent / "state" / "own"
    return Path(str(context.run_config["samples"])) / str(node["partition-id"])

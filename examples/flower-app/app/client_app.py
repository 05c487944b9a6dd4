"""The ClientApp: Flower's own shape, and a mod for power modes."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from app.task import Net, load_data, test, train
from fedge.flower import power_mode

POWER_MODE = power_mode(
    device=["emulated:nano", "emulated:agx-orin-64gb"],
    network="app.task:Net",
    input_shape=(1, 8, 8),
    knowledge="~/.cache/fedge/flower-app",  # what a run measured helps the next one
)
app = ClientApp(mods=[POWER_MODE])


def _prepare(message: Message, context: Context) -> tuple[Net, tuple[torch.utils.data.DataLoader[object], ...]]:
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    node, config = context.node_config, context.run_config
    partition, partitions = int(str(node["partition-id"])), int(str(node["num-partitions"]))
    return net, load_data(partition, partitions, int(str(config["batch-size"])))  # type: ignore[return-value]


@app.train()
def train_model(message: Message, context: Context) -> Message:
    """Train the model on the local data."""
    net, (loader, _) = _prepare(message, context)
    torch.manual_seed(0)
    config = context.run_config
    loss = train(net, loader, int(str(config["local-epochs"])), float(str(config["learning-rate"])))  # type: ignore[arg-type]
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})  # type: ignore[arg-type]
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate_model(message: Message, context: Context) -> Message:
    """Evaluate the model on the local data."""
    net, (_, loader) = _prepare(message, context)
    loss, accuracy = test(net, loader)  # type: ignore[arg-type]
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(loader.dataset)})  # type: ignore[arg-type]
    return Message(RecordDict({"metrics": metrics}), reply_to=message)

"""The Flower ClientApp: unpack the message, let the board answer, pack the reply."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedge.experiment import Experiment
from fedge.fleetsim import client
from fedge.wire import Ask, from_json, to_json

app = ClientApp()


@app.query()
def offer(message: Message, context: Context) -> Message:
    """The board's front, before any round."""
    return _reply(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round of training."""
    return _reply(message, context)


def _reply(message: Message, context: Context) -> Message:
    experiment = Experiment.model_validate_json(str(context.run_config["experiment"]))
    index = int(context.node_config["partition-id"])
    ask = from_json(Ask, str(message.content.config_records["fedge"]["ask"]))
    records = message.content.array_records
    arrays = {name: array.numpy() for name, array in records["arrays"].items()} if "arrays" in records else None
    answer, trained = client.answer(experiment, index, ask, arrays)
    content = RecordDict({"fedge": ConfigRecord({"answer": to_json(answer)})})
    if trained is not None:
        content["arrays"] = ArrayRecord({name: Array(value) for name, value in trained.arrays.items()})
        content["metrics"] = MetricRecord({"loss": trained.loss, "accuracy": trained.accuracy})
    return Message(content=content, reply_to=message)

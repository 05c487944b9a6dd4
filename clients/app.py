"""The Flower ClientApp: unpack the message, let the board answer, pack the reply."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedge.experiment import Experiment
from fedge.fleetsim import client as fleetsim
from fedge.types import NamedArrays, TrainResult
from fedge.wire import Answer, Ask, from_json, to_json

EMULATED = "partition-id"
"""Flower's simulation tells every node its place; a real board's node has none."""

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
    ask = from_json(Ask, str(message.content.config_records["fedge"]["ask"]))
    records = message.content.array_records
    arrays = {name: array.numpy() for name, array in records["arrays"].items()} if "arrays" in records else None
    folder = str(context.run_config.get("folder", ""))
    answer, trained = _answer(experiment, context.node_config, ask, arrays, Path(folder) if folder else None)
    content = RecordDict({"fedge": ConfigRecord({"answer": to_json(answer)})})
    if trained is not None and not answer.cut:
        content["arrays"] = ArrayRecord({name: Array(value) for name, value in trained.arrays.items()})
        content["metrics"] = MetricRecord({"loss": trained.loss, "accuracy": trained.accuracy})
    return Message(content=content, reply_to=message)


def _answer(
    experiment: Experiment, node: Mapping[str, object], ask: Ask, arrays: NamedArrays | None, folder: Path | None = None
) -> tuple[Answer, TrainResult | None]:
    """Of the emulated board of this place in the fleet, in the run's folder, or, on a real board, of that itself."""
    if EMULATED in node:
        return fleetsim.answer(experiment, int(str(node[EMULATED])), ask, arrays, folder)
    from fedge.node import client as on_board
    from fedge.node.settings import SETTINGS, read_settings

    return on_board.answer(experiment, read_settings(Path(str(node.get("settings", SETTINGS)))), ask, arrays)

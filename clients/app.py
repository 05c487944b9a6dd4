"""The Flower ClientApp: decode the message, let the client compute the reply, encode it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedge.client import emulated as fleetsim
from fedge.experiment import Experiment
from fedge.flower.client_mods import apply_mods
from fedge.flower.update_codec import encode_answer
from fedge.types import NamedArrays, TrainResult
from fedge.wire import ReplyMessage, RequestMessage, from_json, to_json

PARTITION_KEY = "partition-id"
"""Flower's simulation gives every node its index under this key; nodes on real boards do not have it. A request that
names a board and its experiment makes any node that board.
"""

app = ClientApp()


@app.query()
def query_front(message: Message, context: Context) -> Message:
    """Reply with the client's Pareto front, before any round."""
    return _build_reply(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train for one round and reply with the report and, unless the round was cut off, the trained arrays."""
    return _build_reply(message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the model on the client's own test samples and reply with the report."""
    return _build_reply(message, context)


def _build_reply(message: Message, context: Context) -> Message:
    request = message.content.config_records["fedge"]
    experiment = _parse_experiment(str(request.get("experiment", context.run_config["experiment"])))
    node = {**context.node_config, **({PARTITION_KEY: request["index"]} if "index" in request else {})}
    ask = from_json(RequestMessage, str(request["ask"]))
    records = message.content.array_records
    arrays = {name: array.numpy() for name, array in records["arrays"].items()} if "arrays" in records else None
    # The folder of a run config that names no board is a path on the server's machine.
    folder = "" if "index" in request else str(context.run_config.get("folder", ""))
    answer, trained = _compute_answer(
        experiment, node=node, ask=ask, arrays=arrays, folder=Path(folder) if folder else None
    )
    answer, trained = apply_mods(experiment, ask, arrays, (answer, trained))
    # A simulated client's node keeps nothing beyond the run's process, so its state comes with the request.
    kept = message.content if PARTITION_KEY in node else context.state
    residual = kept.array_records["residual"]["residual"].numpy() if "residual" in kept.array_records else None
    answer, trained = encode_answer(ask, arrays, residual, (answer, trained))
    content = RecordDict({"fedge": ConfigRecord({"answer": to_json(answer)})})
    if trained is not None and not answer.cut:
        content["arrays"] = ArrayRecord({name: Array(value) for name, value in trained.arrays.items()})
        content["metrics"] = MetricRecord({"loss": trained.loss, "accuracy": trained.accuracy, **trained.metrics})
        if trained.residual is not None:
            keeper = content if PARTITION_KEY in node else context.state
            keeper["residual"] = ArrayRecord({"residual": Array(trained.residual)})
    return Message(content=content, reply_to=message)


@lru_cache(maxsize=4)
def _parse_experiment(text: str) -> Experiment:
    return Experiment.model_validate_json(text)


def _compute_answer(
    experiment: Experiment,
    node: Mapping[str, object],
    ask: RequestMessage,
    arrays: NamedArrays | None,
    folder: Path | None = None,
) -> tuple[ReplyMessage, TrainResult | None]:
    """Answer for the emulated client with the node's partition index, or, on a real board, for the board itself.

    The node has ``PARTITION_KEY`` in simulation only. Only emulated clients use ``folder``, the run's.
    """
    if PARTITION_KEY in node:
        return fleetsim.answer_request(
            experiment, index=int(str(node[PARTITION_KEY])), request=ask, arrays=arrays, folder=folder
        )
    from fedge.client import real as on_board
    from fedge.devices.local_board import SETTINGS_PATH, read_settings

    return on_board.answer_request(
        experiment, read_settings(Path(str(node.get("settings", SETTINGS_PATH)))), ask, arrays
    )

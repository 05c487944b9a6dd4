"""The Flower ClientApp: decode the message, let the client compute the reply, encode it."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedge.client.answers import Answer
from fedge.client.emulated import ClientTask
from fedge.experiment import Experiment
from fedge.flower.client_mods import apply_mods
from fedge.flower.emulated_clients import answer_tasks
from fedge.flower.messages import from_array_record, name_part, to_array_record
from fedge.flower.update_codec import encode_answer
from fedge.garbage_collection import GC_THRESHOLD
from fedge.types import Floats32, Measurement, NamedArrays
from fedge.wire import RequestMessage, from_json, to_json

SHARED = tuple[Measurement, ...]
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
    """Reply as the emulated boards that the message names, or else as the real board of this node."""
    request = message.content.config_records["fedge"]
    content = _answer_emulated(message.content) if "asks" in request else _answer_as_board(message.content, context)
    return Message(content=content, reply_to=message)


def _answer_emulated(content: RecordDict) -> RecordDict:
    """Answer for several emulated boards; as a node keeps nothing, the residuals of encodings come and go with it."""
    gc.set_threshold(GC_THRESHOLD)  # of this process, which does nothing else
    request: Mapping[str, Any] = content.config_records["fedge"]
    experiment, folder = _parse_experiment(request["experiment"]), request["folder"]
    arrays = _read_arrays(content)
    tasks = [
        ClientTask(
            experiment,
            index,
            ask,
            arrays,
            folder=Path(folder) if folder else None,
            residual=_read_residual(content, name_part("residual", place)),
        )
        for place, (index, ask) in enumerate(zip(request["boards"], _read_asks(request), strict=True))
    ]
    answers = answer_tasks(tasks)
    texts = [to_json(answer) for answer, _ in answers]
    reply = RecordDict({"fedge": ConfigRecord({"answers": texts, "process": os.getpid()})})
    for place, answer in enumerate(answers):
        for name, record in _encode_result(answer).items():
            reply[name_part(name, place)] = record
        if (residual := _find_residual(answer)) is not None:
            reply[name_part("residual", place)] = to_array_record({"residual": residual})
    return reply


def _read_asks(request: Mapping[str, Any]) -> list[RequestMessage]:
    """Return the requests of a group, with the measurements of peers, which are sent once for all that get the same."""
    shared = [from_json(SHARED, text) for text in request["shared"]]
    asks = [from_json(RequestMessage, text) for text in request["asks"]]
    return [replace(ask, shared=shared[place]) for ask, place in zip(asks, request["shared_of"], strict=True)]


def _answer_as_board(content: RecordDict, context: Context) -> RecordDict:
    """Answer for the board of this node, which keeps the residual of its encodings itself."""
    request: Mapping[str, Any] = content.config_records["fedge"]
    experiment = _parse_experiment(str(context.run_config["experiment"]))
    ask, arrays = from_json(RequestMessage, request["ask"]), _read_arrays(content)
    answer = apply_mods(experiment, ask, arrays, _compute_answer(experiment, context.node_config, ask, arrays))
    answer = encode_answer(ask, arrays, _read_residual(context.state, "residual"), answer)
    if (residual := _find_residual(answer)) is not None:
        context.state["residual"] = to_array_record({"residual": residual})
    return RecordDict({"fedge": ConfigRecord({"answer": to_json(answer[0])}), **_encode_result(answer)})


def _read_arrays(content: RecordDict) -> NamedArrays | None:
    return from_array_record(content.array_records["arrays"]) if "arrays" in content.array_records else None


def _read_residual(records: RecordDict, name: str) -> Floats32 | None:
    return records.array_records[name]["residual"].numpy() if name in records.array_records else None


def _encode_result(answer: Answer) -> dict[str, ArrayRecord | MetricRecord]:
    """Return the records of a training result; none for an answer without one, or of a round that was cut off."""
    reply, trained = answer
    if trained is None or reply.cut:
        return {}
    metrics = MetricRecord({"loss": trained.loss, "accuracy": trained.accuracy, **trained.metrics})
    return {"arrays": to_array_record(trained.arrays), "metrics": metrics}


def _find_residual(answer: Answer) -> Floats32 | None:
    reply, trained = answer
    return None if trained is None or reply.cut else trained.residual


@lru_cache(maxsize=4)
def _parse_experiment(text: str) -> Experiment:
    return Experiment.model_validate_json(text)


def _compute_answer(
    experiment: Experiment, node: Mapping[str, object], ask: RequestMessage, arrays: NamedArrays | None
) -> Answer:
    """Answer for the board whose settings file the node names."""
    from fedge.client import real as on_board
    from fedge.devices.local_board import SETTINGS_PATH, read_settings

    return on_board.answer_request(
        experiment, read_settings(Path(str(node.get("settings", SETTINGS_PATH)))), ask, arrays
    )

"""Flower's client mods in an experiment: what a client trained passes through them before it is sent.

Mods act on Flower messages. So the request and the result are put into messages as Flower's own strategies and apps
have them: one record of arrays, one of settings, one of metrics.
"""

from __future__ import annotations

import inspect
import logging
import random
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import flwr
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client.mod.utils import make_ffn
from flwr.clientapp import mod as flower_mods
from flwr.clientapp.typing import Mod

import fedge
from fedge import registry
from fedge.errors import BadInput, FedgeError, describe_error
from fedge.experiment import Experiment, ModSpec
from fedge.flower.messages import build_message, from_array_record, to_array_record
from fedge.seeds import derive_seed
from fedge.types import NamedArrays, TrainResult
from fedge.wire import ReplyMessage, RequestMessage
from fedge.worker.subnetwork_arrays import array_shapes

logger = logging.getLogger(__name__)

MODS = {name: f"flwr.clientapp.mod:{name}" for name in flower_mods.__all__}
NO_SECURE_AGGREGATION = (
    "no such mod: Flower has secure aggregation only for its former workflows (flwr.server.workflow), in which no "
    "strategy of flwr.serverapp runs"
)
REFUSED_MODS = dict.fromkeys(("secagg_mod", "secaggplus_mod"), NO_SECURE_AGGREGATION)
"""Mods that no strategy here understands, each with the reason."""
EXAMPLES, LOSS, ACCURACY = "num-examples", "loss", "accuracy"


def build_mod(spec: ModSpec, where: str) -> Mod:
    """Build a mod: a function as it is, an object of a class with its options.

    Raises:
        BadInput: The name or an option is unknown, or an option has an invalid value.
    """
    if spec.name in REFUSED_MODS:
        raise BadInput(f"{where}.name", repr(spec.name), REFUSED_MODS[spec.name])
    found: Any = registry.load_named(f"{where}.name", spec.name, MODS)
    mod: Any = found
    if inspect.isclass(found):
        try:
            mod = found(**spec.options)
        except (TypeError, ValueError) as error:
            raise BadInput(f"{where}.options", repr(spec.options), f"what {spec.name} takes ({error})") from error
    elif spec.options:
        raise BadInput(f"{where}.options", repr(spec.options), f"none: {spec.name} is a function without options")
    return cast("Mod", mod)


def apply_mods(
    experiment: Experiment,
    request: RequestMessage,
    arrays: NamedArrays | None,
    answer: tuple[ReplyMessage, TrainResult | None],
) -> tuple[ReplyMessage, TrainResult | None]:
    """Return a client's answer after the experiment's mods; one without a training result stays as it is.

    Noise that a mod draws from a global generator (numpy's, torch's, Python's) follows from the experiment's seed, the
    board and the round. A mod that fails, or sends what cannot be aggregated, makes an answer with ``error``.
    """
    reply, trained = answer
    if not experiment.mods or trained is None or arrays is None or reply.cut:
        return answer
    samples = 0 if reply.report is None else reply.report.samples
    _seed_generators(derive_seed(experiment.seed, reply.board, request.round, "mods"))
    try:
        mods = [build_mod(spec, f"mods[{i}]") for i, spec in enumerate(experiment.mods)]
        sent = _run_chain(mods, request, arrays=arrays, trained=trained, samples=samples)
        return reply, _read_result(sent, trained, request.trainable)
    except Exception as error:
        logger.info("a mod of %s failed in round %s", reply.board, request.round, exc_info=error)
        return ReplyMessage(reply.board, error=f"a mod failed: {describe_error(error)}{_find_place(error)}"), None


def _find_place(error: Exception) -> str:
    """Return file and line of the user's own code in which an error was raised, or nothing."""
    libraries = [Path(str(module.__file__)).parent for module in (fedge, flwr)]
    paths = [(Path(one.filename), one.lineno) for one in traceback.extract_tb(error.__traceback__)]
    own = [(path.name, line) for path, line in paths if not any(map(path.is_relative_to, libraries))]
    return f" ({own[-1][0]}:{own[-1][1]})" if own else ""


def _seed_generators(seed: int) -> None:
    """Seed every global generator that a mod may draw from; torch's only where it is in use, as its import is slow."""
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


def _read_result(sent: Any, trained: TrainResult, trainable: Sequence[str]) -> TrainResult:
    """Return the training result with what the mods made of it; raises ``FedgeError`` if it is no result any more."""
    if not isinstance(sent, Message):
        raise FedgeError(f"it returned {type(sent).__name__}; a mod returns what call_next gave it, or a Message")
    if sent.has_error():
        raise FedgeError(sent.error.reason)
    metrics: Mapping[str, Any] = next(iter(sent.content.metric_records.values()), {})
    if missing := sorted({LOSS, ACCURACY} - metrics.keys()):
        raise FedgeError(f"what it sends has no {' and no '.join(missing)}")
    record = next(iter(sent.content.array_records.values()), None)
    changed = {} if record is None else from_array_record(record)
    shapes = {name: np.atleast_1d(trained.arrays[name]).shape for name in trainable}
    if array_shapes(changed) != shapes:
        raise FedgeError(f"it sends arrays of the shapes {array_shapes(changed)}; the model has {shapes}")
    return TrainResult(
        {name: np.reshape(changed.get(name, value), np.shape(value)) for name, value in trained.arrays.items()},
        float(metrics[LOSS]),
        float(metrics[ACCURACY]),
        {name: float(value) for name, value in metrics.items() if name not in {EXAMPLES, LOSS, ACCURACY}},
    )


def _run_chain(
    mods: list[Mod], request: RequestMessage, *, arrays: NamedArrays, trained: TrainResult, samples: int
) -> Message:
    """Send the request through the mods to an app that has trained already, and its reply back through them."""

    def app(message: Message, _context: Context) -> Message:
        if next(iter(message.content.array_records.values())) is not learnt:
            raise BadInput("mods", "one that changes the model before the training", "mods that act on what is sent")
        content: dict[str, Any] = {
            "arrays": _select(trained.arrays, request.trainable),
            "metrics": MetricRecord({EXAMPLES: samples, LOSS: trained.loss, ACCURACY: trained.accuracy}),
        }
        return Message(RecordDict(content), reply_to=message)

    learnt = _select(arrays, request.trainable)
    content = RecordDict({"arrays": learnt, "config": ConfigRecord(dict(request.settings))})
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    return make_ffn(app, mods)(build_message(content, "train", 1), context)


def _select(arrays: NamedArrays, names: tuple[str, ...]) -> ArrayRecord:
    """Return the trainable arrays as a record, with at least one dimension each, as a strategy sends them."""
    return to_array_record({name: np.atleast_1d(arrays[name]) for name in names})

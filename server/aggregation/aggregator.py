"""Aggregation by a Flower strategy: the arrays to send, the new model from the replies, and the strategy's state."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flwr.serverapp.strategy as flower_strategies
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedge import registry
from fedge.errors import LOWER_RATE, BadInput, FedgeError, list_known
from fedge.experiment import StrategySpec
from fedge.flower.messages import build_message, ensure_identity, from_array_record, hold_arrays, to_array_record
from fedge.seeds import derive_seed
from fedge.types import EvaluationReport, NamedArrays

STRATEGIES = {
    name: f"flwr.serverapp.strategy:{name}"
    for name, value in vars(flower_strategies).items()
    if inspect.isclass(value) and issubclass(value, Strategy) and value is not Strategy
} | {
    "FedAsync": "server.aggregation.async_strategies:FedAsync",
    "FedBuff": "server.aggregation.async_strategies:FedBuff",
}
SELECT_ALL_OPTIONS = {
    "fraction_train": 1.0,
    "min_train_nodes": 1,
    "fraction_evaluate": 1.0,
    "min_evaluate_nodes": 1,
    "min_available_nodes": 1,
}
"""Options that switch off a strategy's own client sampling, since the coordinator has already selected the clients."""


class ArrayMismatch(FedgeError):
    """A client's arrays do not have the global model's names, shapes and kinds of numbers, or hold none."""


@dataclass(frozen=True, slots=True, eq=False)
class Contribution:
    """One client's result, as it enters the aggregation.

    Attributes:
        arrays: Trained arrays by name; may be the leading part of the model (a narrow network).
        samples: Number of training samples, the client's weight before the discount.
        steps: Number of SGD steps; 0 if unknown.
        discount: Factor on the weight, below 1 for a late result.
    """

    board: str
    arrays: NamedArrays
    samples: int
    loss: float
    accuracy: float
    steps: int = 0
    discount: float = 1.0
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def weight(self) -> float:
        """Weight in the average: samples times discount."""
        return self.samples if self.discount == 1.0 else self.samples * self.discount


class SelectedNodes:
    """Replaces Flower's Grid in a strategy that only asks it for node ids."""

    def __init__(self, count: int) -> None:
        self._count = count

    def get_node_ids(self) -> list[int]:
        return list(range(1, self._count + 1))


def build_strategy(spec: StrategySpec, where: str = "strategy") -> Strategy:
    """Build the strategy that the experiment names; errors name its field ``where``.

    Raises:
        BadInput: The class or an option is unknown, or an option has an invalid value.
    """
    make = registry.load_named(f"{where}.name", spec.name, STRATEGIES)
    accepted = inspect.signature(make).parameters
    options: dict[str, Any] = {key: value for key, value in SELECT_ALL_OPTIONS.items() if key in accepted}
    if spec.wraps is not None:
        options["strategy"] = build_strategy(spec.wraps, f"{where}.wraps")
    unknown = sorted(set(spec.options) - set(accepted))
    if unknown:
        got, right = repr(spec.options[unknown[0]]), list_known(unknown[0], accepted)
        raise BadInput(f"{where}.options.{unknown[0]}", got, right)
    for key, value in spec.options.items() if str(make.__module__).startswith("flwr.") else ():  # others check theirs
        default = accepted[key].default
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if isinstance(default, int | float) and not isinstance(default, bool) and not is_number:
            raise BadInput(f"{where}.options.{key}", repr(value), "a finite number")
    try:
        strategy: Strategy = make(**options | spec.options)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{where}.options", repr(spec.options), f"what {spec.name} takes ({error})") from error
    return strategy


class Aggregator:
    """Applies a strategy to one round at a time; seeds the global generator from which Flower draws its noise.

    The strategy only sees trainable arrays. ``buffers`` (batch-norm statistics) are averaged by samples instead, since
    momentum or noise could make a variance negative. For integer arrays (step counters) the maximum is used.
    """

    def __init__(self, strategy: Strategy, seed: int, buffers: Collection[str] = ()) -> None:
        self._strategy = strategy
        self._settings = {path: array for path, array in _export_state(strategy).items() if NUMBER in path}
        self._seed = seed
        self._buffers = frozenset(buffers)

    def configure(self, round_number: int, arrays: NamedArrays, clients: int) -> tuple[NamedArrays, dict[str, float]]:
        """Return what the strategy sends to each of the ``clients`` clients of a round.

        Returns:
            The arrays to send, and the strategy's numeric settings, such as ``proximal-mu``.
        """
        ensure_identity()
        learnt = to_array_record(self._select_trainable(arrays))
        messages = self._strategy.configure_train(
            round_number,
            learnt,
            ConfigRecord(),
            SelectedNodes(clients),  # type: ignore[arg-type]
        )
        content = next(iter(messages)).content
        sent = next(iter(content.array_records.values()))
        numbers = {
            key: float(value)
            for record in content.config_records.values()
            for key, value in record.items()
            if isinstance(value, int | float)
        }
        return cast_like(arrays, from_array_record(sent)), numbers

    def aggregate(self, round_number: int, arrays: NamedArrays, contributions: Sequence[Contribution]) -> NamedArrays:
        """Return the new global model, with the data types of ``arrays``, the one that was sent.

        Contributions, at least one and each with the shapes of the model, are aggregated in the order of client names,
        and those of one client in the order given, so that the result does not depend on the order of arrival.

        Raises:
            FedgeError: The strategy gives no model.
        """
        ordered = sorted(contributions, key=lambda c: c.board)
        replies = [
            build_message(build_content(c, self._select_trainable(c.arrays)), "train", node)
            for node, c in enumerate(ordered, start=1)
        ]
        # Flower's differential-privacy wrappers draw from numpy's global generator.
        np.random.seed(derive_seed(self._seed, "aggregate", round_number))  # noqa: NPY002
        record, _ = self._strategy.aggregate_train(round_number, replies)
        if record is None:
            raise FedgeError(f"the strategy gave no model for {len(ordered)} results")
        kept = {name: _average_buffer(name, ordered) for name in arrays.keys() - self._select_trainable(arrays).keys()}
        return cast_like(arrays, from_array_record(record) | kept)

    def configure_evaluate(self, round_number: int, arrays: NamedArrays, clients: int) -> NamedArrays | None:
        """Return the model that the strategy sends to each of ``clients`` clients; None if it lets none evaluate."""
        ensure_identity()
        learnt = to_array_record(self._select_trainable(arrays))
        nodes: Any = SelectedNodes(clients)
        messages = list(self._strategy.configure_evaluate(round_number, learnt, ConfigRecord(), nodes))
        if not messages:
            return None
        return cast_like(arrays, from_array_record(next(iter(messages[0].content.array_records.values()))))

    def aggregate_evaluate(
        self, round_number: int, evaluations: Sequence[EvaluationReport]
    ) -> tuple[float, float] | None:
        """Return the strategy's loss and accuracy of all clients, in the order of their names; None without any."""
        contents = [
            RecordDict(
                {"metrics": MetricRecord({"num-examples": one.samples, "loss": one.loss, "accuracy": one.accuracy})}
            )
            for one in sorted(evaluations, key=lambda one: one.board)
        ]
        replies = [build_message(content, "evaluate", node) for node, content in enumerate(contents, start=1)]
        metrics: Any = self._strategy.aggregate_evaluate(round_number, replies)
        if metrics is None or not {"loss", "accuracy"} <= set(metrics):
            return None
        return float(metrics["loss"]), float(metrics["accuracy"])

    def order_trainable(self, arrays: NamedArrays) -> tuple[str, ...]:
        """Return the names of the arrays that a strategy averages or moves, in the model's order."""
        return tuple(self._select_trainable(arrays))

    def _select_trainable(self, arrays: NamedArrays) -> NamedArrays:
        """Return the trainable arrays, with at least one dimension."""
        return {
            name: np.atleast_1d(value)
            for name, value in arrays.items()
            if name not in self._buffers and value.dtype.kind == "f"
        }

    def export_state(self) -> dict[str, np.ndarray]:
        """Return the strategy's arrays (such as momentum) and what changed of its numbers, flat, for a checkpoint.

        Numbers that are still as they were built are settings, which a resumed run takes from its experiment.
        """
        state = _export_state(self._strategy)
        return {path: array for path, array in state.items() if NUMBER not in path or self._settings.get(path) != array}

    def restore_state(self, memory: Mapping[str, np.ndarray]) -> None:
        """Restore the strategy's state from the result of ``export_state``."""
        _restore_state(self._strategy, memory)


def check_arrays(arrays: NamedArrays, contribution: Contribution) -> None:
    """Check that a contribution fits the model, or the leading part of it that the client trained.

    Flower would silently broadcast some mismatched shapes.

    Raises:
        ArrayMismatch: Names, shapes or kinds of numbers differ, or a value is not finite.
    """
    want = {name: np.shape(value) for name, value in arrays.items()}
    got = {name: np.shape(value) for name, value in contribution.arrays.items()}
    for name in sorted(want.keys() | got.keys()):
        if want.get(name) != got.get(name):
            raise ArrayMismatch(f"array {name!r}: got shape {got.get(name)}; the model has {want.get(name)}")
    for name, value in contribution.arrays.items():
        if value.dtype.kind != arrays[name].dtype.kind:
            raise ArrayMismatch(f"array {name!r}: got {value.dtype}; the model has {arrays[name].dtype}")
        if not np.isfinite(value).all():
            raise ArrayMismatch(f"array {name!r}: holds values that are not finite; {LOWER_RATE}")


def _average_buffer(name: str, contributions: Sequence[Contribution]) -> NDArray[np.generic]:
    """Return the weighted mean of a floating-point buffer, or the maximum of an integer one."""
    values = [c.arrays[name] for c in contributions]
    if not np.issubdtype(values[0].dtype, np.floating):
        return np.asarray(np.max(values, axis=0))
    weighted = [c.weight * np.asarray(value, dtype=np.float64) for c, value in zip(contributions, values, strict=True)]
    return np.asarray(sum(weighted) / sum(c.weight for c in contributions))


def cast_like(arrays: NamedArrays, new: NamedArrays) -> NamedArrays:
    """Return ``new`` with the order, shapes and types of ``arrays``, which also fills in what ``new`` lacks."""
    return {
        name: np.asarray(new.get(name, old)).astype(old.dtype, copy=False).reshape(old.shape)
        for name, old in arrays.items()
    }


def build_content(contribution: Contribution, learnt: NamedArrays) -> RecordDict:
    """Return the content of a reply with the trainable arrays, as Flower's strategies take it."""
    metrics: dict[str, int | float | list[int] | list[float]] = {
        "num-examples": contribution.weight,
        "train_loss": contribution.loss,
        "train_accuracy": contribution.accuracy,
        **contribution.metrics,
    }
    return RecordDict({"arrays": hold_arrays(learnt), "metrics": MetricRecord(metrics)})


NUMBER = "/number/"
"""In the path of a number of the strategy's state."""


def _export_state(strategy: Any) -> dict[str, np.ndarray]:
    """Collect every array and number among the strategy's attributes, keyed by ``attribute/kind/index/key``.

    The index keeps the order: some strategies hold their momentum as a list in the order of the arrays.
    """
    flat: dict[str, np.ndarray] = {}
    for name, value in vars(strategy).items():
        if isinstance(value, Strategy):
            flat |= {f"{name}/strategy/{path}": array for path, array in _export_state(value).items()}
            continue
        kind, values = _flatten_value(value)
        flat |= {f"{name}/{kind}/{i:06d}/{key}": array for i, (key, array) in enumerate(values.items())}
    return flat


def _flatten_value(value: Any) -> tuple[str, Mapping[str, np.ndarray]]:
    if isinstance(value, ArrayRecord):
        return "record", from_array_record(value)
    if isinstance(value, dict) and all(isinstance(v, np.ndarray) for v in value.values()):
        return "dict", value
    if isinstance(value, list) and all(isinstance(v, np.ndarray) for v in value):
        return "list", {str(i): v for i, v in enumerate(value)}
    if isinstance(value, int | float):
        return "number", {"0": np.array(value)}
    return "nothing", {}


_REBUILD_BY_KIND: dict[str, Callable[[dict[str, np.ndarray]], Any]] = {
    "record": to_array_record,
    "dict": dict,
    "list": lambda values: list(values.values()),
    "number": lambda values: values["0"].item(),
}


def _restore_state(strategy: Any, memory: Mapping[str, np.ndarray]) -> None:
    parts: dict[tuple[str, str], dict[str, np.ndarray]] = {}
    for path, array in sorted(memory.items()):
        name, kind, rest = path.split("/", 2)
        parts.setdefault((name, kind), {})[rest] = array
    for (name, kind), values in parts.items():
        if kind == "strategy":
            _restore_state(getattr(strategy, name), values)
        else:
            in_order = {path.split("/", 1)[1]: array for path, array in values.items()}
            setattr(strategy, name, _REBUILD_BY_KIND[kind](in_order))

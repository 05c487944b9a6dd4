"""Aggregation by a Flower strategy: what a round sends, what comes of its replies, and the strategy's own memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import flwr.serverapp.strategy as flower_strategies
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedge import registry
from fedge.errors import BadInput, FedgeError
from fedge.experiment import StrategySpec
from fedge.seeds import derive_seed
from fedge.types import NamedArrays
from server.transport.flower_messages import build_message, ensure_identity, from_array_record, to_array_record

STRATEGIES = {
    name: f"flwr.serverapp.strategy:{name}"
    for name, value in vars(flower_strategies).items()
    if inspect.isclass(value) and issubclass(value, Strategy) and value is not Strategy
} | {
    "FedAsync": "server.aggregation.async_strategies:FedAsync",
    "FedBuff": "server.aggregation.async_strategies:FedBuff",
}
SELECT_ALL_OPTIONS = {"fraction_train": 1.0, "min_train_nodes": 1, "min_available_nodes": 1}
"""The coordinator selects the clients; the strategy must not sample again, nor wait for more."""


class ArrayMismatch(FedgeError):
    """A client's arrays do not have the global model's names and shapes."""


@dataclass(frozen=True, slots=True, eq=False)
class Contribution:
    """One client's result: its arrays, and the samples that weigh them.

    ``steps`` minibatches made it; ``discount`` below 1 makes it weigh less than its samples (a late one).
    """

    board: str
    arrays: NamedArrays
    samples: int
    loss: float
    accuracy: float
    steps: int = 0
    discount: float = 1.0

    @property
    def weight(self) -> float:
        """What weighs it: its samples, discounted."""
        return self.samples if self.discount == 1.0 else self.samples * self.discount


class _SelectedNodes:
    """Stands in for Flower's Grid where a strategy only asks for the node ids."""

    def __init__(self, count: int) -> None:
        self._count = count

    def get_node_ids(self) -> list[int]:
        return list(range(1, self._count + 1))


def build_strategy(spec: StrategySpec, where: str = "strategy") -> Strategy:
    """The strategy that the experiment names; raises ``BadInput`` for an unknown class or option."""
    make = registry.load_named(f"{where}.name", spec.name, STRATEGIES)
    accepted = inspect.signature(make).parameters
    options: dict[str, Any] = {key: value for key, value in SELECT_ALL_OPTIONS.items() if key in accepted}
    if spec.wraps is not None:
        options["strategy"] = build_strategy(spec.wraps, f"{where}.wraps")
    unknown = sorted(set(spec.options) - set(accepted))
    if unknown:
        raise BadInput(f"{where}.options.{unknown[0]}", repr(spec.options[unknown[0]]), f"known: {', '.join(accepted)}")
    try:
        strategy: Strategy = make(**options | spec.options)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{where}.options", repr(spec.options), f"what {spec.name} takes ({error})") from error
    return strategy


class Aggregator:
    """Wraps a strategy for one round at a time; seeds the global generator that Flower's noise is drawn from.

    The strategy sees what is learnt. ``buffers`` (batch norm's statistics) are averaged by samples, since momentum or
    noise would make a variance negative; of integers (step counters) the largest counts.
    """

    def __init__(self, strategy: Strategy, seed: int, buffers: Collection[str] = ()) -> None:
        self._strategy = strategy
        self._seed = seed
        self._buffers = frozenset(buffers)

    def configure(self, round_number: int, arrays: NamedArrays, clients: int) -> tuple[NamedArrays, dict[str, float]]:
        """What the strategy sends to every client: arrays and numbers such as ``proximal-mu``."""
        ensure_identity()
        learnt = to_array_record(self._select_trainable(arrays))
        messages = self._strategy.configure_train(
            round_number,
            learnt,
            ConfigRecord(),
            _SelectedNodes(clients),  # type: ignore[arg-type]
        )
        content = next(iter(messages)).content
        sent = next(iter(content.array_records.values()))
        numbers = {
            key: float(value)
            for record in content.config_records.values()
            for key, value in record.items()
            if isinstance(value, int | float)
        }
        return _cast_like(arrays, from_array_record(sent)), numbers

    def aggregate(self, round_number: int, arrays: NamedArrays, contributions: Sequence[Contribution]) -> NamedArrays:
        """The new global arrays, with the old ones' types; replies are taken in the order of board names.

        Of several of one board, in the order given.
        """
        ordered = sorted(contributions, key=lambda c: c.board)
        replies = [
            build_message(_build_content(c, self._select_trainable(c.arrays)), "train", node)
            for node, c in enumerate(ordered, start=1)
        ]
        # Flower's differential-privacy wrappers draw from numpy's global generator.
        np.random.seed(derive_seed(self._seed, "aggregate", round_number))  # noqa: NPY002
        record, _ = self._strategy.aggregate_train(round_number, replies)
        if record is None:
            raise FedgeError(f"the strategy gave no model for {len(ordered)} results")
        kept = {name: _average_buffer(name, ordered) for name in arrays.keys() - self._select_trainable(arrays).keys()}
        return _cast_like(arrays, from_array_record(record) | kept)

    def trainable_names(self, arrays: NamedArrays) -> frozenset[str]:
        """The names of the arrays that a strategy averages or moves; the others are statistics and counters."""
        return frozenset(self._select_trainable(arrays))

    def _select_trainable(self, arrays: NamedArrays) -> NamedArrays:
        """What a strategy may average or move, at least one-dimensional."""
        return {
            name: np.atleast_1d(value)
            for name, value in arrays.items()
            if name not in self._buffers and np.issubdtype(value.dtype, np.floating)
        }

    def export_state(self) -> dict[str, np.ndarray]:
        """The strategy's own arrays (momentum and the like), flat by name, for a checkpoint."""
        return _export_state(self._strategy)

    def restore_state(self, memory: Mapping[str, np.ndarray]) -> None:
        """Put back what ``memory`` gave."""
        _restore_state(self._strategy, memory)


def check_arrays(arrays: NamedArrays, contribution: Contribution) -> None:
    """Raise ``ArrayMismatch`` unless names and shapes agree; Flower would broadcast some shapes without a word."""
    want = {name: np.shape(value) for name, value in arrays.items()}
    got = {name: np.shape(value) for name, value in contribution.arrays.items()}
    for name in sorted(want.keys() | got.keys()):
        if want.get(name) != got.get(name):
            raise ArrayMismatch(f"array {name!r}: got shape {got.get(name)}; the model has {want.get(name)}")
    for name, value in contribution.arrays.items():
        if not np.isfinite(value).all():
            raise ArrayMismatch(f"array {name!r}: holds values that are not finite; a lower learning rate may help")


def _average_buffer(name: str, contributions: Sequence[Contribution]) -> NDArray[np.generic]:
    """A buffer's mean by samples; an integer's largest value."""
    values = [c.arrays[name] for c in contributions]
    if not np.issubdtype(values[0].dtype, np.floating):
        return np.asarray(np.max(values, axis=0))
    weighted = [c.weight * np.asarray(value, dtype=np.float64) for c, value in zip(contributions, values, strict=True)]
    return np.asarray(sum(weighted) / sum(c.weight for c in contributions))


def _cast_like(arrays: NamedArrays, new: NamedArrays) -> NamedArrays:
    """``new`` with the order, shapes and types of ``arrays``; what ``new`` lacks stays as it was."""
    return {
        name: np.asarray(new.get(name, old)).astype(old.dtype, copy=False).reshape(old.shape)
        for name, old in arrays.items()
    }


def _build_content(contribution: Contribution, learnt: NamedArrays) -> RecordDict:
    metrics: dict[str, int | float | list[int] | list[float]] = {
        "num-examples": contribution.weight,
        "train_loss": contribution.loss,
        "train_accuracy": contribution.accuracy,
    }
    return RecordDict({"arrays": to_array_record(learnt), "metrics": MetricRecord(metrics)})


def _export_state(strategy: Any) -> dict[str, np.ndarray]:
    """Every array and float among the strategy's attributes, as ``attribute/kind/place/key``.

    The place keeps the order: some strategies hold their momentum as a list that follows the order of the arrays.
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
    if isinstance(value, float):
        return "float", {"0": np.array(value)}
    return "nothing", {}


_REBUILD_BY_KIND: dict[str, Callable[[dict[str, np.ndarray]], Any]] = {
    "record": to_array_record,
    "dict": dict,
    "list": lambda values: list(values.values()),
    "float": lambda values: float(values["0"]),
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

"""Asynchronous strategies, which merge stale results: FedAsync and FedBuff.

Symbols: x the model, v its version, x_i a client's result, v_i the version that it was trained from, tau = v - v_i its
staleness, a the exponent, s(tau) = (1 + tau)^-a its weight, K the buffer's size.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedge.errors import FedgeError
from fedge.flower.messages import build_message, from_array_record, to_array_record
from fedge.types import Floats, NamedArrays
from server.aggregation.aggregator import Contribution, SelectedNodes, build_content, cast_like
from server.aggregation.contribution_weights import compute_change, expand_results, staleness_discount

STALENESS = "staleness"
"""Key of a result's staleness among its metrics."""


class AsyncStrategy(Strategy):
    """A strategy that merges results as they arrive; ``server/rounds/async_coordinator.py`` runs it.

    A subclass implements ``update_array``, which moves one array of the model by the results.

    Args:
        buffer_size: Number of results that make a new model.
        concurrency: Number of clients that train at the same time; None means all.
        staleness_exponent: The exponent a of the weight s(tau), at least 0.

    Raises:
        ValueError: An option is out of range.
    """

    uses_changes: ClassVar[bool] = False
    """Whether messages carry the change x_i - x (of version v_i) instead of the result x_i."""

    def __init__(self, buffer_size: int, concurrency: int | None, staleness_exponent: float) -> None:
        self.buffer_size = _check_count("buffer_size", buffer_size)
        self.concurrency = None if concurrency is None else _check_count("concurrency", concurrency)
        self.staleness_exponent = _check_range("staleness_exponent", staleness_exponent, 0.0)
        self.proximal_mu = 0.0
        self._arrays: ArrayRecord | None = None

    @abstractmethod
    def update_array(self, old: NDArray[np.generic], results: Sequence[NDArray[np.generic]], weights: Floats) -> Floats:
        """Compute one array of the new model.

        Args:
            old: The array in the current model.
            results: The array in each result, in the order of completion; the same shape as ``old``.
            weights: s(tau) of each result, shape (n,).

        Returns:
            The new array in float64.
        """

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the current model to every node of ``grid``; the next results are merged into this model."""
        self._arrays = arrays
        config["server-round"] = server_round
        if self.proximal_mu:
            config["proximal-mu"] = self.proximal_mu
        content = RecordDict({"arrays": arrays, "config": config})
        return [build_message(content, "train", node) for node in grid.get_node_ids()]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the new model; replies are merged in the order given, which is the order of completion."""
        contents = [reply.content for reply in replies if not reply.has_error()]
        if self._arrays is None or not contents:
            return None, None
        results = [from_array_record(content.array_records["arrays"]) for content in contents]
        staleness = [_to_number(content.metric_records["metrics"][STALENESS]) for content in contents]
        weights = self.weights(staleness)
        old = from_array_record(self._arrays)
        self._arrays = None  # else every checkpoint would hold the model twice
        new = {
            name: self.update_array(value, [result[name] for result in results], weights).astype(value.dtype)
            for name, value in old.items()
        }
        return to_array_record(new), MetricRecord({STALENESS: float(np.mean(staleness))})

    def weights(self, staleness: Sequence[float]) -> Floats:
        """Return the weight s(tau) of each result, shape (n,)."""
        return np.asarray([staleness_discount(tau, self.staleness_exponent) for tau in staleness], dtype=np.float64)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return no messages: the server evaluates the model itself."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return None: clients do not evaluate."""
        return None

    def summary(self) -> None:
        """Print nothing: the run's rows hold the results."""


class FedAsync(AsyncStrategy):
    """Merges every result at once: x <- (1 - a_i) x + a_i x_i with a_i = mixing * s(tau_i).

    Args:
        mixing: The factor alpha, above 0 and at most 1.
        staleness_exponent: The exponent a of s(tau), at least 0.
        concurrency: Number of clients that train at the same time; None means all.
        proximal_mu: Strength of the clients' proximal term (rho in the paper), at least 0.

    References:
        Xie, Koyejo, Gupta: Asynchronous Federated Optimization, arXiv 1903.03934, algorithm 1 with its polynomial s.
    """

    def __init__(
        self,
        mixing: float = 0.6,
        staleness_exponent: float = 0.5,
        concurrency: int | None = None,
        proximal_mu: float = 0.0,
    ) -> None:
        super().__init__(1, concurrency, staleness_exponent)
        self.mixing = _check_range("mixing", mixing, 0.0, 1.0, open_low=True)
        self.proximal_mu = _check_range("proximal_mu", proximal_mu, 0.0)

    def update_array(self, old: NDArray[np.generic], results: Sequence[NDArray[np.generic]], weights: Floats) -> Floats:
        """Mix the results into the array one after the other."""
        new: Floats = np.asarray(old, dtype=np.float64)
        for result, weight in zip(results, weights, strict=True):
            new = new + self.mixing * weight * (np.asarray(result, dtype=np.float64) - new)
        return new


class FedBuff(AsyncStrategy):
    """Merges K results at a time: x <- x + server_learning_rate * (1/K) sum_i s(tau_i) (x_i - x of version v_i).

    Args:
        buffer_size: The number K of results per model; 10 as in the paper's experiments.
        concurrency: Number of clients that train at the same time; None means all.
        staleness_exponent: The exponent a of s(tau), at least 0; 0.5 as in the paper's experiments.
        server_learning_rate: Step size of the server, above 0.

    References:
        Nguyen et al.: Federated Learning with Buffered Asynchronous Aggregation, arXiv 2106.06639, algorithm 1.
    """

    uses_changes: ClassVar[bool] = True

    def __init__(
        self,
        buffer_size: int = 10,
        concurrency: int | None = None,
        staleness_exponent: float = 0.5,
        server_learning_rate: float = 1.0,
    ) -> None:
        super().__init__(buffer_size, concurrency, staleness_exponent)
        self.server_learning_rate = _check_range("server_learning_rate", server_learning_rate, 0.0, open_low=True)

    def update_array(self, old: NDArray[np.generic], results: Sequence[NDArray[np.generic]], weights: Floats) -> Floats:
        """Move the array along the mean of the weighted changes."""
        total = sum(w * np.asarray(result, dtype=np.float64) for result, w in zip(results, weights, strict=True))
        new: Floats = np.asarray(old, dtype=np.float64) + self.server_learning_rate / len(results) * np.asarray(total)
        return new


def prepare_upload(
    strategy: AsyncStrategy, base: NamedArrays, trained: NamedArrays, buffers: Collection[str] = ()
) -> NamedArrays:
    """Return the part of a result that is kept until it is merged.

    Returns:
        ``trained`` itself, or, for a strategy with ``uses_changes``, the change of its trainable arrays.
    """
    if not strategy.uses_changes:
        return trained
    return compute_change(base, _list_trainable(strategy, base, buffers), trained)


def merge_results(
    strategy: AsyncStrategy,
    version: int,
    arrays: NamedArrays,
    results: Sequence[Contribution],
    buffers: Collection[str] = (),
) -> NamedArrays:
    """Merge results, at least one and in the order of completion, into model ``version``.

    Their arrays are outputs of ``prepare_upload``; their metric ``STALENESS`` is the number of models that were made
    since the one from which they were trained.

    A strategy that averages models also averages ``buffers`` (batch-norm statistics). A strategy that applies changes
    replaces them by the mean of the results, weighted by s(tau). For integer arrays (step counters) the maximum is
    used.

    Returns:
        The new model, with the order, shapes and types of ``arrays``.

    Raises:
        FedgeError: The strategy gives no model.
    """
    learnt = _list_trainable(strategy, arrays, buffers)
    results = _fill_narrow_results(strategy, arrays, results, learnt)
    sent = to_array_record({name: np.atleast_1d(arrays[name]) for name in learnt})
    strategy.configure_train(version, sent, ConfigRecord(), SelectedNodes(0))  # type: ignore[arg-type]
    replies = [
        build_message(build_content(each, {name: np.atleast_1d(each.arrays[name]) for name in learnt}), "train", node)
        for node, each in enumerate(results, start=1)
    ]
    record, _ = strategy.aggregate_train(version, replies)
    if record is None:
        raise FedgeError(f"the strategy gave no model for {len(results)} results")
    weights = strategy.weights([result.metrics[STALENESS] for result in results])
    new = from_array_record(record)
    new |= {
        name: _average_values([r.arrays[name] for r in results], arrays[name], weights)
        for name in arrays
        if name not in learnt
    }
    return cast_like(arrays, new)


def _fill_narrow_results(
    strategy: AsyncStrategy, arrays: NamedArrays, results: Sequence[Contribution], learnt: Collection[str]
) -> list[Contribution]:
    """Expand narrow results to the size of the model; elements that no client trained do not change."""
    base = {name: np.zeros_like(v) if strategy.uses_changes and name in learnt else v for name, v in arrays.items()}
    weights = [float(weight) for weight in strategy.weights([result.metrics[STALENESS] for result in results])]
    whole = expand_results(base, [result.arrays for result in results], weights)
    return [dataclasses.replace(result, arrays=own) for result, own in zip(results, whole, strict=True)]


def _list_trainable(strategy: AsyncStrategy, arrays: NamedArrays, buffers: Collection[str]) -> tuple[str, ...]:
    floats = [name for name, value in arrays.items() if np.issubdtype(value.dtype, np.floating)]
    return tuple(name for name in floats if not strategy.uses_changes or name not in buffers)


def _average_values(
    values: Sequence[NDArray[np.generic]], old: NDArray[np.generic], weights: Floats
) -> NDArray[np.generic]:
    if not np.issubdtype(old.dtype, np.floating):
        return np.asarray(np.max([*values, old], axis=0))
    weighed = sum(w * np.asarray(value, dtype=np.float64) for value, w in zip(values, weights, strict=True))
    return np.asarray(weighed / weights.sum())


def _to_number(value: object) -> float:
    if not isinstance(value, int | float):
        raise FedgeError(f"a result's staleness is {value!r}, not a number")
    return float(value)


def _check_count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} has to be a whole number from 1 on, not {value!r}")
    return value


def _check_range(name: str, value: object, low: float, high: float = np.inf, open_low: bool = False) -> float:
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else np.nan
    if not (np.isfinite(number) and low <= number <= high) or (open_low and number == low):
        right = f"{'above' if open_low else 'at least'} {low:g}" + (f" and at most {high:g}" if high < np.inf else "")
        raise ValueError(f"{name} has to be {right}, not {value!r}")
    return number

"""Search the largest variants that fit a board's memory and time, over a network's width and the batch size.

Widths are channel shares in steps. Costs and needs of a width come from two functions, called as rarely as possible: a
few widths across the range, then bisection between the last that is too large and the first that fits.

Search of the channel-pruned variants of a network that a board can train: the request, the search and its result.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedge.analysis.topology import variant_files
from fedge.analysis.topology.channel_plan import NetworkVariant, UncutGroup
from fedge.analysis.topology.variant_files import TrainingCheck
from fedge.costs.layers.network_source import build_module, parse_input_shape
from fedge.costs.memory.step_need import StepNeed, predict_step_need
from fedge.decisions.limits import compute_margin_z
from fedge.devices import catalogue
from fedge.errors import BadInput, check_known
from fedge.pareto import find_undominated_rows
from fedge.types import DeviceSpec

if TYPE_CHECKING:
    from torch import nn

    from fedge.analysis.topology.pruning import PrunableNetwork


COARSE_WIDTHS = 8
"""Default number of widths that are tried before bisection: more find fits that are not monotone in the width."""
WIDTH_STEP = 0.005
"""Default step between two widths, as a share of the channels: a twentieth of the smallest width."""


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Limits of a training step; ``z`` standard deviations are kept between a prediction and its limit.

    Attributes:
        memory_mb: Peak memory above idle in MB; None for no limit.
        step_s: Seconds of a step; None for no limit.
        z: Margin in standard deviations.
    """

    memory_mb: float | None = None
    step_s: float | None = None
    z: float = 0.0

    def __post_init__(self) -> None:
        for option, value, unit in (
            ("--max-memory-mb", self.memory_mb, "megabytes"),
            ("--max-step-s", self.step_s, "seconds"),
        ):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise BadInput(option, f"{value:g}", f"{unit}, above 0")

    def memory_with_margin_mb(self, need: StepNeed) -> float:
        """Return the memory in MB that a step needs with the margin."""
        return need.memory_mb * math.exp(self.z * need.memory_sd_log)

    def step_with_margin_s(self, need: StepNeed) -> float:
        """Return the seconds that a step needs with the margin."""
        return need.step_s * math.exp(self.z * need.step_sd_log)

    def is_met_by(self, need: StepNeed) -> bool:
        """Return whether both limits hold."""
        memory = self.memory_mb is None or self.memory_with_margin_mb(need) <= self.memory_mb
        time = self.step_s is None or self.step_with_margin_s(need) <= self.step_s
        return memory and time


@dataclass(frozen=True, slots=True)
class VariantFit:
    """A variant at a batch size, and the need of one of its training steps."""

    variant: NetworkVariant
    batch_size: int
    need: StepNeed
    fits: bool

    @property
    def sample_s(self) -> float:
        """Seconds of a step per sample."""
        return self.need.step_s / self.batch_size


def list_channel_shares(least: float) -> tuple[float, ...]:
    """Return channel shares from ``least`` to 1, both included."""
    count = round((1.0 - least) / WIDTH_STEP)
    return (*(round(1.0 - WIDTH_STEP * i, 6) for i in range(count, 0, -1)), 1.0)


def find_largest_fitting(count: int, fits: Callable[[int], bool], coarse: int = COARSE_WIDTHS) -> int | None:
    """Return the largest of ``range(count)`` that fits, or None if none does.

    Exact if everything below a fitting number fits too. Otherwise the result fits, and none of the coarse steps above
    it does.

    ``coarse`` is the number of steps tried before bisection.
    """
    last = count - 1
    steps = sorted({round(i * last / coarse) for i in range(coarse + 1)}, reverse=True)
    low = next((i for i in steps if fits(i)), None)
    if low is None or low == last:
        return low
    high = min(i for i in steps if i > low)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


@dataclass(frozen=True, slots=True)
class VariantSearch:
    """A search: widths (channel shares, ascending), and functions for a variant and its need."""

    shares: tuple[float, ...]
    variant_at: Callable[[float], NetworkVariant]
    need_of: Callable[[NetworkVariant, int], StepNeed]
    limits: StepLimits

    def evaluate(self, index: int, batch_size: int) -> VariantFit:
        """Return the variant of a width at a batch size."""
        variant = self.variant_at(self.shares[index])
        need = self.need_of(variant, batch_size)
        return VariantFit(variant, batch_size, need, self.limits.is_met_by(need))

    def find_largest(self, batch_size: int) -> VariantFit | None:
        """Return the largest variant that fits at a batch size, or None if not even the smallest does."""
        index = find_largest_fitting(len(self.shares), lambda i: self.evaluate(i, batch_size).fits)
        return None if index is None else self.evaluate(index, batch_size)

    def list_smaller(self, found: VariantFit, count: int) -> tuple[VariantFit, ...]:
        """Return ``found`` and smaller variants that fit, evenly over the channels, the largest first.

        At most ``count`` are returned. Neighbouring widths may give the same network if layers are narrow or rounded;
        it is listed once.
        """
        top = self.shares.index(found.variant.channel_share)
        rows = sorted({round(top * (1 - i / count)) for i in range(count)}, reverse=True)
        every = [one for row in rows if (one := self.evaluate(row, found.batch_size)).fits]
        return tuple(one for i, one in enumerate(every) if not i or one.variant.plan != every[i - 1].variant.plan)

    def sample_widths(self, batch_size: int, count: int) -> tuple[VariantFit, ...]:
        """Return variants across the whole range of widths, the smallest first, whether they fit or not."""
        rows = sorted({round(i * (len(self.shares) - 1) / (count - 1)) for i in range(count)})
        return tuple(self.evaluate(row, batch_size) for row in rows)

    def find_largest_per_batch_size(self, batch_sizes: Sequence[int]) -> tuple[VariantFit, ...]:
        """Return the largest variant that fits for every batch size; batch sizes without one are left out."""
        return tuple(one for size in batch_sizes if (one := self.find_largest(size)) is not None)


def compute_variant_front(found: Sequence[VariantFit]) -> tuple[VariantFit, ...]:
    """Return the fitting variants that no other dominates in parameters, batch size and time per sample.

    The share of the parameters stands for what the network can learn.
    """
    fitting = [one for one in found if one.fits]
    costs = np.array([(-one.variant.parameter_share, -one.batch_size, one.sample_s) for one in fitting]).reshape(-1, 3)
    return tuple(fitting[row] for row in sorted(find_undominated_rows(costs)))


TOPOLOGY_FORMAT = "fedge-topology-1"
FRONT_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Batch sizes of the front, besides the requested one."""
CURVE_WIDTHS = 13
"""Number of widths in the charts."""
MAX_VARIANTS = 50
"""Largest number of variants that can be requested."""


@dataclass(frozen=True, slots=True)
class TopologyOptions:
    """The request of a search.

    Attributes:
        max_memory_mb: Limit of training's memory in MB; by default what the board leaves for it.
        max_step_s: Limit of a step's time at MAXN in seconds, or None.
        confidence: Probability with which each limit is met.
    """

    network: str
    board: str
    batch_size: int = 32
    max_memory_mb: float | None = None
    max_step_s: float | None = None
    input_shape: str | None = None
    ranking: str = "l1"
    round_to: int = 1
    variants: int = 4
    confidence: float = 0.84
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TopologyResult:
    """Result of a search.

    Attributes:
        whole_network: The unpruned network at the requested batch size.
        variants: The variants that fit at the requested batch size, the largest first.
        front: Non-dominated largest variants over batch sizes.
        largest_by_batch: The largest variant that fits, by batch size.
        curve: Variants over the whole range of widths at the requested batch size.
    """

    options: TopologyOptions
    device: DeviceSpec
    limits: StepLimits
    memory_limit_source: str
    whole_network: VariantFit
    variants: tuple[VariantFit, ...]
    front: tuple[VariantFit, ...]
    largest_by_batch: tuple[VariantFit, ...]
    curve: tuple[VariantFit, ...]
    uncut_layers: tuple[UncutGroup, ...]
    folders: tuple[Path, ...] = ()
    training: TrainingCheck | None = None


def find_variants(
    options: TopologyOptions,
    usable_mb: Callable[[DeviceSpec], float],
    *,
    folder: Path | None = None,
    check_training: Callable[[Path], TrainingCheck] | None = None,
) -> TopologyResult:
    """Search the variants that fit, and optionally write them and train the largest one.

    ``usable_mb`` returns the memory that a board leaves for training, in MB; ``check_training`` trains the variant in a
    folder for some steps.

    Raises:
        BadInput: If an option is invalid, nothing fits or the folder cannot be written.
    """
    from fedge.analysis.topology.pruning import build_prunable

    if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput("--folder", f"{folder}, which holds something", "a new or an empty folder")
    _check_options(options)
    device = catalogue.find(options.board)
    memory_mb = usable_mb(device) if options.max_memory_mb is None else options.max_memory_mb
    limits = StepLimits(memory_mb, options.max_step_s, compute_margin_z(options.confidence, "--confidence"))
    module, shape = build_module(options.network, parse_input_shape(options.input_shape))
    prunable = build_prunable(
        module,
        model=options.network,
        input_shape=shape,
        method=options.ranking,
        round_to=options.round_to,
        seed=options.seed,
    )
    result = _search_variants(options, prunable, device, limits)
    if folder is not None:
        result = replace(result, folders=_save_variants(result, module, folder))
    if check_training is None:
        return result
    with tempfile.TemporaryDirectory(prefix="fedge-topology-") as place:
        largest = result.folders[0] if result.folders else Path(place) / "variant"
        if not result.folders:
            _save_variant(result.variants[0].variant, module, largest)
        return replace(result, training=check_training(largest.absolute()))


def _check_options(options: TopologyOptions) -> None:
    from fedge.analysis.topology.pruning import IMPORTANCE_METHODS

    for option, number in (
        ("--batch-size", options.batch_size),
        ("--round-to", options.round_to),
        ("--variants", options.variants),
    ):
        if number < 1:
            raise BadInput(option, str(number), "1 or more")
    if options.variants > MAX_VARIANTS:
        raise BadInput("--variants", str(options.variants), f"from 1 to {MAX_VARIANTS}")
    if options.seed < 0:
        raise BadInput("--seed", str(options.seed), "0 or more")
    check_known("--ranking", options.ranking, IMPORTANCE_METHODS)


def _search_variants(
    options: TopologyOptions, prunable: PrunableNetwork, device: DeviceSpec, limits: StepLimits
) -> TopologyResult:
    from fedge.analysis.topology.pruning import MIN_CHANNEL_SHARE

    search = VariantSearch(
        list_channel_shares(MIN_CHANNEL_SHARE),
        prunable.build_variant,
        lambda variant, batch: predict_step_need(variant.cost, device, batch),
        limits,
    )
    largest = search.find_largest(options.batch_size)
    by_batch = search.find_largest_per_batch_size(tuple(sorted({*FRONT_BATCHES, options.batch_size})))
    if largest is None:
        raise _infeasible_error(options, search, by_batch)
    return TopologyResult(
        options=options,
        device=device,
        limits=limits,
        memory_limit_source=_describe_memory_limit(options, device, limits),
        whole_network=search.evaluate(len(search.shares) - 1, options.batch_size),
        variants=search.list_smaller(largest, options.variants),
        front=compute_variant_front(by_batch),
        largest_by_batch=by_batch,
        curve=search.sample_widths(options.batch_size, CURVE_WIDTHS),
        uncut_layers=prunable.coupling.kept,
    )


def _describe_memory_limit(options: TopologyOptions, device: DeviceSpec, limits: StepLimits) -> str:
    if options.max_memory_mb is not None or limits.memory_mb is None:
        return "as asked"
    share = limits.memory_mb / (1000.0 * device.ram_gb.value)
    return f"{100.0 * share:.0f} % of the board's {device.ram_gb.value:g} GB"


def _infeasible_error(options: TopologyOptions, search: VariantSearch, by_batch: tuple[VariantFit, ...]) -> BadInput:
    smallest, limits = search.evaluate(0, options.batch_size), search.limits
    memory_mb, step_s = limits.memory_with_margin_mb(smallest.need), limits.step_with_margin_s(smallest.need)
    names, got, needs = [], [], []
    if limits.memory_mb is not None and memory_mb > limits.memory_mb:
        names.append("--max-memory-mb")
        got.append(f"{limits.memory_mb:,.0f} MB")
        needs.append(f"{memory_mb:,.0f} MB")
    if limits.step_s is not None and step_s > limits.step_s:
        names.append("--max-step-s")
        got.append(f"{limits.step_s:g} s")
        needs.append(f"{step_s:.3g} s")
    share = f"{100 * smallest.variant.parameter_share:.3g} % of its parameters"
    smaller = [one.batch_size for one in by_batch if one.batch_size < options.batch_size]
    advice = f"allow more, or --batch-size {max(smaller)}" if smaller else "allow more, or another board or network"
    return BadInput(
        " and ".join(names),
        " and ".join(got),
        f"with {share} {options.network} still needs {' and '.join(needs)} at batch {options.batch_size} on "
        f"{options.board} (with {100 * options.confidence:g} % confidence); {advice}",
    )


def _save_variants(result: TopologyResult, module: nn.Module, out: Path) -> tuple[Path, ...]:
    folders = []
    for fit in result.variants:
        folder = out / f"{Path(fit.variant.model.replace(':', '.')).name}-{fit.variant.channel_share:.3f}"
        try:
            _save_variant(fit.variant, module, folder)
        except OSError as error:
            raise BadInput("--folder", str(folder), f"a folder that can be written ({error.strerror})") from error
        folders.append(folder)
    return tuple(folders)


def _save_variant(variant: NetworkVariant, module: nn.Module, folder: Path) -> None:
    from fedge.worker.channel_cuts import cut_module

    variant_files.save_variant(variant, cut_module(module, variant.plan), folder)


# JSON -----------------------------------------------------------------------------------------------------------------


def topology_result_to_dict(result: TopologyResult) -> dict[str, Any]:
    """Return the result for JSON."""
    limits, training = result.limits, result.training
    return {
        "format": TOPOLOGY_FORMAT,
        "asked": asdict(result.options),
        "device": result.device.name,
        "mode": "MAXN",
        "limits": {"memory_mb": limits.memory_mb, "memory_from": result.memory_limit_source, "step_s": limits.step_s},
        "label": result.whole_network.need.label,
        "source": result.whole_network.need.source,
        "whole": _fit_to_dict(result.whole_network, limits),
        "variants": [_fit_to_dict(one, limits) for one in result.variants],
        "folders": [str(folder) for folder in result.folders],
        "front": [_fit_to_dict(one, limits) for one in result.front],
        "largest_by_batch": [_fit_to_dict(one, limits) for one in result.largest_by_batch],
        "kept_whole": [asdict(one) for one in result.uncut_layers],
        "training_check": None if training is None else {**asdict(training), "falls": training.is_loss_falling},
    }


def _fit_to_dict(fit: VariantFit, limits: StepLimits) -> Mapping[str, Any]:
    variant, need = fit.variant, fit.need
    return {
        "parameters": variant.cost.parameters,
        "parameter_share": variant.parameter_share,
        "channel_share": variant.channel_share,
        "flop": variant.cost.flop,
        "flop_share": variant.flop_share,
        "batch_size": fit.batch_size,
        "fits": fit.fits,
        "memory_mb": need.memory_mb,
        "memory_with_margin_mb": limits.memory_with_margin_mb(need),
        "memory_sd_log": need.memory_sd_log,
        "step_s": need.step_s,
        "step_with_margin_s": limits.step_with_margin_s(need),
        "step_sd_log": need.step_sd_log,
        "sample_s": fit.sample_s,
    }

"""``fedge topology``: searches pruned variants of a network that fit a board, and writes the result."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.cli.command_output import check_output, write_output
from fedge.analysis.topology import variant_files
from fedge.analysis.topology.network_variant import NetworkVariant
from fedge.analysis.topology.topology_result import TopologyOptions, TopologyResult
from fedge.analysis.topology.variant_search import (
    StepLimits,
    VariantFit,
    VariantSearch,
    compute_variant_front,
    list_channel_shares,
)
from fedge.analysis.topology.variant_training import TrainingCheck, check_variant_training
from fedge.client.memory_scaling import SYSTEM_SHARE, estimate_usable_mb
from fedge.costs.layers.network_source import build_module, parse_input_shape
from fedge.costs.memory.step_need import predict_step_need as need_of_step
from fedge.decisions.limits import compute_margin_z
from fedge.devices import catalogue
from fedge.errors import BadInput, RunFailed
from fedge.studies.process_pool import run_in_processes
from fedge.telemetry import run_folder
from fedge.types import DeviceSpec

if TYPE_CHECKING:
    from torch import nn

    from fedge.analysis.topology.pruning import PrunableNetwork

TOPOLOGY_FORMAT = "fedge-topology-1"
FRONT_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Batch sizes of the front, besides the requested one."""
CURVE_WIDTHS = 13
"""Number of widths in the charts."""
MAX_VARIANTS = 50
"""Largest number of variants that can be requested."""


def find_variants(
    asked: TopologyOptions, out: Path | None, json_file: Path | None, html: Path | None, check_training: bool
) -> None:
    """Find, print and write the variants that fit.

    Args:
        asked: The command-line options.
        out: Folder for the variants, or None.
        json_file: JSON file, or None.
        html: Page, or None.
        check_training: Whether to train the largest variant to check its memory.

    Raises:
        BadInput: If the input is invalid or nothing fits.
        RunFailed: If the training check fails.
    """
    from experiments.report.analysis import topology_page, topology_terminal

    check_output("--json", json_file, starts=f'{{"format": "{TOPOLOGY_FORMAT}"')
    check_output("--html", html, starts="<!doctype html>")
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput("--out", f"{out}, which holds something", "a new or an empty folder")
    module, prunable = _load_prunable(asked)
    answer = search_variants(asked, prunable)
    folders = _save_variants(answer, module, out) if out is not None else ()
    trained = _check_training(answer, module, folders) if check_training else None
    if json_file is not None:
        text = json.dumps(as_data(answer, folders, trained)) + "\n"
        write_output("--json", json_file, lambda path: run_folder.write_text(path, text))
    if html is not None:
        write_output("--html", html, lambda path: topology_page.write_topology_page(answer, trained, path))
    topology_terminal.print_topology(answer, folders, trained)
    if trained is not None and not trained.is_loss_falling:
        raise RunFailed(f"the loss of {answer.variants[0].variant.name} did not fall: {trained.losses}")


def print_variant(place: Path, every: bool, as_json: bool) -> None:
    """Print a variant's record.

    Raises:
        BadInput: If the file is not a variant.
    """
    from experiments.report.analysis import topology_terminal

    variant = variant_files.read_variant(place)
    if as_json:
        sys.stdout.write(json.dumps(variant_files.variant_to_dict(variant)) + "\n")
    else:
        topology_terminal.print_variant_record(variant, every)


def _load_prunable(asked: TopologyOptions) -> tuple[nn.Module, PrunableNetwork]:
    from fedge.analysis.topology.dependency_graph import IMPORTANCE_METHODS
    from fedge.analysis.topology.pruning import build_prunable

    for option, number in (
        ("--batch", asked.batch_size),
        ("--round-to", asked.round_to),
        ("--variants", asked.variants),
    ):
        if number < 1:
            raise BadInput(option, str(number), "1 or more")
    if asked.variants > MAX_VARIANTS:
        raise BadInput("--variants", str(asked.variants), f"{MAX_VARIANTS} at most")
    if asked.seed < 0:
        raise BadInput("--seed", str(asked.seed), "0 or more")
    if asked.method not in IMPORTANCE_METHODS:
        raise BadInput("--method", repr(asked.method), f"known: {', '.join(IMPORTANCE_METHODS)}")
    _build_limits(asked, catalogue.find(asked.device))
    module, shape = build_module(asked.model, parse_input_shape(asked.input_shape))
    return module, build_prunable(
        module, model=asked.model, input_shape=shape, method=asked.method, round_to=asked.round_to, seed=asked.seed
    )


def _build_limits(asked: TopologyOptions, device: DeviceSpec) -> StepLimits:
    z = compute_margin_z(asked.confidence, "--confidence")
    memory_mb = asked.max_memory_mb
    if memory_mb is None:
        memory_mb = estimate_usable_mb(device)
    return StepLimits(memory_mb, asked.max_step_s, z)


def search_variants(asked: TopologyOptions, prunable: PrunableNetwork) -> TopologyResult:
    """Search the variants that fit.

    Raises:
        BadInput: If none fits, with the needs of the smallest one.
    """
    from fedge.analysis.topology.pruning import MIN_CHANNEL_SHARE

    device = catalogue.find(asked.device)
    limits = _build_limits(asked, device)
    costs = lru_cache(maxsize=None)(prunable.build_variant)
    search = VariantSearch(
        list_channel_shares(MIN_CHANNEL_SHARE),
        costs,
        lambda variant, batch: need_of_step(variant.cost, device, batch),
        limits,
    )
    largest = search.find_largest(asked.batch_size)
    over = search.find_largest_per_batch_size(tuple(sorted({*FRONT_BATCHES, asked.batch_size})))
    if largest is None:
        raise _infeasible_error(asked, search, over)
    share = f"{1.0 - SYSTEM_SHARE:.0%} of the board's {device.ram_gb.value:g} GB".replace("%", " %")
    return TopologyResult(
        options=asked,
        device=device,
        limits=limits,
        memory_limit_source="as asked" if asked.max_memory_mb is not None else share,
        whole_network=search.evaluate(len(search.shares) - 1, asked.batch_size),
        variants=search.list_smaller(largest, asked.variants),
        front=compute_variant_front(over),
        largest_by_batch=over,
        curve=search.sample_widths(asked.batch_size, CURVE_WIDTHS),
        uncut_layers=prunable.coupling.kept,
    )


def _infeasible_error(asked: TopologyOptions, search: VariantSearch, over: tuple[VariantFit, ...]) -> BadInput:
    smallest, limits = search.evaluate_smallest(asked.batch_size), search.limits
    memory_mb, step_s = limits.memory_with_margin_mb(smallest.need), limits.step_with_margin_s(smallest.need)
    got, needs, options = [], [], []
    if limits.memory_mb is not None and memory_mb > limits.memory_mb:
        options.append("--max-memory-mb")
        got.append(f"{limits.memory_mb:,.0f} MB")
        needs.append(f"{memory_mb:,.0f} MB")
    if limits.step_s is not None and step_s > limits.step_s:
        options.append("--max-step-s")
        got.append(f"{limits.step_s:g} s")
        needs.append(f"{step_s:.3g} s")
    share = f"{100 * smallest.variant.parameter_share:.3g} % of its parameters"
    smaller = [one.batch_size for one in over if one.batch_size < asked.batch_size]
    advice = f"allow more, or --batch {max(smaller)}" if smaller else "allow more, or another board or network"
    return BadInput(
        " and ".join(options),
        " and ".join(got),
        f"with {share} {asked.model} still needs {' and '.join(needs)} at batch {asked.batch_size} on {asked.device} "
        f"(with {100 * asked.confidence:g} % confidence); {advice}",
    )


def _save_variants(answer: TopologyResult, module: nn.Module, out: Path) -> tuple[Path, ...]:
    from fedge.analysis.topology.channel_removal import cut_module

    folders = []
    for found in answer.variants:
        folder = out / f"{Path(found.variant.model.replace(':', '.')).name}-{found.variant.channel_share:.3f}"
        try:
            variant_files.save_variant(found.variant, cut_module(module, found.variant.plan), folder)
        except OSError as error:
            raise BadInput("--out", str(folder), f"a folder that can be written ({error.strerror})") from error
        folders.append(folder)
    return tuple(folders)


def _check_training(answer: TopologyResult, module: nn.Module, folders: tuple[Path, ...]) -> TrainingCheck:
    """Train the largest variant in a process of its own, so that the measured memory is that of training alone."""
    from fedge.analysis.topology.channel_removal import cut_module

    with tempfile.TemporaryDirectory(prefix="fedge-topology-") as place:
        folder = folders[0] if folders else Path(place) / "variant"
        if not folders:
            variant = answer.variants[0].variant
            variant_files.save_variant(variant, cut_module(module, variant.plan), folder)
        return run_in_processes(check_variant_training, [folder.absolute()], 1)[0]


# JSON -----------------------------------------------------------------------------------------------------------------


def as_data(
    answer: TopologyResult, folders: tuple[Path, ...] = (), trained: TrainingCheck | None = None
) -> dict[str, Any]:
    """Return the result for JSON."""
    limits = answer.limits
    return {
        "format": TOPOLOGY_FORMAT,
        "asked": asdict(answer.options),
        "device": answer.device.name,
        "mode": "MAXN",
        "limits": {"memory_mb": limits.memory_mb, "memory_from": answer.memory_limit_source, "step_s": limits.step_s},
        "label": answer.whole_network.need.label,
        "source": answer.whole_network.need.source,
        "whole": _found_data(answer.whole_network, limits),
        "variants": [_found_data(one, limits) for one in answer.variants],
        "folders": [str(folder) for folder in folders],
        "front": [_found_data(one, limits) for one in answer.front],
        "largest_by_batch": [_found_data(one, limits) for one in answer.largest_by_batch],
        "kept_whole": [asdict(one) for one in answer.uncut_layers],
        "training_check": None if trained is None else {**asdict(trained), "falls": trained.is_loss_falling},
    }


def _found_data(found: VariantFit, limits: StepLimits) -> Mapping[str, Any]:
    need = found.need
    return {
        **_variant_data(found.variant),
        "batch_size": found.batch_size,
        "fits": found.fits,
        "memory_mb": need.memory_mb,
        "memory_with_margin_mb": limits.memory_with_margin_mb(need),
        "memory_sd_log": need.memory_sd_log,
        "step_s": need.step_s,
        "step_with_margin_s": limits.step_with_margin_s(need),
        "step_sd_log": need.step_sd_log,
        "sample_s": found.sample_s,
    }


def _variant_data(variant: NetworkVariant) -> dict[str, Any]:
    return {
        "parameters": variant.cost.parameters,
        "parameter_share": variant.parameter_share,
        "channel_share": variant.channel_share,
        "flop": variant.cost.flop,
        "flop_share": variant.flop_share,
    }

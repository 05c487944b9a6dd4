"""``fedge topology``: puts together a network, its cuts and what a board needs for them, and writes the answer."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.commands.outputs import check_output
from experiments.commands.study_output import written
from fedge.choice.picking import margin_z
from fedge.devices import catalogue
from fedge.errors import BadInput, RunFailed
from fedge.evaluation.processes import spread
from fedge.layers.source import module_of, read_shape
from fedge.memory.need import need as need_of_step
from fedge.rounds.fitting import SYSTEM_SHARE, usable_mb
from fedge.telemetry import run_folder
from fedge.topology import keeping
from fedge.topology.coupling import Kept
from fedge.topology.search import Found, Limits, Search, front, widths
from fedge.topology.training import Trained, check
from fedge.topology.variant import Variant
from fedge.types import DeviceSpec

if TYPE_CHECKING:
    from torch import nn

    from fedge.topology.pruning import Prunable

FORMAT = "fedge-topology-1"
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Batch sizes of the front, beside the one that was asked for."""
SHOWN = 13
"""Widths in the pictures."""
MOST = 50
"""Variants that may be asked for."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command was asked for."""

    model: str
    device: str
    batch_size: int = 32
    max_memory_mb: float | None = None
    max_step_s: float | None = None
    input_shape: str | None = None
    method: str = "l1"
    round_to: int = 1
    variants: int = 4
    confidence: float = 0.84
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found: variants at the asked batch size, the front over batch sizes, and what led to them."""

    asked: Asked
    device: DeviceSpec
    limits: Limits
    memory_from: str
    """Where the limit on memory comes from."""
    whole: Found
    variants: tuple[Found, ...]
    front: tuple[Found, ...]
    over_batches: tuple[Found, ...]
    curve: tuple[Found, ...]
    kept: tuple[Kept, ...]


def find(asked: Asked, out: Path | None, json_file: Path | None, html: Path | None, check_training: bool) -> None:
    """Find, print and write the variants that fit.

    Raises ``BadInput`` for what cannot be meant and where nothing fits, ``RunFailed`` when the check of training fails.
    """
    from experiments.report.topology import page, terminal

    check_output("--json", json_file, starts=f'{{"format": "{FORMAT}"')
    check_output("--html", html, starts="<!doctype html>")
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput("--out", f"{out}, which holds something", "a new or an empty folder")
    module, prunable = _prunable(asked)
    answer = answered(asked, prunable)
    folders = _saved(answer, module, out) if out is not None else ()
    trained = _checked(answer, module, folders) if check_training else None
    if json_file is not None:
        text = json.dumps(as_data(answer, folders, trained)) + "\n"
        written("--json", json_file, lambda path: run_folder.write_text(path, text))
    if html is not None:
        written("--html", html, lambda path: page.write(answer, trained, path))
    terminal.say(answer, folders, trained)
    if trained is not None and not trained.falls:
        raise RunFailed(f"the loss of {answer.variants[0].variant.name} did not fall: {trained.losses}")


def show(place: Path, every: bool, as_json: bool) -> None:
    """Print a variant's record. Raises ``BadInput`` for a file that is none."""
    from experiments.report.topology import terminal

    variant = keeping.read(place)
    if as_json:
        sys.stdout.write(json.dumps(keeping.as_data(variant)) + "\n")
    else:
        terminal.say_variant(variant, every)


def _prunable(asked: Asked) -> tuple[nn.Module, Prunable]:
    from fedge.topology.graph import METHODS
    from fedge.topology.pruning import prunable

    for option, number in (
        ("--batch", asked.batch_size),
        ("--round-to", asked.round_to),
        ("--variants", asked.variants),
    ):
        if number < 1:
            raise BadInput(option, str(number), "1 or more")
    if asked.variants > MOST:
        raise BadInput("--variants", str(asked.variants), f"{MOST} at most")
    if asked.seed < 0:
        raise BadInput("--seed", str(asked.seed), "0 or more")
    if asked.method not in METHODS:
        raise BadInput("--method", repr(asked.method), f"known: {', '.join(METHODS)}")
    _limits(asked, catalogue.find(asked.device))
    module, shape = module_of(asked.model, read_shape(asked.input_shape))
    return module, prunable(module, asked.model, shape, asked.method, asked.round_to, asked.seed)


def _limits(asked: Asked, device: DeviceSpec) -> Limits:
    z = margin_z(asked.confidence, "--confidence")
    memory_mb = asked.max_memory_mb
    if memory_mb is None:
        memory_mb = usable_mb(device)
    return Limits(memory_mb, asked.max_step_s, z)


def answered(asked: Asked, prunable: Prunable) -> Answer:
    """The variants that fit; raises ``BadInput`` when none does, with what the smallest one needs."""
    from fedge.topology.pruning import LEAST_CHANNELS

    device = catalogue.find(asked.device)
    limits = _limits(asked, device)
    costs = lru_cache(maxsize=None)(prunable.by_channels)
    search = Search(
        widths(LEAST_CHANNELS), costs, lambda variant, batch: need_of_step(variant.cost, device, batch), limits
    )
    largest = search.largest(asked.batch_size)
    over = search.over_batches(tuple(sorted({*BATCHES, asked.batch_size})))
    if largest is None:
        raise _nothing_fits(asked, search, over)
    share = f"{1.0 - SYSTEM_SHARE:.0%} of the board's {device.ram_gb.value:g} GB".replace("%", " %")
    return Answer(
        asked=asked,
        device=device,
        limits=limits,
        memory_from="as asked" if asked.max_memory_mb is not None else share,
        whole=search.at(len(search.shares) - 1, asked.batch_size),
        variants=search.below(largest, asked.variants),
        front=front(over),
        over_batches=over,
        curve=search.curve(asked.batch_size, SHOWN),
        kept=prunable.coupling.kept,
    )


def _nothing_fits(asked: Asked, search: Search, over: tuple[Found, ...]) -> BadInput:
    smallest, limits = search.smallest(asked.batch_size), search.limits
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


def _saved(answer: Answer, module: nn.Module, out: Path) -> tuple[Path, ...]:
    from fedge.topology.cutting import cut

    folders = []
    for found in answer.variants:
        folder = out / f"{Path(found.variant.model.replace(':', '.')).name}-{found.variant.channel_share:.3f}"
        try:
            keeping.save(found.variant, cut(module, found.variant.plan), folder)
        except OSError as error:
            raise BadInput("--out", str(folder), f"a folder that can be written ({error.strerror})") from error
        folders.append(folder)
    return tuple(folders)


def _checked(answer: Answer, module: nn.Module, folders: tuple[Path, ...]) -> Trained:
    """Train the largest variant in a process of its own, so that the memory seen is the training's."""
    from fedge.topology.cutting import cut

    with tempfile.TemporaryDirectory(prefix="fedge-topology-") as place:
        folder = folders[0] if folders else Path(place) / "variant"
        if not folders:
            variant = answer.variants[0].variant
            keeping.save(variant, cut(module, variant.plan), folder)
        return spread(check, [folder.absolute()], 1)[0]


# JSON -----------------------------------------------------------------------------------------------------------------


def as_data(answer: Answer, folders: tuple[Path, ...] = (), trained: Trained | None = None) -> dict[str, Any]:
    """The answer as JSON has it."""
    limits = answer.limits
    return {
        "format": FORMAT,
        "asked": asdict(answer.asked),
        "device": answer.device.name,
        "mode": "MAXN",
        "limits": {"memory_mb": limits.memory_mb, "memory_from": answer.memory_from, "step_s": limits.step_s},
        "label": answer.whole.need.label,
        "source": answer.whole.need.source,
        "whole": _found_data(answer.whole, limits),
        "variants": [_found_data(one, limits) for one in answer.variants],
        "folders": [str(folder) for folder in folders],
        "front": [_found_data(one, limits) for one in answer.front],
        "largest_by_batch": [_found_data(one, limits) for one in answer.over_batches],
        "kept_whole": [asdict(one) for one in answer.kept],
        "training_check": None if trained is None else {**asdict(trained), "falls": trained.falls},
    }


def _found_data(found: Found, limits: Limits) -> Mapping[str, Any]:
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


def _variant_data(variant: Variant) -> dict[str, Any]:
    return {
        "parameters": variant.cost.parameters,
        "parameter_share": variant.parameter_share,
        "channel_share": variant.channel_share,
        "flop": variant.cost.flop,
        "flop_share": variant.flop_share,
    }

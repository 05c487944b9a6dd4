"""What fits a board, for a terminal: the variants, the front over batch sizes, and what a variant keeps."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.report.quantities import number
from fedge.topology.plan import Cut
from fedge.topology.search import Found, Limits
from fedge.topology.training import Trained
from fedge.topology.variant import Variant

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from experiments.commands.topology import Answer

SHOWN = 12
"""Layers of a variant that are shown unless all are asked for."""
AT_MAXN = "Seconds are at MAXN, the board's top power mode, as the tables behind the prediction were measured."


def say(answer: Answer, folders: Sequence[Path], trained: Trained | None) -> None:
    """Print the whole answer."""
    console = _console()
    for line in head(answer):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(_found_table("Variants that fit", answer.variants, answer.limits), crop=False)
    console.print(
        _found_table("Other batch sizes: the largest that fits, and no other beats", answer.front, None), crop=False
    )
    for line in (*foot(answer), *_folders(folders), *_training(answer, trained)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def head(answer: Answer) -> list[str]:
    """What was asked, and the whole network beside it."""
    asked, limits, whole = answer.asked, answer.limits, answer.whole
    allowed = [f"{number(limits.memory_mb)} MB ({answer.memory_from})"]
    if limits.step_s is not None:
        allowed.append(f"{limits.step_s:g} s per minibatch")
    verdict = "fits" if whole.fits else "does not fit"
    return [
        (
            f"{asked.model} on {answer.device.name}, training at batch {asked.batch_size} within "
            f"{' and '.join(allowed)}, each held with {100 * asked.confidence:g} % confidence"
        ),
        (
            f"Whole: {_millions(whole.variant)} parameters, {whole.variant.cost.flop / 1e9:.3g} GFLOP per sample, "
            f"{number(whole.need.memory_mb)} MB, {number(whole.need.step_s)} s per minibatch: {verdict}"
        ),
    ]


def foot(answer: Answer) -> list[str]:
    """What stays whole, and how far the figures can be trusted."""
    reasons = Counter(one.reason for one in answer.kept)
    stays = "; ".join(f"{count} x {reason}" if count > 1 else reason for reason, count in reasons.items())
    need = answer.whole.need
    return [
        f"Not cut: {stays}." if stays else "Every layer is cut.",
        (
            f"Predictions are {need.label} ({need.source}); one standard deviation: "
            f"memory {_percent(need.memory_sd_log)}, time {_percent(need.step_sd_log)}."
        ),
        AT_MAXN,
    ]


def _folders(folders: Sequence[Path]) -> list[str]:
    return [f"Written: {', '.join(str(folder) for folder in folders)}"] if folders else []


def _training(answer: Answer, trained: Trained | None) -> list[str]:
    if trained is None:
        return []
    name = answer.variants[0].variant.name
    grown = "" if trained.grown_mb is None else f"; its memory grew by {number(trained.grown_mb)} MB"
    return [
        (
            f"Trained {name} for {len(trained.losses)} steps of {trained.batch_size} made-up samples: loss "
            f"{trained.losses[0]:.4g} -> {trained.losses[-1]:.4g}{grown} (measured on this machine, not on the board)"
        )
    ]


def _percent(sd_log: float) -> str:
    return f"{100 * sd_log:.2g} %"


def _millions(variant: Variant) -> str:
    return f"{variant.cost.parameters / 1e6:.3g} M"


def _found_table(title: str, found: Sequence[Found], limits: Limits | None) -> Table:
    from experiments.report.concurrent.figures import figures, whole

    table = figures(title)
    margins = ("  with margin",) if limits is not None else ()
    heads = (
        "  batch",
        "  parameters",
        "  %",
        "  channels %",
        "  GFLOP",
        "  MB",
        *margins,
        "  s",
        *margins,
        "  ms/sample",
    )
    for one in heads:
        table.add_column(one, justify="right", no_wrap=True)
    for one in found:
        table.add_row(*_cells(one, limits))
    return whole(table)


def _cells(found: Found, limits: Limits | None) -> tuple[str, ...]:
    variant, need = found.variant, found.need
    memory = (number(limits.memory_with_margin_mb(need)),) if limits is not None else ()
    time = (number(limits.step_with_margin_s(need)),) if limits is not None else ()
    return (
        str(found.batch_size),
        _millions(variant),
        f"{100 * variant.parameter_share:.1f}",
        f"{100 * variant.channel_share:.1f}",
        f"{variant.cost.flop / 1e9:.3g}",
        number(need.memory_mb),
        *memory,
        number(need.step_s),
        *time,
        number(1e3 * found.sample_s),
    )


def say_variant(variant: Variant, every: bool) -> None:
    """Print a variant's record, with some of its layers or all of them."""
    from experiments.report.concurrent.figures import figures, whole

    console = _console()
    shape = "x".join(map(str, variant.input_shape))
    console.print(f"{variant.model} for samples of {shape}, channels ranked by {variant.method}", highlight=False)
    console.print(_shares(variant), highlight=False, soft_wrap=True)
    table = figures("Channels that stay, of those that there were")
    for i, one in enumerate(("layer", "  in", "  of", "  out", "  of")):
        table.add_column(one, justify="right" if i else "left", no_wrap=True)
    rows = list(variant.plan.items())
    shown = rows if every else spread(variant)
    for layer, stays in shown:
        table.add_row(layer, *channels(stays))
    console.print(whole(table), crop=False)
    if len(shown) < len(rows):
        console.print(f"and {len(rows) - len(shown)} more layers (--all)", highlight=False)


def _shares(variant: Variant) -> str:
    return (
        f"{100 * variant.parameter_share:.1f} % of the parameters ({_millions(variant)}), "
        f"{100 * variant.flop_share:.1f} % of the FLOP ({variant.cost.flop / 1e9:.3g} GFLOP per sample), "
        f"{100 * variant.channel_share:.1f} % of the channels"
    )


def spread(variant: Variant) -> list[tuple[str, Cut]]:
    """Some of the layers that compute, evenly over the network, in its order."""
    names = [layer.name for layer in variant.cost.layers if layer.name in variant.plan]
    count = min(SHOWN, len(names))
    places = [round(i * (len(names) - 1) / max(1, count - 1)) for i in range(count)]
    return [(names[place], variant.plan[names[place]]) for place in places]


def channels(one: Cut) -> tuple[str, str, str, str]:
    """Inputs kept, of how many, outputs kept, of how many."""
    inputs, outputs = one.of or (0, 0)
    kept_in = inputs if one.inputs is None else len(one.inputs)
    kept_out = outputs if one.outputs is None else len(one.outputs)
    return f"  {kept_in}", f"  {inputs}", f"  {kept_out}", f"  {outputs}"


def _console() -> Console:
    from rich.console import Console

    return Console(file=sys.stdout)

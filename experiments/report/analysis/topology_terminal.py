"""Terminal view of a topology search: the variants that fit, the front over batch sizes, a variant's layers."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.report.quantities import number
from fedge.analysis.topology.channel_plan import LayerCut
from fedge.analysis.topology.network_variant import NetworkVariant
from fedge.analysis.topology.variant_search import StepLimits, VariantFit
from fedge.analysis.topology.variant_training import TrainingCheck

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fedge.analysis.topology.topology_result import TopologyResult

MAX_LAYERS = 12
"""Number of a variant's layers shown unless all are requested."""
AT_MAXN_NOTE = "Seconds are at MAXN, the board's top power mode, as the tables behind the prediction were measured."


def print_topology(answer: TopologyResult, folders: Sequence[Path], trained: TrainingCheck | None) -> None:
    """Print the whole result."""
    console = _make_console()
    for line in describe_request(answer):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(_variants_table("Variants that fit", answer.variants, answer.limits), crop=False)
    console.print(
        _variants_table("Other batch sizes: the largest that fits, and no other beats", answer.front, None), crop=False
    )
    for line in (*describe_limitations(answer), *_describe_folders(folders), *_describe_training(answer, trained)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def describe_request(answer: TopologyResult) -> list[str]:
    """Describe the request and the needs of the unpruned network."""
    asked, limits, whole = answer.options, answer.limits, answer.whole_network
    allowed = [f"{number(limits.memory_mb)} MB ({answer.memory_limit_source})"]
    if limits.step_s is not None:
        allowed.append(f"{limits.step_s:g} s per minibatch")
    verdict = "fits" if whole.fits else "does not fit"
    return [
        (
            f"{asked.model} on {answer.device.name}, training at batch {asked.batch_size} within "
            f"{' and '.join(allowed)}, each held with {100 * asked.confidence:g} % confidence"
        ),
        (
            f"Whole: {_format_millions(whole.variant)} parameters, {whole.variant.cost.flop / 1e9:.3g} GFLOP per "
            f"sample, "
            f"{number(whole.need.memory_mb)} MB, {number(whole.need.step_s)} s per minibatch: {verdict}"
        ),
    ]


def describe_limitations(answer: TopologyResult) -> list[str]:
    """Describe the layers that cannot be pruned, and the uncertainty of the predictions."""
    reasons = Counter(one.reason for one in answer.uncut_layers)
    stays = "; ".join(f"{count} x {reason}" if count > 1 else reason for reason, count in reasons.items())
    need = answer.whole_network.need
    return [
        f"Not cut: {stays}." if stays else "Every layer is cut.",
        (
            f"Predictions are {need.label} ({need.source}); one standard deviation: "
            f"memory {_format_percent(need.memory_sd_log)}, time {_format_percent(need.step_sd_log)}."
        ),
        AT_MAXN_NOTE,
    ]


def _describe_folders(folders: Sequence[Path]) -> list[str]:
    return [f"Written: {', '.join(str(folder) for folder in folders)}"] if folders else []


def _describe_training(answer: TopologyResult, trained: TrainingCheck | None) -> list[str]:
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


def _format_percent(sd_log: float) -> str:
    return f"{100 * sd_log:.2g} %"


def _format_millions(variant: NetworkVariant) -> str:
    return f"{variant.cost.parameters / 1e6:.3g} M"


def _variants_table(title: str, found: Sequence[VariantFit], limits: StepLimits | None) -> Table:
    from experiments.report.text_tables import fit_to_content, make_text_table

    table = make_text_table(title)
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
        table.add_row(*_variant_cells(one, limits))
    return fit_to_content(table)


def _variant_cells(found: VariantFit, limits: StepLimits | None) -> tuple[str, ...]:
    variant, need = found.variant, found.need
    memory = (number(limits.memory_with_margin_mb(need)),) if limits is not None else ()
    time = (number(limits.step_with_margin_s(need)),) if limits is not None else ()
    return (
        str(found.batch_size),
        _format_millions(variant),
        f"{100 * variant.parameter_share:.1f}",
        f"{100 * variant.channel_share:.1f}",
        f"{variant.cost.flop / 1e9:.3g}",
        number(need.memory_mb),
        *memory,
        number(need.step_s),
        *time,
        number(1e3 * found.sample_s),
    )


def print_variant_record(variant: NetworkVariant, every: bool) -> None:
    """Print a variant's record with some of its layers, or with all."""
    from experiments.report.text_tables import fit_to_content, make_text_table

    console = _make_console()
    shape = "x".join(map(str, variant.input_shape))
    console.print(f"{variant.model} for samples of {shape}, channels ranked by {variant.method}", highlight=False)
    console.print(_describe_shares(variant), highlight=False, soft_wrap=True)
    table = make_text_table("Channels that stay, of those that there were")
    for i, one in enumerate(("layer", "  in", "  of", "  out", "  of")):
        table.add_column(one, justify="right" if i else "left", no_wrap=True)
    rows = list(variant.plan.items())
    shown = rows if every else select_layers(variant)
    for layer, stays in shown:
        table.add_row(layer, *channel_cells(stays))
    console.print(fit_to_content(table), crop=False)
    if len(shown) < len(rows):
        console.print(f"and {len(rows) - len(shown)} more layers (--all)", highlight=False)


def _describe_shares(variant: NetworkVariant) -> str:
    return (
        f"{100 * variant.parameter_share:.1f} % of the parameters ({_format_millions(variant)}), "
        f"{100 * variant.flop_share:.1f} % of the FLOP ({variant.cost.flop / 1e9:.3g} GFLOP per sample), "
        f"{100 * variant.channel_share:.1f} % of the channels"
    )


def select_layers(variant: NetworkVariant) -> list[tuple[str, LayerCut]]:
    """Return some layers that compute, evenly spaced over the network and in its order."""
    names = [layer.name for layer in variant.cost.layers if layer.name in variant.plan]
    count = min(MAX_LAYERS, len(names))
    places = [round(i * (len(names) - 1) / max(1, count - 1)) for i in range(count)]
    return [(names[place], variant.plan[names[place]]) for place in places]


def channel_cells(one: LayerCut) -> tuple[str, str, str, str]:
    """Return kept inputs, original inputs, kept outputs and original outputs."""
    inputs, outputs = one.of or (0, 0)
    kept_in = inputs if one.inputs is None else len(one.inputs)
    kept_out = outputs if one.outputs is None else len(one.outputs)
    return f"  {kept_in}", f"  {inputs}", f"  {kept_out}", f"  {outputs}"


def _make_console() -> Console:
    from rich.console import Console

    return Console(file=sys.stdout)

"""Terminal view of a board selection: every board's best mode with its verdict, and the label of every number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from experiments.report.quantities import LABEL_MARKS, UNKNOWN, duration
from experiments.report.tables import Cell, Table, number_cell, print_lines, text_cell, value_cell
from fedge.analysis.board_selection import BoardLimits, BoardOffer, BoardSelection

if TYPE_CHECKING:
    from rich.console import Console

OFFER_HEADS = ("board", "suitable", "rank", "mode", "epoch", "kJ", "W", "memory, MB", "of, MB")


def print_board_selection(console: Console, selection: BoardSelection) -> None:
    """Print the ranking, why boards are excluded, the best board and the meaning of the marks."""
    offers_table(selection).print(console)
    print_lines(console, (*_describe_exclusions(selection), *_describe_best(selection)))


def offers_table(selection: BoardSelection) -> Table:
    """Build a table of every board's best mode; the verdict follows the board's name."""
    work, options = selection.work, selection.options
    what = f"{work.name}, batch {work.batch_size}, {'inference' if work.kind == 'infer' else 'training'}"
    title = f"{what}: an epoch of {options.samples:,} samples, by {options.objective}"
    rows = tuple(_offer_cells(place, offer) for place, offer in enumerate(selection.offers, start=1))
    return Table("boards", OFFER_HEADS, rows, title)


def _offer_cells(place: int, offer: BoardOffer) -> tuple[Cell, ...]:
    mark, memory = LABEL_MARKS[offer.label], offer.memory
    needed = UNKNOWN if memory.need_mb is None else f"{LABEL_MARKS[memory.label]}{memory.need_mb:,.0f}"
    return (
        text_cell(offer.board),
        text_cell("yes" if offer.is_suitable else "no"),
        value_cell(place if offer.is_suitable else None),
        text_cell(str(offer.mode).removesuffix(" MHz")),
        number_cell(f"{mark}{duration(offer.epoch_s)}", offer.epoch_s, "s"),
        number_cell(f"{mark}{offer.energy_j / 1e3:,.1f}", offer.energy_j / 1e3, "kJ"),
        number_cell(f"{mark}{offer.power_w:.1f}", offer.power_w, "W"),
        number_cell(needed, memory.need_mb, "MB"),
        value_cell(memory.allowed_mb, ",.0f", "MB"),
    )


def _describe_exclusions(selection: BoardSelection) -> Iterator[str]:
    """Yield a line per unsuitable board: as lines, reasons are whole in any terminal."""
    for offer in selection.offers:
        if not offer.is_suitable:
            yield f"{offer.board} is not suitable: {'; '.join((*offer.broken, *_describe_memory_shortage(offer)))}"


def _describe_memory_shortage(offer: BoardOffer) -> tuple[str, ...]:
    if offer.memory.fits:
        return ()
    largest = offer.memory.batch_size
    return (f"batch {largest} is the largest that fits" if largest else "not even one sample fits",)


def _describe_best(selection: BoardSelection) -> list[str]:
    best = selection.best
    marks = (
        "Mode: cores/CPU/GPU/memory MHz. ~ estimated, ^ calibrated to a measured table. "
        "Memory: need of a training step, and the board's limit."
    )
    if best is None:
        return ["No board meets all limits; each is listed in its closest mode, with the limits it violates.", marks]
    lines = [f"Best: {best.board} in {best.mode}. Time and power: {best.label}, {best.source}."]
    if selection.options.limits != BoardLimits() and best.label == "estimated":
        lines.append("An estimate may be off by more than its distance to a limit: profile the board before you buy.")
    return [*lines, marks]

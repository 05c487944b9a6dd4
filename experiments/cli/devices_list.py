"""``fedge devices list``, ``show`` and ``modes``: the catalogue's data on each board, every number with its label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.cli.command_options import AsJson, command_group
from experiments.cli.command_output import make_console, print_json
from experiments.report.quantities import LABEL_MARKS
from experiments.report.tables import Cell, Column, build_table, make_prose_table, number_cell, text_cell, value_cell
from fedge.errors import check_known

if TYPE_CHECKING:
    from rich.console import Console

    from fedge.types import DeviceSpec, LabelledValue, PowerMode

KNOB_TITLES = (
    ("cores", "Cores", ""),
    ("cpu_mhz", "CPU", " MHz"),
    ("gpu_mhz", "GPU", " MHz"),
    ("mem_mhz", "Memory", " MHz"),
)
SPEC_FIGURES = (
    ("ram_gb", "RAM", "GB"),
    ("gpu_gflops", "GPU peak (fp32)", "GFLOP/s"),
    ("mem_gbps", "Memory peak", "GB/s"),
    ("cpu_score", "CPU core", "x an AGX Orin core"),
    ("idle_w", "Idle power", "W"),
    ("max_w", "Top power", "W"),
)


LISTED_FIGURES = (
    ("GFLOP/s", "gpu_gflops"),
    ("GB/s", "mem_gbps"),
    ("RAM GB", "ram_gb"),
    ("idle W", "idle_w"),
    ("top W", "max_w"),
)


BoardName = Annotated[str, typer.Argument(metavar="BOARD", help="A board that `fedge devices list` names.")]

app = command_group("The catalogue of boards.")


@app.command("list")
def devices_list(as_json: AsJson = False) -> None:
    """List every board of the catalogue.

    Example: fedge devices list
    """
    from rich.text import Text

    from fedge.devices import catalogue

    specs = catalogue.load_catalogue()
    console = make_console()
    if as_json:
        print_json([_summary_data(spec) for spec in specs.values()], indent=2)
        return
    columns: tuple[Column[DeviceSpec], ...] = (
        ("board", lambda spec: text_cell(spec.name)),
        ("cores", lambda spec: value_cell(max(spec.cores))),
        *((head, partial(_build_figure_cell, field)) for head, field in LISTED_FIGURES),
        ("modes", lambda spec: value_cell(_count_modes(spec), ",")),
    )
    build_table("boards", columns, sorted(specs.values(), key=lambda s: s.gpu_gflops.value)).print(console)
    others = ", ".join(f"{alias} = {name}" for alias, name in catalogue.aliases().items() if "jetson" not in alias)
    console.print()
    console.print(Text(f"Also: {others}.\n~ estimated (data sheet or default); no mark: measured on a board.\n"
                       "Sources: fedge devices show BOARD", style="dim"))  # fmt: skip


@app.command("show")
def devices_show(name: BoardName, as_json: AsJson = False) -> None:
    """Show one board: knobs, presets, rails, figures and their sources.

    Example: fedge devices show agx-orin
    """
    from rich.text import Text

    from fedge.devices import catalogue

    spec, console = catalogue.find(name, where="BOARD"), make_console()
    if as_json:
        print_json(_spec_data(spec), indent=2)
        return
    console.print(Text.assemble((spec.title, "bold"), f"  ({spec.name})"))
    table = make_prose_table()
    for title, width in (("What", 15), ("Value", 24), ("Label", 10)):
        table.add_column(title, width=width, overflow="fold")
    table.add_column("Source", style="dim", ratio=1, overflow="fold")
    for what, value, cited in _list_facts(spec):
        label, _, source = cited.partition(": ")
        table.add_row(what, value, Text(label, style="green" if label == "measured" else "magenta"), source)
    console.print(table)
    _print_presets(console, spec)


@app.command("modes")
def devices_modes(
    name: BoardName,
    preset: Annotated[str | None, typer.Option(help="Only this nvpmodel preset.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Show everything: every mode, one per line.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a board's power modes.

    Example: fedge devices modes agx-orin --preset MODE_30W
    """
    from fedge.devices import catalogue
    from fedge.modes import build_grid

    spec, console = catalogue.find(name, where="BOARD"), make_console()
    if preset is not None:
        check_known("--preset", preset, spec.presets)
        mode = spec.presets[preset]
        text = f"{spec.name} {preset}: {mode}"
        print_json(asdict(mode), indent=2) if as_json else console.print(text, highlight=False)
    elif every:
        modes = build_grid(spec)
        if as_json:
            print_json([asdict(mode) for mode in modes], indent=2)
            return
        rows = (f"{int(cores)},{cpu:g},{gpu:g},{mem:g}" for cores, cpu, gpu, mem in modes.knobs)
        console.out("\n".join(("cores,cpu_mhz,gpu_mhz,mem_mhz", *rows)), highlight=False)
    elif as_json:
        print_json({"device": spec.name, "count": _count_modes(spec)} | _modes_data(spec), indent=2)
    else:
        _print_knobs(console, spec)
        _print_presets(console, spec)


def _print_knobs(console: Console, spec: DeviceSpec) -> None:
    from rich.text import Text

    lengths = [len(getattr(spec, field)) for field, _, _ in KNOB_TITLES]
    product = " x ".join(map(str, lengths))
    console.print(Text.assemble((spec.title, "bold"), f": {_count_modes(spec):,} power modes ({product})"))
    table = make_prose_table()
    table.add_column("Knob", style="bold")
    table.add_column("Values", justify="right")
    table.add_column("Label")
    table.add_column("Table", ratio=1)
    for field, title, unit in KNOB_TITLES:
        values: Sequence[float] = getattr(spec, field)
        label = spec.sources[field].partition(":")[0]
        table.add_row(title + unit, str(len(values)), label, " ".join(f"{value:g}" for value in values))
    console.print(table)


def _print_presets(console: Console, spec: DeviceSpec) -> None:
    from rich.text import Text

    columns: tuple[Column[tuple[str, PowerMode]], ...] = (
        ("preset", lambda item: text_cell(item[0])),
        ("cores", lambda item: value_cell(item[1].cores)),
        ("CPU MHz", lambda item: value_cell(item[1].cpu_mhz, "g")),
        ("GPU MHz", lambda item: value_cell(item[1].gpu_mhz, "g")),
        ("memory MHz", lambda item: value_cell(item[1].mem_mhz, "g")),
        ("set", lambda item: Cell("at power-on" if item[0] == spec.default_preset else "")),
    )
    build_table("presets", columns, spec.presets.items()).print(console)
    console.print(Text("Preset clocks outside the table are set to the nearest table entry.", style="dim"))


def _list_facts(spec: DeviceSpec) -> list[tuple[str, str, str]]:
    """Return rows of name, value and ``label: source``."""
    label, _, modules = spec.sources["modules"].partition(": ")
    numbers, _, source = modules.partition("; ")
    facts = [("Modules", numbers, f"{label}: {source}")]
    for field, title, unit in KNOB_TITLES:
        values: Sequence[float] = getattr(spec, field)
        ends = f"{values[0]:g} to {values[-1]:g}{unit}"
        facts.append((title, ends if not unit else f"{len(values)} clocks, {ends}", spec.sources[field]))
    for field, title, unit in SPEC_FIGURES:
        figure: LabelledValue = getattr(spec, field)
        facts.append((title, f"{figure.value:g} {unit}", f"{figure.label}: {figure.source}"))
    facts.append(("Accelerators", ", ".join(spec.accelerators), spec.sources["accelerators"]))
    facts.append(("Power rails", ", ".join(spec.rails), spec.sources["rails"]))
    facts.append(("Board's total", spec.total_power, spec.sources["total_power"]))
    facts.append(("JetPack", ", ".join(spec.jetpacks), spec.sources["jetpacks"]))
    facts.append(("Presets", f"{len(spec.presets)}, listed below", spec.sources["presets"]))
    facts.append(("At power-on", spec.default_preset, spec.sources["default_preset"]))
    return [*facts, *_list_costs(spec)]


def _list_costs(spec: DeviceSpec) -> list[tuple[str, str, str]]:
    """Return the workloads with costs fitted to tables of this board, with batch sizes, by kind."""
    from fedge.costs.cost_profile import list_calibrated_batch_sizes

    facts = []
    for title, sizes in zip(
        ("Training costs", "Inference costs"), list_calibrated_batch_sizes(spec.name).values(), strict=True
    ):
        if sizes:
            lines = (f"{name}\n  batch {' '.join(map(str, batches))}" for name, batches in sizes.items())
            label = "calibrated: fitted to measured tables (calibration.md)"
            facts.append((title, "\n".join(lines), label))
        else:
            facts.append((title, "none of its own", "estimated: scaled from the nearest board that has the workload"))
    return facts


def _summary_data(spec: DeviceSpec) -> dict[str, Any]:
    figures = {field: asdict(getattr(spec, field)) for field, _, _ in SPEC_FIGURES}
    names = {"name": spec.name, "title": spec.title, "cores": max(spec.cores), "modes": _count_modes(spec)}
    return names | {"default_preset": spec.default_preset} | figures


def _spec_data(spec: DeviceSpec) -> dict[str, Any]:
    from fedge.costs.cost_profile import list_calibrated_batch_sizes

    rest = ("rails", "total_power", "accelerators", "jetpacks")
    return _summary_data(spec) | _modes_data(spec) | {f: getattr(spec, f) for f in rest} | {
        "sources": dict(spec.sources), "calibrated": list_calibrated_batch_sizes(spec.name)
    }  # fmt: skip


def _modes_data(spec: DeviceSpec) -> dict[str, Any]:
    presets = {name: asdict(mode) for name, mode in spec.presets.items()}
    knobs = {field: list(getattr(spec, field)) for field, _, _ in KNOB_TITLES}
    return {"knobs": knobs, "presets": presets, "default_preset": spec.default_preset}


def _build_figure_cell(field: str, spec: DeviceSpec) -> Cell:
    figure: LabelledValue = getattr(spec, field)
    return number_cell(f"{LABEL_MARKS[figure.label]}{figure.value:g}", figure.value)


def _count_modes(spec: DeviceSpec) -> int:
    return len(spec.cores) * len(spec.cpu_mhz) * len(spec.gpu_mhz) * len(spec.mem_mhz)

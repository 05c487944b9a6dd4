"""The generated part of the manual: Markdown pages made from the code that they describe.

``make docs`` adds them to the site, so that no page of the reference is written by hand or can be out of date.
"""

from __future__ import annotations

import ast
import inspect
import re
import runpy
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

import fedge
from experiments.cli.main import app
from experiments.cli.user_files import load_record
from experiments.spec.yaml_schema import KEYS_OWN, KeyDescription, describe_keys
from fedge import errors
from fedge.telemetry import store_records
from server.dashboard.prometheus_metrics import build_families
from server.dashboard.views import FleetView

ROOT = Path(__file__).resolve().parents[1]
FILES = {
    "experiment": "Experiment (`fedge run`)",
    "sweep": "Sweep (`fedge sweep`)",
    "board": "Settings of a real board (`/etc/fedge/node.yaml`)",
    "plan": "Plan of a characterisation (`fedge characterise`)",
}
TABLES = {
    "rounds": store_records.RoundRow,
    "clients": store_records.ClientRow,
    "evaluations": store_records.EvaluationRow,
    "events": store_records.EventRow,
    "samples": store_records.SampleRow,
}
MODULES = {
    "fedge.flower": ["fedge.flower.power_mod.power_mode", "fedge.flower.power_aware.PowerAware"],
    "fedge.telemetry": ["fedge.telemetry.open_run"],
    "Interfaces of plug-ins": [
        f"fedge.protocols.{name}" for name in ("Policy", "Planner", "Selector", "Predictor", "Explorer", "LearningTask")
    ],
    "Values of plug-ins": [
        f"fedge.types.{name}"
        for name in (
            "Predictions",
            "Modes",
            "PowerMode",
            "Front",
            "FrontPoint",
            "RoundGoal",
            "DeviceSpec",
            "LabelledValue",
            "Decision",
            "SelectionContext",
        )
    ],
    "Task files": ["fedge.worker.sources.Data", "fedge.worker.sources.free_data"],
}
"""What a script or a plug-in may import besides ``fedge`` itself, by heading."""
PUBLIC = sorted(vars(fedge)["__all__"], key=str.lower)
GENERATED = "*This page is generated from the code by `make docs`.*"


def build_pages() -> dict[str, str]:
    """Return every generated page by its path below ``docs/``."""
    return {
        "reference/keys.md": _build_keys(),
        "reference/commands.md": _build_commands(),
        "reference/columns.md": _build_columns(),
        "reference/metrics.md": _build_metrics(),
        "reference/errors.md": _build_errors(),
        "reference/benchmarks.md": _build_benchmarks(),
        "reference/api.md": _build_api(),
    }


def _format_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table. Line ends of cells become spaces, and bars outside of code are escaped."""
    cells = [
        [_map_prose(" ".join(cell.split()), lambda text: text.replace("|", "\\|")) for cell in row] for row in rows
    ]
    lines = [heads, ["---"] * len(heads), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _plain(doc: str | None) -> str:
    """Return a docstring's text as Markdown."""
    return inspect.cleandoc(doc or "").replace("``", "`")


# Keys of YAML files ---------------------------------------------------------------------------------------------------


def _build_keys() -> str:
    parts = [
        (
            f"# Keys of YAML files\n\n{GENERATED}\n\n`fedge explain KEY` prints the same in the terminal; "
            "[Experiments](experiments.md) explains what belongs together."
        ),
    ]
    for kind, title in FILES.items():
        parts.append(f"## {title}")
        for name, keys in _group_keys(list(describe_keys(load_record(kind)))):
            heading = f"`{name}`" if name else "Top level"
            rows = [(_code(one.key), _format_kind(one), _format_default(one), _escape(one.meaning)) for one in keys]
            anchor = re.sub(r"[^a-z0-9]+", "-", f"{kind} {name or 'top'}".lower()).strip("-")
            parts.append(f"### {heading} {{ #{anchor} }}")
            parts.append(_format_table(("Key", "Type", "Default", "Meaning"), rows))
    return "\n\n".join(parts) + "\n"


def _group_keys(keys: Sequence[KeyDescription]) -> Iterator[tuple[str, list[KeyDescription]]]:
    """Yield the keys of the top level, then those within each of its mappings."""
    groups: dict[str, list[KeyDescription]] = {"": []}
    for one in keys:
        first, dot, _ = one.key.partition(".")
        groups.setdefault(first if dot else "", []).append(one)
    yield from groups.items()


def _format_kind(key: KeyDescription) -> str:
    allowed = re.sub(r"of the form (\S+)", r"of the form `\1`", key.allowed)
    return ", ".join(filter(None, (key.kind, _escape(allowed))))


def _format_default(key: KeyDescription) -> str:
    if key.default is None:
        return "**required**"
    return "" if key.default == KEYS_OWN else _code(key.default)


def _escape(text: str) -> str:
    """Return text in which Markdown's signs of emphasis and of tags outside of code are literal."""
    return _map_prose(text, lambda part: re.sub(r"([*_\[\]])", r"\\\1", part).replace("<", "&lt;"))


def _map_prose(text: str, change: Callable[[str], str]) -> str:
    """Return Markdown with a change made to what is not code."""
    parts = text.split("`")
    return "`".join(change(part) if i % 2 == 0 else part for i, part in enumerate(parts))


# Commands -------------------------------------------------------------------------------------------------------------


def _build_commands() -> str:
    root = typer.main.get_command(app)
    parts = [
        (
            f"# Commands\n\n{GENERATED}\n\n`fedge COMMAND --help` prints the same in the terminal; "
            "[The command line](command-line.md) says what holds for all of them."
        ),
    ]
    for name, command in _list_commands("fedge", root):
        parts += [f"## `{name}`", _format_help(command.help), *_format_parameters(command)]
    return "\n\n".join(parts) + "\n"


def _list_commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield a group's commands with their full names; a group itself only where it is called like a command."""
    for word, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            if hasattr(inner, "commands"):
                yield from _list_commands(f"{name} {word}", inner)
            else:
                yield f"{name} {word}", inner


def _format_help(text: str | None) -> str:
    """Return a command's help, its example as a block of code."""
    words, _, example = inspect.cleandoc(text or "").partition("Example: ")
    return words.strip() + (f"\n\n```\n{example.strip()}\n```" if example else "")


def _format_parameters(command: Any) -> Iterator[str]:
    context = typer.Context(command)
    rows = []
    for one in command.params:
        record = one.get_help_record(context)
        if one.param_type_name == "argument":
            rows.append((_code(one.make_metavar(context)), _escape(getattr(one, "help", None) or "")))
        elif record is not None and "--help" not in one.opts:
            rows.append((_code(record[0]), _escape(record[1].replace("\\[", "["))))
    if rows:
        yield _format_table(("Argument or option", "Meaning"), rows)


# Rows and metrics -----------------------------------------------------------------------------------------------------


def _build_columns() -> str:
    parts = [
        (
            f"# Columns of a run's tables\n\n{GENERATED}\n\nNames ending in `_s` are seconds, `_j` joules, `_w` watts, "
            "`_mhz` megahertz, `_mb` megabytes (10⁶ bytes), `_c` degrees Celsius, `_mbps` megabits per second; `_ape` "
            "is an absolute relative error. Times are on the fleet clock from the start of the run: simulated on "
            "emulated boards. NULL (None in Python) means unknown. [Tables of a run](telemetry.md) has examples."
        ),
    ]
    for name, record in TABLES.items():
        rows = [
            (", ".join(map(_code, fields)), _code(kind), _escape(doc)) for fields, kind, doc in read_columns(record)
        ]
        parts += [f"## {name}", _plain(record.__doc__), _format_table(("Column", "Type", "Meaning"), rows)]
    return "\n\n".join(parts) + "\n"


def read_columns(record: type[Any]) -> list[tuple[tuple[str, ...], str, str]]:
    """Return a record's fields, as names, type and meaning; fields above one text share it.

    A field without a text of its own belongs to the next text below.
    """
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(record))).body
    assert isinstance(body, ast.ClassDef)
    found, names, kinds = [], [], []
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
            kinds.append(ast.unparse(node.annotation))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and names:
            found.append(
                (tuple(names), ", ".join(dict.fromkeys(kinds)), " ".join(_plain(str(node.value.value)).split()))
            )
            names, kinds = [], []
    if names:
        found.append((tuple(names), ", ".join(dict.fromkeys(kinds)), ""))
    return found


def _build_metrics() -> str:
    rows = [
        (_code(one.name), one.kind, ", ".join(map(_code, one.labels)), _escape(one.help))
        for one in build_families(FleetView(), 0.0)
    ]
    table = _format_table(("Metric", "Kind", "Labels", "Meaning"), rows)
    return (
        f"# Metrics\n\n{GENERATED}\n\n`fedge board` offers them at `/metrics` to Prometheus "
        f"([Monitoring](../how-to/monitoring.md)). Unknown values are left out, never zero.\n\n{table}\n"
    )


# Errors, benchmarks, Python -------------------------------------------------------------------------------------------


def _build_errors() -> str:
    found = [one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, errors.FedgeError)]
    rows = [
        (_code(one.__name__), _code(one.__mro__[1].__name__), _escape(_plain(one.__doc__).partition("\n\n")[0]))
        for one in sorted(found, key=lambda one: (len(one.__mro__), one.__name__))
    ]
    codes = [("0", "success"), ("1", "the command began and failed"), ("2", "invalid input; nothing was written")]
    codes.append(("130", "stopped by Ctrl-C or SIGTERM"))
    return (
        f"# Errors\n\n{GENERATED}\n\nA command ends with one line, `fedge: WHERE: got GOT; RIGHT`: the file and field, "
        "the value, and what would be right.\n\n"
        f"{_format_table(('Exit code', 'Meaning'), codes)}\n\n"
        f"In Python, `fedge.errors` has one class for each:\n\n{_format_table(('Class', 'Is a', 'Meaning'), rows)}\n"
    )


def _build_benchmarks() -> str:
    programs = runpy.run_path(str(ROOT / "benchmarks" / "figures.py"))["list_programs"]()
    rows = [
        (_code(f"benchmarks/{name}"), _escape(summary.replace("``", "`"))) for name, (summary, _) in programs.items()
    ]
    table = _format_table(("Program", "Prints"), rows)
    return (
        f"# Benchmarks\n\n{GENERATED}\n\nEach program prints the figures that the manual quotes: "
        f"`.venv/bin/python benchmarks/NAME.py`, or `make bench` for all.\n\n{table}\n"
    )


def _build_api() -> str:
    parts = [f"# Python API\n\n{GENERATED}\n\n[Scripts and notebooks](python.md) has examples.\n\n## fedge"]
    for name in PUBLIC:
        target = getattr(fedge, name)
        module = getattr(target, "__wrapped__", target).__module__
        options = f"heading_level: 3\n      heading: fedge.{name}\n      toc_label: {name}"
        parts.append(f"::: {module}.{name}\n    options:\n      {options}")
    for title, names in MODULES.items():
        parts.append(f"## {title}")
        parts += [f"::: {name}\n    options:\n      heading_level: 3" for name in names]
    return "\n\n".join(parts) + "\n"

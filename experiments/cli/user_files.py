"""``fedge schema``, ``explain`` and ``new``: the files that a user writes."""

from __future__ import annotations

import keyword
import re
import sys
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from experiments.cli.command_options import AsJson
from experiments.cli.command_output import check_output, make_console, print_json, print_line, write_json
from fedge.atomic_files import write_text
from fedge.errors import BadInput

if TYPE_CHECKING:
    from pydantic import BaseModel


SCHEMA_START = '{\n  "$schema"'

FileKind = Annotated[
    Literal["experiment", "sweep", "board", "plan"],
    typer.Argument(
        metavar="FILE", help="experiment, sweep, board (settings of a board) or plan (of `fedge characterise`)."
    ),
]


def schema(
    kind: FileKind = "experiment",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="File to write; by default it is printed.")] = None,
) -> None:
    """Print the JSON schema of a YAML file, with which an editor completes and checks it.

    The first line `# yaml-language-server: $schema=FILE` of a YAML file names its schema.

    Example: fedge schema experiment --out experiment.schema.json
    """
    from experiments.spec.yaml_schema import build_schema

    check_output("--out", out, SCHEMA_START)
    made = build_schema(load_record(kind), f"fedge {kind}")
    if out is None:
        print_json(made, indent=2)
    write_json(out, made)


def explain(
    key: Annotated[str, typer.Argument(metavar="KEY", help="A key of an experiment, such as workload.batch_size.")],
    as_json: AsJson = False,
) -> None:
    """Explain a key of an experiment, and the keys below it: type, default, range, backends, meaning, an example.

    Example: fedge explain workload.batch_size
    """
    from experiments.spec.yaml_schema import find_key

    found = find_key(load_record("experiment"), key)
    if as_json:
        print_json(found)
        return
    from experiments.report.tables import print_facts
    from experiments.spec.backend_keys import find_backends

    for i, one in enumerate(found):
        if i:
            print_line("")
        print_line(one.key)
        facts = {
            "type": one.kind,
            "default": "none; the key is needed" if one.default is None else one.default,
            "allowed": one.allowed,
            "backend": ", ".join(find_backends(one.key)),
            "meaning": one.meaning,
            "example": one.example,
        }
        print_facts(make_console(), ((f"  {name}", text) for name, text in facts.items() if text))


def load_record(kind: str) -> type[BaseModel]:
    """Return the record that reads a kind of YAML file."""
    from experiments.sweeps.sweep_spec import SweepSpec
    from fedge.characterisation.plan_reader import PlanRecord
    from fedge.devices.local_board import NodeSettings
    from fedge.experiment import Experiment

    records: dict[str, type[BaseModel]] = {
        "experiment": Experiment,
        "sweep": SweepSpec,
        "board": NodeSettings,
        "plan": PlanRecord,
    }
    return records[kind]


TEMPLATES = "experiments.plugin_templates"
FILES = {
    "policy": ("own_policy.py", "test_own_policy.py"),
    "selection": ("own_selection.py", "test_own_selection.py"),
    "predictor": ("own_predictor.py", "test_own_predictor.py"),
    "task": ("own_task.py", "test_own_task.py"),
    "board": ("own_board.yaml", "test_own_board.py"),
}
PLUGIN_NAME = re.compile(r"[a-z][a-z0-9_]*")


def new(
    kind: Annotated[
        Literal["policy", "selection", "predictor", "task", "board"],
        typer.Argument(metavar="KIND", help="policy, selection, predictor, task or board."),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the file: lower case, digits, underscores.")],
    folder: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write.")] = Path(),
) -> None:
    """Write a plug-in of your own that works, and the test of its contract.

    An existing file is never overwritten.

    Example: fedge new policy coolest
    """
    if PLUGIN_NAME.fullmatch(name) is None or name.startswith("test_"):
        right = "lower case, digits and underscores, such as my_policy, and no test_ in front"
        raise BadInput("NAME", repr(name), right)
    if keyword.iskeyword(name) or name in sys.stdlib_module_names:
        got = f"{name!r}, a {'keyword' if keyword.iskeyword(name) else 'standard module'} of Python"
        raise BadInput("NAME", got, f"a name of its own, such as my_{name}")
    texts = {folder / one.replace(f"own_{kind}", name): read_template(kind, one, name) for one in FILES[kind]}
    for path in texts:
        if path.exists():
            raise BadInput(str(path), "a file that exists", "another NAME, or another --folder")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        write_text(path, text)
        print_line(str(path))
    # In a project with --import-mode=importlib a test would not find the file beside it.
    print_line(f"test it: pytest --import-mode=prepend {list(texts)[1]}")


def read_template(kind: str, file: str, name: str) -> str:
    """Return the text of a template for a plug-in called ``name``; its class and a board's own name follow from it."""
    text = (resources.files(TEMPLATES) / file).read_text(encoding="utf-8")
    titled = "".join(part.capitalize() for part in name.split("_"))
    text = text.replace(f"own_{kind}", name).replace(f"own-{kind}", name.replace("_", "-"))
    return text.replace(f"Own{kind.capitalize()}", titled)

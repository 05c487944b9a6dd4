"""``fedge schema`` and ``fedge explain``: the keys of YAML files, for editors and for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from experiments.cli.command_options import AsJson
from experiments.cli.command_output import check_output, make_console, print_json, print_line, write_json

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
    if kind == "sweep":
        from experiments.sweeps.sweep_spec import SweepSpec

        return SweepSpec
    if kind == "board":
        from fedge.devices.local_board import NodeSettings

        return NodeSettings
    if kind == "plan":
        from fedge.characterisation.plan_reader import PlanRecord

        return PlanRecord
    from fedge.experiment import Experiment

    return Experiment

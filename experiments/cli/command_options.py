"""Options that several commands have, and records of options that are made of a command's parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

R = TypeVar("R")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
RowsFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the rows as JSON.")]
ChartPage = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with charts.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a field; may be repeated.")
]
InputShape = Annotated[str | None, typer.Option("--input", metavar="SHAPE", help="One sample's shape, as 3x224x224.")]
TableDevice = Annotated[str | None, typer.Option("--device", help="The board; by default from the table's path.")]
TableWorkload = Annotated[str | None, typer.Option("--workload", help="The workload; by default from the file's name.")]
TableBatchSize = Annotated[int | None, typer.Option("--batch-size", help="Batch size, if a table holds several.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of all random choices.")]


def build_options(record: type[R], parameters: Mapping[str, Any], *, others: Collection[str] = (), **more: Any) -> R:
    """Return a record of options with a command's parameters of the same names.

    Args:
        record: A dataclass.
        parameters: The command's parameters, a copy of ``locals()`` at its beginning; lists become tuples, and a
            parameter that was not given leaves the record's default.
        others: The parameters that are no options of the record, such as the files that the command writes.
        more: Fields that are no parameters; for a dataclass, a record of it made of the same parameters.

    Raises:
        TypeError: If a parameter is neither a field nor among ``others``, or both.
    """
    parts = [one for one in more.values() if isinstance(one, type)]
    fields = {field.name for one in (record, *parts) for field in dataclasses.fields(one)}
    if odd := (parameters.keys() - fields) ^ set(others):
        raise TypeError(f"{record.__name__}: {', '.join(sorted(odd))} must be a field or among the others")
    made = {name: _fill(one, parameters) if isinstance(one, type) else one for name, one in more.items()}
    return _fill(record, {**parameters, **made})


def _fill(record: type[R], parameters: Mapping[str, Any]) -> R:
    values = {}
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        value = parameters.get(field.name)
        if value is not None or field.default is field.default_factory is dataclasses.MISSING:
            values[field.name] = tuple(value) if isinstance(value, list) else value
    return record(**values)

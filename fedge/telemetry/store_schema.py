"""The five tables of a run's store: names, Arrow columns, and the column that gives a row's age."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, TypeVar

from fedge.telemetry.store_records import ClientRow, EvaluationRow, EventRow, RoundRow, RoundTrace, SampleRow
from fedge.types import Trace

VERSION = 2
"""Version of the store's layout, the only one that is read."""
Record = RoundRow | ClientRow | EvaluationRow | EventRow | SampleRow
"""A row as it is read."""
R = TypeVar("R", RoundRow, ClientRow, EvaluationRow, EventRow, SampleRow)


@dataclass(frozen=True, slots=True)
class StoreTable:
    """One table.

    Attributes:
        time: Column, in seconds, that gives a row's age.
        coded: Columns that parts store with a dictionary.
    """

    name: str
    row: type[Record]
    time: str
    coded: tuple[str, ...] = ()


SAMPLES = StoreTable("samples", SampleRow, "at_s", ("board",))
EVENTS = StoreTable("events", EventRow, "at_s")
CLIENTS = StoreTable("clients", ClientRow, "end_s")
EVALUATIONS = StoreTable("evaluations", EvaluationRow, "end_s")
ROUNDS = StoreTable("rounds", RoundRow, "end_s")
TABLES: tuple[StoreTable, ...] = (SAMPLES, EVENTS, CLIENTS, EVALUATIONS, ROUNDS)
"""In the order in which one append writes them: a round's row comes last, so that a reader who sees it sees the whole
round.
"""
BY_NAME = {table.name: table for table in TABLES}
BY_ROW: dict[type, StoreTable] = {table.row: table for table in TABLES}


@cache
def arrow_schema(table: StoreTable, coded: bool = False) -> Any:
    """Return the columns in the record's order.

    Parts use dictionaries for the ``coded`` columns; write-ahead frames have none.
    """
    import pyarrow as pa

    plain = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_(), dict: rails_type()}
    hints = typing.get_type_hints(table.row)
    fields = []
    for field in dataclasses.fields(table.row):
        kind = plain[_plain_type(hints[field.name])]
        if coded and field.name in table.coded:
            kind = pa.dictionary(pa.int32(), pa.string())
        fields.append((field.name, kind))
    return pa.schema(fields)


def rails_type() -> Any:
    """Return the Arrow type of watts by rail."""
    import pyarrow as pa

    return pa.map_(pa.string(), pa.float64())


def rows_to_batch(table: StoreTable, rows: Sequence[Record]) -> Any:
    """Convert records to one Arrow batch with the columns of write-ahead frames."""
    import pyarrow as pa

    schema = arrow_schema(table)
    columns = []
    for field in schema:
        values = [getattr(row, field.name) for row in rows]
        if pa.types.is_map(field.type):
            values = [list(value.items()) for value in values]
        columns.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def fit_to_schema(table: StoreTable, rows: Any) -> Any:
    """Return an Arrow table with exactly the columns of parts; missing ones are null and unknown ones are dropped."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = []
    for field in arrow_schema(table, coded=True):
        if field.name not in rows.column_names:
            columns.append(pa.nulls(rows.num_rows, field.type))
            continue
        column = rows.column(field.name)
        if pa.types.is_dictionary(field.type) and not pa.types.is_dictionary(column.type):
            column = pc.dictionary_encode(column)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.table(columns, schema=arrow_schema(table, coded=True))


def table_to_records(table: Any, row: type[R]) -> list[R]:
    """Convert an Arrow table to records; a null becomes the field's default where None is not permitted."""
    hints = typing.get_type_hints(row)
    columns: list[Iterable[Any]] = []
    for field in dataclasses.fields(row):
        values: list[Any] = table.column(field.name).to_pylist()
        instead = _make_none_replacement(field, hints[field.name])
        columns.append(values if instead is None else map(instead, values))
    return [row(*values) for values in zip(*columns, strict=True)]


def _make_none_replacement(field: dataclasses.Field[Any], hint: Any) -> Callable[[Any], Any] | None:
    """Return the conversion of a read value to the field's; None if there is none."""
    if _plain_type(hint) is dict:
        return lambda value: dict(value or ())
    if field.default is dataclasses.MISSING or field.default is None:
        return None
    return lambda value: field.default if value is None else value


def _plain_type(hint: Any) -> type:
    """Return ``float`` for ``float | None``, ``str`` for a Literal of strings, ``dict`` for a mapping."""
    if isinstance(hint, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
    if typing.get_origin(hint) is typing.Literal:
        return str
    if typing.get_origin(hint) is dict:
        return dict
    return typing.cast("type", hint)


# Traces: converted without a Python loop per stretch ------------------------------------------------------------------

TRACE_COLUMNS = {"at_s": "start_s", "span_s": "span_s", "power_w": "power_w"}
"""Required columns, and the trace's field that each is read from."""


def traces_to_batch(traces: Sequence[RoundTrace]) -> Any:
    """Convert at least one trace to one Arrow batch with a row per stretch.

    Raises:
        ValueError: The columns of a trace differ in length.
    """
    import numpy as np
    import pyarrow as pa

    counts = [len(traced.trace) for traced in traces]
    columns = []
    for field in arrow_schema(SAMPLES):
        if field.name == "round":
            columns.append(pa.array(np.repeat([traced.round for traced in traces], counts), pa.int64()))
        elif field.name == "board":
            names = pa.array([traced.board for traced in traces], pa.string())
            columns.append(names.take(pa.array(np.repeat(np.arange(len(traces)), counts))))
        elif field.name == "rails_w":
            columns.append(pa.concat_arrays([_rails_array(traced.trace) for traced in traces]))
        else:
            name = TRACE_COLUMNS.get(field.name, field.name)
            values = list(chain.from_iterable(_get_column(traced, name) for traced in traces))
            columns.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(SAMPLES))


def _get_column(traced: RoundTrace, name: str) -> Sequence[float | None]:
    """Return a trace's column; an empty optional one becomes all None."""
    values: Sequence[float | None] = getattr(traced.trace, name)
    count = len(traced.trace)
    if not values and name not in TRACE_COLUMNS.values():
        return (None,) * count
    if len(values) != count:
        raise ValueError(f"{traced.board}: {name} has {len(values)} values for {count} stretches")
    return values


def _rails_array(trace: Trace) -> Any:
    """Return the maps of a trace's stretches; a rail without a value in a stretch is not in its map."""
    import numpy as np
    import pyarrow as pa

    count, rails = len(trace), trace.rails_w
    for name, values in rails.items():
        if len(values) != count:
            raise ValueError(f"rail {name} has {len(values)} values for {count} stretches")
    if not rails:
        return pa.array([[]] * count, rails_type())
    arrays = [pa.array(values, pa.float64()).to_numpy(zero_copy_only=False) for values in rails.values()]
    watts = np.stack(arrays, axis=1)  # (stretches, rails)
    known = ~np.isnan(watts)
    offsets = np.concatenate([[0], np.cumsum(known.sum(axis=1))]).astype(np.int32)
    places = np.broadcast_to(np.arange(len(rails)), watts.shape)[known]
    keys = pa.array(list(rails), pa.string()).take(pa.array(places))
    return pa.MapArray.from_arrays(pa.array(offsets), keys, pa.array(watts[known]))

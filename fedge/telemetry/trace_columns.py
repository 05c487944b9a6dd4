"""Convert traces to columns of the samples table, without a Python loop per stretch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from fedge.telemetry.store_records import RoundTrace
from fedge.telemetry.store_schema import SAMPLES, arrow_schema, rails_type
from fedge.types import Trace

COLUMNS = {"at_s": "start_s", "span_s": "span_s", "power_w": "power_w"}
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
            name = COLUMNS.get(field.name, field.name)
            values = list(chain.from_iterable(_get_column(traced, name) for traced in traces))
            columns.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(SAMPLES))


def _get_column(traced: RoundTrace, name: str) -> Sequence[float | None]:
    """Return a trace's column; an empty optional one becomes all None."""
    values: Sequence[float | None] = getattr(traced.trace, name)
    count = len(traced.trace)
    if not values and name not in COLUMNS.values():
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

"""The store of a fleet's samples, which goes on for months: old parts go, neighbours merge, boards are looked up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedge.atomic_files import replace_file, sync_folder
from fedge.errors import BadInput
from fedge.telemetry import store_files
from fedge.telemetry.store_reader import read_snapshot, retry_while_changing
from fedge.telemetry.store_schema import SAMPLES, arrow_schema, fit_to_schema

MERGED_PARTS, MERGED_TWICE = 16, 256
"""Neighbouring parts of one kind that become one, and width in numbers from which a part is not merged again. So at
most 15 single parts remain, 15 that were merged once, and those that were merged twice.
"""
MERGED_SHARE = 1 / 16
"""Largest share of the store's size and age that a merged part has, since the oldest samples go by whole parts."""


def forget_old(folder: Path, max_bytes: int, max_age_s: float, now_s: float) -> int:
    """Remove the oldest parts of the samples until they keep both limits, and superseded files; write-ahead files stay.

    An empty part replaces a removed one that has the highest number, so that no number is used twice. A part is too old
    if all its rows are older than ``max_age_s``.

    Returns:
        The number of removed parts.
    """
    where = store_files.table_folder(folder, SAMPLES)
    files = store_files.list_store_files(where)
    for path in files.superseded:  # before what supersedes them
        path.unlink(missing_ok=True)
    used = sum(store_files.size_bytes(path) for path in files.live_wals.values())
    gone = []
    for number, path in sorted(files.parts.items(), reverse=True):
        used += store_files.size_bytes(path)
        newest_s = store_files.read_greatest(path, SAMPLES.time)
        is_kept = used <= max_bytes and newest_s >= now_s - max_age_s
        if not is_kept and not (number == files.last and newest_s == store_files.NO_VALUE):
            gone.append(number)
    for number in reversed(gone):  # what needs room comes last
        if number == files.last:
            store_files.write_part(files.parts[number], store_files.make_empty_table(SAMPLES))
        else:
            files.parts[number].unlink(missing_ok=True)
    return len(gone)


def merge_parts(folder: Path, max_bytes: int, max_age_s: float) -> int:
    """Merge neighbouring parts of the samples, so that their number stays bounded; may be interrupted and repeated.

    The merged ones stay until ``forget_old``, whose limits these are, so that a reader that has listed them can read
    them.

    Returns:
        The number of parts written.
    """
    where, merged = store_files.table_folder(folder, SAMPLES), 0
    while group := _find_mergeable(store_files.list_store_files(where), max_bytes, max_age_s):
        _write_merged(where, group)
        merged += 1
    return merged


def _find_mergeable(files: store_files.StoreListing, max_bytes: float, max_age_s: float) -> list[Path]:
    """Return the oldest ``MERGED_PARTS`` neighbours of one kind that together are no large share; empty if none are."""
    parts = list(files.parts.values())
    kinds = [_rank_width(path) for path in parts]
    for first in range(len(parts) - MERGED_PARTS + 1):
        group = parts[first : first + MERGED_PARTS]
        if kinds[first] == 2 or len(set(kinds[first : first + MERGED_PARTS])) > 1 or not all(map(_is_whole, group)):
            continue
        span_s = store_files.read_greatest(group[-1], SAMPLES.time) - store_files.read_greatest(group[0], SAMPLES.time)
        if sum(map(store_files.size_bytes, group)) <= MERGED_SHARE * max_bytes and span_s <= MERGED_SHARE * max_age_s:
            return group
    return []


def _is_whole(path: Path) -> bool:
    """Return whether a part can be read: a damaged one stays by itself, as its neighbours would be lost with it."""
    try:
        store_files.check_part(path, path.stat().st_mtime_ns)
    except (BadInput, OSError):
        return False
    return True


def _rank_width(path: Path) -> int:
    """Return how often the rows of a part were merged."""
    first, last = _parse_span(path)
    return sum(last - first + 1 >= width for width in (MERGED_PARTS, MERGED_TWICE))


def _parse_span(path: Path) -> tuple[int, int]:
    first, _, last = path.stem.partition("-")
    return int(first), int(last or first)


def _write_merged(where: Path, group: Sequence[Path]) -> None:
    import pyarrow.parquet as pq

    target = where / f"{_parse_span(group[0])[0]:06d}-{_parse_span(group[-1])[1]:06d}{store_files.PART}"
    schema = arrow_schema(SAMPLES, coded=True)
    with replace_file(target) as part, pq.ParquetWriter(part, schema, compression="zstd") as writer:
        for rows in _join_groups(group):
            writer.write_table(rows, row_group_size=store_files.ROW_GROUP)
    sync_folder(where)


def _join_groups(paths: Sequence[Path]) -> Iterator[Any]:
    """Yield the rows of parts as row groups of ``store_files.ROW_GROUP`` rows, the last one smaller."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pending = store_files.make_empty_table(SAMPLES)
    for path in paths:
        store_files.check_part(path, path.stat().st_mtime_ns)
        with pq.ParquetFile(path) as file:
            for number in range(file.num_row_groups):
                rows = file.read_row_group(number)
                rows.validate(full=True)
                pending = pa.concat_tables([pending, fit_to_schema(SAMPLES, rows)]).combine_chunks()
                while pending.num_rows > store_files.ROW_GROUP:
                    yield pending.slice(0, store_files.ROW_GROUP)
                    pending = pending.slice(store_files.ROW_GROUP)
    yield pending


def read_samples(folder: Path, board: str, columns: Sequence[str], since_s: float = -math.inf) -> Any:
    """Read columns of a board's samples from a time on, in the order of time, as an Arrow table.

    DuckDB would decode all samples of a store, since it does not compare times before.
    """

    def read() -> Any:
        import pyarrow.dataset as ds

        samples = read_snapshot(folder, SAMPLES).keep_since(since_s).dataset()
        wanted = (ds.field("board") == board) & (ds.field("at_s") >= since_s)
        return samples.to_table(columns=list(columns), filter=wanted).sort_by("at_s")

    return retry_while_changing(read)


def read_last_ends(folder: Path, changed_since_s: float) -> dict[str, float]:
    """Return when the last sample of each board ends, in the files that were changed since a unix time."""

    def read() -> dict[str, float]:
        import pyarrow as pa
        import pyarrow.dataset as ds

        snapshot, ends_s = read_snapshot(folder, SAMPLES), dict[str, float]()
        changed = tuple(path for path in snapshot.parts if path.stat().st_mtime >= changed_since_s)
        columns = {"board": ds.field("board"), "end_s": ds.field("at_s") + ds.field("span_s")}
        for batch in replace(snapshot, parts=changed).dataset().scanner(columns).to_batches():
            last = pa.Table.from_batches([batch]).group_by("board").aggregate([("end_s", "max")])
            for board, end_s in zip(
                *(column.to_pylist() for column in last.select(["board", "end_s_max"])), strict=True
            ):
                ends_s[board] = max(end_s, ends_s.get(board, end_s))
        return ends_s

    return retry_while_changing(read)

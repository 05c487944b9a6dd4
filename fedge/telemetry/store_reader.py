"""Reads a run's rows, also while they are being written, from a consistent set of files."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from fedge.errors import BadInput, RunFailed, UnknownName
from fedge.telemetry import store_files, wal
from fedge.telemetry.run_folder import RUN_YAML, STORE, build_absence_error
from fedge.telemetry.store_records import RoundRow
from fedge.telemetry.store_schema import (
    BY_NAME,
    BY_ROW,
    CLIENTS,
    TABLES,
    R,
    StoreTable,
    arrow_schema,
    table_to_records,
)

logger = logging.getLogger(__name__)
T = TypeVar("T")

TRIES, PAUSE_S = 100, 0.005
"""How often, and after how many seconds, a listing that changed meanwhile is repeated: half a second in total."""


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """A table at one moment.

    Attributes:
        notes: Descriptions of damaged files.
    """

    table: StoreTable
    parts: tuple[Path, ...]
    recent: Any
    notes: tuple[str, ...] = ()

    def keep_since(self, at_s: float) -> TableSnapshot:
        """Return the snapshot without the parts of which every row is older."""
        kept = (path for path in self.parts if store_files.read_greatest(path, self.table.time) >= at_s)
        return replace(self, parts=tuple(kept))

    def dataset(self) -> Any:
        """Return parts and write-ahead rows as one Arrow dataset; columns missing in a part are null."""
        import pyarrow.dataset as ds

        schema = arrow_schema(self.table, coded=True)
        recent = ds.dataset(self.recent)
        if not self.parts:
            return recent
        for path in self.parts:
            store_files.check_part(path, path.stat().st_mtime_ns)
        stored = ds.dataset([str(path) for path in self.parts], schema=schema, format="parquet")
        return ds.dataset([stored, recent]) if self.recent.num_rows else stored

    def read(self, **selection: Any) -> Any:
        """Return the rows as an Arrow table; ``selection`` is Arrow's: ``columns`` and ``filter``.

        Raises:
            BadInput: A part is damaged, and named, or rows hold text that is not UTF-8.
            FileNotFoundError: A part has gone.
        """
        import pyarrow as pa

        try:
            rows = self.dataset().to_table(**selection)
            rows.validate(full=True)
        except FileNotFoundError:
            raise
        except (OSError, ValueError, pa.ArrowException) as error:
            self.check_parts()
            raise store_files.unreadable_error(error) from error
        return rows

    def check_parts(self) -> None:
        """Read every part for itself; raises ``BadInput`` for the first one that cannot be read."""
        for path in self.parts:
            store_files.read_part(path)


def read_snapshot(folder: Path, table: StoreTable) -> TableSnapshot:
    """Return the table's present state; empty if nothing was stored.

    Raises:
        BadInput: Another version of fedge wrote the store.
    """
    if not store_files.has_store(folder):
        return TableSnapshot(table, (), store_files.make_empty_table(table))
    return retry_while_changing(lambda: _read_listing(store_files.table_folder(folder, table), table))


def read_rows(folder: Path, kind: type[R], since_round: int | None = None) -> list[R]:
    """Read the rows of one table in the order in which they were written.

    Raises:
        BadInput: Another version of fedge wrote the store, or a file cannot be read.
    """

    def read() -> Any:
        import pyarrow.dataset as ds

        chosen = None if since_round is None else ds.field("round") >= since_round
        snapshot = read_snapshot(folder, BY_ROW[kind])
        for note in snapshot.notes:
            logger.warning("%s", note)
        return snapshot.read(filter=chosen)

    return table_to_records(retry_while_changing(read), kind)


def read_new_rounds(folder: Path, known: Sequence[RoundRow]) -> list[RoundRow]:
    """Return all rounds, of which only those from the last known one on are read.

    Args:
        known: The rounds that were read before; a resumed run may have repeated some of them, then all are read.
    """
    tail = read_rows(folder, RoundRow, since_round=known[-1].round if known else None)
    if known and (not tail or repr(tail[0]) != repr(known[-1])):  # a loss that is no number differs from itself
        return read_rows(folder, RoundRow)
    return [*known[:-1], *tail]


def compute_store_stamp(folder: Path, *kinds: type) -> tuple[tuple[str, int, int], ...]:
    """Return names, sizes in bytes and modification times in ns of the tables' files; it changes when rows are added.

    ``kinds`` are the record types of the tables; none: all tables.
    """
    tables = [BY_ROW[kind] for kind in kinds] or list(TABLES)
    paths = list[Path]()
    for table in tables:
        files = store_files.list_store_files(folder / STORE / table.name)
        paths += [*files.parts.values(), *files.live_wals.values()]
    stamp = []
    for path in paths:
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        stamp.append((_short_path(path), status.st_size, status.st_mtime_ns))
    return tuple(stamp)


def list_rounds(folder: Path, table: str) -> set[int]:
    """Return the rounds that have a row in the named table."""
    rounds = retry_while_changing(lambda: read_snapshot(folder, BY_NAME[table]).read(columns=["round"]))
    return set(rounds.column("round").to_pylist())


def retry_while_changing(read: Callable[[], T]) -> T:
    """Call ``read`` until no file vanishes meanwhile, and return its result.

    Raises:
        RunFailed: The files keep changing.
        BadInput: A file is damaged, not a table, or unreadable.
    """
    import pyarrow as pa

    for _ in range(TRIES):
        try:
            return read()
        except FileNotFoundError:
            time.sleep(PAUSE_S)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise store_files.unreadable_error(error) from error
    raise RunFailed("the store's files change faster than they can be read; try again")


def _read_listing(where: Path, table: StoreTable) -> TableSnapshot:
    """Read a consistent listing; raises ``FileNotFoundError`` if the writer changed files meanwhile.

    Numbers are never reused, so two equal listings prove what existed between them: for each number the write-ahead
    file, the part, or both, in which case the part counts.
    """
    import pyarrow as pa

    files = store_files.list_store_files(where)
    if store_files.list_store_files(where) != files:
        raise FileNotFoundError(where)
    notes = [f"{_short_path(path)}: set aside, it was damaged" for path in files.damaged.values()]
    recent = [store_files.make_empty_table(table)]
    for path in files.live_wals.values():
        contents = wal.read(path)
        if contents.damaged:
            notes.append(
                f"{_short_path(path)}: damaged after {contents.rows} rows, which are read; what follows is not"
            )
        recent.append(store_files.wal_rows_to_table(table, contents, path))
    return TableSnapshot(table, tuple(files.parts.values()), pa.concat_tables(recent), tuple(notes))


def _short_path(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


# Newest rows: read after every round for a page, without a database ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewestRows:
    """Newest rows and energies by board.

    Attributes:
        before_j: Energy in joules before a round.
        from_j: Energy in joules from that round on.
    """

    rows: dict[str, tuple[Any, ...]]
    before_j: dict[str, float]
    from_j: dict[str, float]


def read_newest_rows(folder: Path, columns: Sequence[str], since_round: int, split_round: int) -> NewestRows:
    """Read the newest rows of the clients table; energies are summed before ``split_round`` and from it on.

    Raises:
        BadInput: Another version of fedge wrote the store.
    """

    def read() -> Any:
        import pyarrow.dataset as ds

        needed = list(dict.fromkeys(["board", "round", "energy_j", *columns]))
        return read_snapshot(folder, CLIENTS).read(columns=needed, filter=ds.field("round") >= since_round)

    import pyarrow.compute as pc

    table = retry_while_changing(read)
    before = pc.less(table.column("round"), split_round)
    return NewestRows(
        _last_rows(table, columns),
        before_j=_sum_by_board(table.filter(before)),
        from_j=_sum_by_board(table.filter(pc.invert(before))),
    )


def _last_rows(table: Any, columns: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Return the row with the greatest round of each board; parts of a resumed run need not be in order."""
    boards, rounds = table.column("board").to_pylist(), table.column("round").to_pylist()
    places = {boards[place]: place for place in sorted(range(len(boards)), key=rounds.__getitem__)}
    chosen = table.take(list(places.values())) if places else table
    values = [chosen.column(name).to_pylist() for name in columns]
    return dict(zip(places, zip(*values, strict=True), strict=True))


def _sum_by_board(table: Any) -> dict[str, float]:
    summed = table.group_by("board").aggregate([("energy_j", "sum")])
    boards, joules = summed.column("board").to_pylist(), summed.column("energy_j_sum").to_pylist()
    return {board: value or 0.0 for board, value in zip(boards, joules, strict=True)}


# A run for analysis: as Arrow, pandas or records, or with read-only SQL -----------------------------------------------


NAMES = ("rounds", "clients", "evaluations", "events", "samples")
INTERRUPT_S = 0.05
"""Seconds between two attempts to interrupt a query."""
BEGINS_WITHIN_S = 5.0
"""Seconds after which a thread that has not begun was never started."""
UNREADABLE_STREAM = "reading the stream registered as"
"""In DuckDB's message if it is not the statement that is wrong, but a file that cannot be read."""
BATCH_ROWS = 8192
"""Rows per batch of a streamed answer: bounds its memory."""


QueryRow = tuple[Any, ...]


class QueryAnswer:
    """Answer of a query: column names, and rows that are computed on demand and can be iterated once."""

    def __init__(self, names: tuple[str, ...], rows: Iterator[QueryRow]) -> None:
        self.names, self._rows, self.row_count = names, rows, 0

    def __iter__(self) -> Iterator[QueryRow]:
        for row in self._rows:
            self.row_count += 1
            yield row


def _batch_to_rows(batch: Any) -> list[QueryRow]:
    """Convert a record batch; raises ``BadInput`` for values without a Python form, such as dates before year 1."""
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            columns.append(column.to_pylist(maps_as_pydicts="strict"))
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            got = f"a value of {name} that cannot be converted ({error})"
            raise BadInput("SQL", got, "it as text: ::varchar") from error
    return list(zip(*columns, strict=True))


class RunReader:
    """A run as it was when it was opened, finished or not.

    Attributes:
        notes: Descriptions of damaged files that could not be read completely.

    Raises:
        BadInput: ``folder`` is not a run.
    """

    def __init__(self, folder: Path) -> None:
        if not store_files.has_store(folder) and not (folder / RUN_YAML).is_file():
            raise build_absence_error(folder)
        # Rounds first: a round is written after everything that belongs to it.
        self._tables: dict[str, TableSnapshot] = {
            table.name: read_snapshot(folder, table) for table in reversed(TABLES)
        }
        self.notes = tuple(note for name in NAMES for note in self._tables[name].notes)
        for note in self.notes:
            logger.warning("%s", note)
        self._connection: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def arrow(self, table: str) -> Any:
        """Return a whole table as a ``pyarrow.Table``.

        Raises:
            UnknownName: There is no such table.
            BadInput: A file cannot be read.
        """
        if table not in BY_NAME:
            raise UnknownName("table", table, NAMES)
        try:
            return self._tables[table].read()
        except FileNotFoundError as error:
            raise store_files.unreadable_error(error) from error

    def pandas(self, table: str) -> Any:
        """Return a whole table as a ``pandas.DataFrame``, ``rails_w`` as dictionaries.

        Raises:
            UnknownName: There is no such table.
            BadInput: A file cannot be read.
        """
        return self.arrow(table).to_pandas(maps_as_pydicts="strict")

    def rows(self, kind: type[R]) -> list[R]:
        """Return a table's rows as records of type ``kind``."""
        return table_to_records(self.arrow(BY_ROW[kind].name), kind)

    def query(self, sql: str) -> Any:
        """Run one SELECT over the tables of ``NAMES``; nothing else can be read or written.

        Returns:
            A ``pyarrow.Table``.

        Raises:
            BadInput: The statement is invalid.
        """
        return self._run_interruptible(lambda: self._make_relation(sql).to_arrow_table())

    def stream(self, sql: str) -> QueryAnswer:
        """Run one SELECT as ``query`` does and stream the answer, for answers that exceed the memory.

        Raises:
            BadInput: The statement is invalid; while iterating, a value has no Python form.
        """
        reader = self._run_interruptible(lambda: self._make_relation(sql).to_arrow_reader(BATCH_ROWS))
        batches = iter(lambda: self._run_interruptible(lambda: next(reader, None)), None)
        return QueryAnswer(tuple(reader.schema.names), (row for batch in batches for row in _batch_to_rows(batch)))

    def _run_interruptible(self, work: Callable[[], T]) -> T:
        """Run ``work`` in another thread and return its result: DuckDB itself would not react to Ctrl-C."""
        outcome, begun = Future[T](), threading.Event()

        def run() -> None:
            begun.set()
            try:
                outcome.set_result(work())
            except BaseException as error:  # noqa: BLE001 -- the caller gets it
                outcome.set_exception(error)

        beside = threading.Thread(target=run, name="fedge-query", daemon=True)
        with self._translate_errors():
            try:
                beside.start()
                return outcome.result()
            except KeyboardInterrupt:
                # It may come while the thread starts. Repeated until the query ends: one that had not begun yet ignores
                # the first interrupt.
                begun.wait(BEGINS_WITHIN_S)
                while begun.is_set() and beside.is_alive():
                    if self._connection is not None:
                        self._connection.interrupt()
                    beside.join(INTERRUPT_S)
                raise

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Convert errors of DuckDB and Arrow to ``BadInput``."""
        import duckdb
        import pyarrow as pa

        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            if UNREADABLE_STREAM in str(error):
                for table in self._tables.values():
                    table.check_parts()
            raise BadInput("SQL", _one_line_message(error), _expected_sql()) from error

    def _make_relation(self, sql: str) -> Any:
        """Return DuckDB's lazy relation for one SELECT."""
        import duckdb

        statements = duckdb.extract_statements(sql)
        kinds = [str(statement.type).rpartition(".")[2] for statement in statements]
        if len(kinds) != 1 or kinds[0] not in {"SELECT", "EXPLAIN"}:
            raise BadInput("SQL", " and ".join(kinds) or "nothing", _expected_sql())
        if self._connection is None:
            self._connection = self._connect()
        return self._connection.sql(sql)

    def _connect(self) -> Any:
        """Open an in-memory database with the tables and no access to files."""
        import duckdb

        safe: dict[str, Any] = {
            "python_enable_replacements": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "temp_directory": "",
        }
        connection = duckdb.connect(":memory:", config=safe)
        for name in NAMES:
            connection.register(name, self._tables[name].dataset())
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        return connection


def open_run(path: str | Path) -> RunReader:
    """Open a run's folder, also while the run goes on.

    Raises:
        BadInput: The folder is not a run, or a newer fedge wrote it.
    """
    return retry_while_changing(lambda: RunReader(Path(path)))


def _expected_sql() -> str:
    return f"one SELECT over the tables {', '.join(NAMES)} (`describe rounds` lists the columns of one)"


def _one_line_message(error: Exception) -> str:
    """Return the message without DuckDB's excerpt of the statement."""
    return " ".join(str(error).partition("\nLINE ")[0].split())

"""Read a run's tables for analysis: as Arrow, pandas or records, or with read-only SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from fedge.errors import BadInput, UnknownName
from fedge.telemetry import store_files
from fedge.telemetry.run_folder import RUN_YAML
from fedge.telemetry.store_reader import TableSnapshot, logger, read_snapshot, retry_while_changing
from fedge.telemetry.store_schema import BY_NAME, BY_ROW, TABLES, R, table_to_records

NAMES = ("rounds", "clients", "evaluations", "events", "samples")
T = TypeVar("T")
INTERRUPT_S = 0.05
"""Seconds between two attempts to interrupt a query."""
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
        if store_files.read_store_version(folder) is None and not (folder / RUN_YAML).is_file():
            got = "a folder without a run's rows" if folder.is_dir() else "no such folder"
            raise BadInput(str(folder), got, "the folder of a run")
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
            rows = self._tables[table].dataset().to_table()
            rows.validate(full=True)
        except (OSError, ValueError) as error:
            raise store_files.unreadable_error(error) from error
        return rows

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
        """Run one SELECT over ``rounds``, ``clients``, ``events`` and ``samples``; nothing else can be read or written.

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
        with ThreadPoolExecutor(1, "fedge-query") as beside, _translate_errors():
            doing = beside.submit(work)
            try:
                return doing.result()
            except KeyboardInterrupt:
                # Repeated until it ends: a query that had not begun yet ignores the first interrupt.
                while not doing.done():
                    if self._connection is not None:
                        self._connection.interrupt()
                    wait([doing], INTERRUPT_S)
                raise

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


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Convert errors of DuckDB and Arrow to ``BadInput``."""
    import duckdb
    import pyarrow as pa

    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        raise BadInput("SQL", _one_line_message(error), _expected_sql()) from error


def _expected_sql() -> str:
    return f"one SELECT over the tables {', '.join(NAMES)} (`describe rounds` lists the columns of one)"


def _one_line_message(error: Exception) -> str:
    """Return the message without DuckDB's excerpt of the statement."""
    return " ".join(str(error).partition("\nLINE ")[0].split())

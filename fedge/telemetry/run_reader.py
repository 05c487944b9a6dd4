"""A run's tables for analysis: as Arrow, pandas, records, or asked in SQL, which can only read them."""

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
from fedge.telemetry.store_reader import TableSnapshot, logger, read_snapshot, retry_while_changing, unreadable_error
from fedge.telemetry.store_schema import BY_NAME, BY_ROW, TABLES, R, table_to_records

NAMES = ("rounds", "clients", "events", "samples")
T = TypeVar("T")
INTERRUPT_S = 0.05
"""Between two requests to end; chosen by us."""
BATCH_ROWS = 8192
"""Of an answer that is taken bit by bit; chosen by us."""


class RunReader:
    """A run as it was when it was opened, finished or not; raises ``BadInput`` when ``folder`` is none.

    ``notes`` says what could not be read, where a file is damaged.
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
        """The whole table as a ``pyarrow.Table``; raises ``UnknownName``, ``BadInput`` where a file cannot be read."""
        if table not in BY_NAME:
            raise UnknownName("table", table, NAMES)
        try:
            return self._tables[table].dataset().to_table()
        except (OSError, ValueError) as error:
            raise unreadable_error(error) from error

    def pandas(self, table: str) -> Any:
        """The whole table as a ``pandas.DataFrame``, ``rails_w`` as dictionaries; raises ``UnknownName``."""
        return self.arrow(table).to_pandas(maps_as_pydicts="strict")

    def rows(self, kind: type[R]) -> list[R]:
        """The table's rows as records."""
        return table_to_records(self.arrow(BY_ROW[kind].name), kind)

    def query(self, sql: str) -> Any:
        """What one SELECT over ``rounds``, ``clients``, ``events`` and ``samples`` gives, as a ``pyarrow.Table``.

        Nothing but these tables can be read, and nothing written. Raises ``BadInput`` with what is wrong.
        """
        return self._run_interruptible(lambda: self._make_relation(sql).to_arrow_table())

    def batches(self, sql: str) -> tuple[Any, Iterator[Any]]:
        """The same as an Arrow schema and record batches, made as they are taken: for answers that fill the memory."""
        reader = self._run_interruptible(lambda: self._make_relation(sql).to_arrow_reader(BATCH_ROWS))
        return reader.schema, iter(lambda: self._run_interruptible(lambda: next(reader, None)), None)

    def _run_interruptible(self, work: Callable[[], T]) -> T:
        """What ``work`` gives, done beside this thread: DuckDB itself would not hear Ctrl-C."""
        with ThreadPoolExecutor(1, "fedge-query") as beside, _translate_errors():
            doing = beside.submit(work)
            try:
                return doing.result()
            except KeyboardInterrupt:
                # Again until it ends: what had not begun yet would not hear the first.
                while not doing.done():
                    if self._connection is not None:
                        self._connection.interrupt()
                    wait([doing], INTERRUPT_S)
                raise

    def _make_relation(self, sql: str) -> Any:
        """DuckDB's relation; nothing is worked out before it is taken."""
        import duckdb

        statements = duckdb.extract_statements(sql)
        kinds = [str(statement.type).rpartition(".")[2] for statement in statements]
        if len(kinds) != 1 or kinds[0] not in {"SELECT", "EXPLAIN"}:
            raise BadInput("SQL", " and ".join(kinds) or "nothing", _expected_sql())
        if self._connection is None:
            self._connection = self._connect()
        return self._connection.sql(sql)

    def _connect(self) -> Any:
        """A database in memory that knows the four tables and may open no file."""
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
    """Open a run's folder, also while the run goes on; raises ``BadInput`` when it is none."""
    return retry_while_changing(lambda: RunReader(Path(path)))


@contextmanager
def _translate_errors() -> Iterator[None]:
    """What DuckDB finds wrong as ``BadInput``; where batches are taken, Arrow tells of it."""
    import duckdb
    import pyarrow as pa

    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        raise BadInput("SQL", _one_line_message(error), _expected_sql()) from error


def _expected_sql() -> str:
    return f"one SELECT over the tables {', '.join(NAMES)} (`describe rounds` lists the columns of one)"


def _one_line_message(error: Exception) -> str:
    """The message without the picture of the place."""
    return " ".join(str(error).partition("\nLINE ")[0].split())

"""What is wrong with an exporter is said before a run; one that fails is ended, and takes nothing with it."""

import importlib.util
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest
from contracts.exporter import fleet_of, round_of, rows_of

from fedge.errors import BadInput
from fedge.experiment import ExporterSpec
from fedge.telemetry.store import MemoryTables, Row
from fedge.telemetry.store_records import EventRow
from server.exporters import EXPORTERS, PACKAGES, exporting_tables
from server.exporters.exporting_tables import ExportingTables


class Own:
    """A user's exporter."""

    def __init__(self, experiment: object, folder: Path, *, path: str, level: int = 1) -> None:
        self.made_with = (experiment, folder, path, level)

    def append(self, rows: object) -> None: ...

    def close(self) -> None: ...


class Anything(Own):
    def __init__(self, experiment: object, folder: Path, **options: object) -> None:
        self.options = options


@pytest.fixture(autouse=True)
def _own_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("my_exporters")
    module.Own, module.Anything, module.nothing = Own, Anything, object
    module.function = lambda experiment, folder: None
    monkeypatch.setitem(sys.modules, "my_exporters", module)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tensorbord", {}, "exporters[0].name: got 'tensorbord'; did you mean tensorboard? known: "),
        ("tensorboard", {"dir": "x"}, "exporters[0].options.dir: got an unknown option; tensorboard takes out"),
        (
            "mlflow",
            {"uri": "x"},
            "options.uri: got an unknown option; mlflow takes tracking_uri, out, name",
        ),
        (
            "mlflow",
            {"tracking_uri": "http://a:b@c"},
            "exporters[0].options.tracking_uri: got an address",
        ),
        ("my_exporters:Own", {}, "exporters[0].options.path: got nothing; my_exporters:Own needs it"),
        ("my_exporters:Gone", {}, "exporters[0].name: got 'my_exporters:Gone'; an importable module:NAME"),
        ("my_exporters:nothing", {}, "a class with append(rows) and close()"),
        ("my_exporters:function", {}, "a class with append(rows) and close()"),
    ],
)
def test_what_could_not_be_made_is_refused(name, options, message):
    with pytest.raises(BadInput) as error:
        exporting_tables.check_exporter(ExporterSpec(name=name, options=options), "exporters[0]")

    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_name_lists_every_known_one():
    with pytest.raises(BadInput) as error:
        exporting_tables.check_exporter(ExporterSpec(name="wandb"), "exporters[0]")

    assert all(name in str(error.value) for name in EXPORTERS)


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_missing_package_is_one_line_that_says_how_to_install_it(name, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None if module == PACKAGES[name][0] else object())

    with pytest.raises(BadInput, match=rf"pip install 'fedge\[{name}\]'"):
        exporting_tables.check_exporter(ExporterSpec(name=name), "exporters[0]")


def test_the_same_exporter_twice_is_refused_and_with_other_options_not():
    same, other = ExporterSpec(name="tensorboard"), ExporterSpec(name="tensorboard", options={"out": "other"})
    exporting_tables.check_exporters([same, other])

    with pytest.raises(BadInput, match=r"exporters\[2\]: got 'tensorboard' a second time"):
        exporting_tables.check_exporters([same, other, same])


def test_ones_own_class_is_made_with_its_options(tmp_path):
    specs = (ExporterSpec(name="my_exporters:Own", options={"path": "x"}), ExporterSpec(name="my_exporters:Anything"))
    exporting_tables.check_exporters(specs)
    experiment = fleet_of().model_copy(update={"exporters": specs})

    makers = exporting_tables.build_factories(experiment, tmp_path)

    own = makers["my_exporters:Own"]()
    assert isinstance(own, Own)
    assert own.made_with == (experiment, tmp_path, "x", 1)


def test_two_of_a_name_are_told_apart(tmp_path):
    specs = (ExporterSpec(name="tensorboard"), ExporterSpec(name="tensorboard", options={"out": "other"}))

    makers = exporting_tables.build_factories(fleet_of().model_copy(update={"exporters": specs}), tmp_path)

    assert list(makers) == ["tensorboard (1)", "tensorboard (2)"]


@dataclass
class Noted:
    """Remembers what it hears; fails at row number ``fails_at``, or at the end."""

    fails_at: int | None = None
    fails_to_close: bool = False
    heard: list[Row] = field(default_factory=list)
    closed: int = 0

    def append(self, rows: Iterable[Row]) -> None:
        for row in rows:
            if len(self.heard) == self.fails_at:
                raise ConnectionError("nobody\nthere")
            self.heard.append(row)

    def close(self) -> None:
        self.closed += 1
        if self.fails_to_close:
            raise OSError("disk full")


def _refusing() -> Noted:
    raise RuntimeError("no such server")


def played(**makers: Callable[[], Noted]) -> list[Row]:
    """The rows that the store has after a run of three rounds."""
    store = MemoryTables()
    with ExportingTables(store, makers) as telling:
        for number in (1, 2, 3):
            telling.append(round_of(number))
    return store.rows


def test_every_exporter_hears_every_row_once_and_is_closed():
    first, second = Noted(), Noted()

    assert played(first=lambda: first, second=lambda: second) == rows_of()
    assert first.heard == second.heard == rows_of()
    assert (first.closed, second.closed) == (1, 1)


@pytest.mark.parametrize(
    ("failing", "number", "reason"),
    [
        (lambda: Noted(fails_at=4), 2, "ConnectionError: nobody there"),
        (lambda: Noted(fails_to_close=True), 3, "OSError: disk full"),
        (_refusing, 1, "RuntimeError: no such server"),
    ],
    ids=["while it hears", "at the end", "before the first row"],
)
def test_one_that_fails_is_an_event_and_the_run_and_the_others_go_on(failing, number, reason):
    other = Noted()

    rows = played(broken=failing, other=lambda: other)

    [event] = [row for row in rows if row not in rows_of()]
    assert isinstance(event, EventRow)
    assert (event.kind, event.round) == ("exporter", number)
    assert event.message.startswith(f"broken was ended, the run goes on: {reason};")
    assert [row for row in rows if row != event] == rows_of() == other.heard


def test_a_run_that_fails_closes_its_exporters_and_fails_as_it_would_without_them():
    noted = Noted()

    def fail() -> None:
        with ExportingTables(MemoryTables(), {"noted": lambda: noted}) as telling:
            telling.append(round_of(1))
            raise KeyError

    with pytest.raises(KeyError):
        fail()

    assert noted.closed == 1


def test_what_the_store_cannot_keep_no_exporter_hears():
    class Full(MemoryTables):
        def append(self, rows: Iterable[Row]) -> None:
            raise OSError("disk full")

    noted = Noted()
    with pytest.raises(OSError, match="disk full"), ExportingTables(Full(), {"noted": lambda: noted}) as telling:
        telling.append(round_of(1))

    assert noted.heard == []

"""A run's exporters: checks of their options, their construction, and the tables that pass stored rows on to them."""

from __future__ import annotations

import importlib.util
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

from fedge import registry
from fedge.errors import BadInput, describe_error, prefix_errors
from fedge.experiment import Experiment, ExporterSpec
from fedge.extras import build_install_command
from fedge.telemetry.store import Row
from fedge.telemetry.store_records import EventRow, RoundRow
from server.exporters import EXPORTERS, PACKAGES, Exporter
from server.rounds.run_start import RowSink

FIXED_ARGUMENTS = 2
"""Number of positional arguments before an exporter's own options: the experiment and the run folder."""


def check_exporter(spec: ExporterSpec, where: str) -> None:
    """Check that an exporter can be constructed; errors name the experiment's field ``where``.

    Raises:
        BadInput: The name or an option is unknown, an option is missing or invalid, or a package is not installed.
    """
    exporter = _load_class(spec, where)
    if spec.name in PACKAGES:
        module, extra = PACKAGES[spec.name]
        if importlib.util.find_spec(module) is None:
            right = f"it needs a package that is not installed: {build_install_command(extra)}"
            raise BadInput(f"{where}.name", repr(spec.name), right)
    _check_options(exporter, spec, where)
    check_options = getattr(exporter, "check_options", None)
    if check_options is not None:
        with prefix_errors(where, "."):
            check_options(**spec.options)


def _load_class(spec: ExporterSpec, where: str) -> Callable[..., Exporter]:
    exporter: Any = registry.load_named(f"{where}.name", spec.name, EXPORTERS)
    is_complete = all(callable(getattr(exporter, name, None)) for name in ("append", "close"))
    if not (inspect.isclass(exporter) and is_complete):
        right = "a class with append(rows) and close(), made as Class(experiment, folder, **options)"
        raise BadInput(f"{where}.name", repr(spec.name), right)
    return cast("Callable[..., Exporter]", exporter)


def _check_options(exporter: Callable[..., Exporter], spec: ExporterSpec, where: str) -> None:
    parameters = list(inspect.signature(exporter).parameters.values())
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return
    own = {each.name: each for each in parameters[FIXED_ARGUMENTS:]}
    for option in spec.options:
        if option not in own:
            right = f"{spec.name} takes {', '.join(own) or 'no options'}"
            raise BadInput(f"{where}.options.{option}", "an unknown option", right)
    for name, each in own.items():
        if each.default is each.empty and name not in spec.options:
            raise BadInput(f"{where}.options.{name}", "nothing", f"{spec.name} needs it")


def check_exporters(specs: Sequence[ExporterSpec]) -> None:
    """Check every exporter, and that none is listed twice.

    Raises:
        BadInput: An exporter cannot be constructed or is listed twice.
    """
    for i, spec in enumerate(specs):
        check_exporter(spec, f"exporters[{i}]")
        if spec in specs[:i]:
            raise BadInput(f"exporters[{i}]", f"{spec.name!r} a second time", "each exporter once, or other options")


def build_exporter(spec: ExporterSpec, experiment: Experiment, folder: Path) -> Exporter:
    """Construct the exporter of a run in ``folder``."""
    return _load_class(spec, "exporters")(experiment, folder, **spec.options)


def build_factories(experiment: Experiment, folder: Path) -> Mapping[str, Callable[[], Exporter]]:
    """Return a function that constructs each exporter, keyed by its name in events.

    The key is the exporter's name, with its position if several have the same name.
    """
    names = [spec.name for spec in experiment.exporters]
    unique = [name if names.count(name) == 1 else f"{name} ({place})" for place, name in enumerate(names, 1)]
    makers = [partial(build_exporter, spec, experiment, folder) for spec in experiment.exporters]
    return dict(zip(unique, makers, strict=True))


EXPORTER_EVENT = "exporter"
"""Kind of the event for an exporter that was ended."""
LIVE_ONLY = ("ray",)
"""Exporters that only show the present, so that ``fedge export`` cannot repeat them after the run."""
logger = logging.getLogger(__name__)


class ExportingTables:
    """Stores rows and passes them on to the exporters, which are constructed with the first rows.

    Use it as a context manager, or close it when the run is over. ``makers`` has the function that constructs each
    exporter, by its name in events.
    """

    def __init__(self, tables: RowSink, makers: Mapping[str, Callable[[], Exporter]]) -> None:
        self._tables, self._makers = tables, dict(makers)
        self._exporters: dict[str, Exporter] = {}
        self._round, self._at_s = 0, 0.0

    def append(self, rows: Iterable[Row]) -> None:
        """Store rows, then export them; only an error of the store is raised."""
        rows = tuple(rows)
        self._tables.append(rows)
        if not rows or not (self._makers or self._exporters):
            return
        self._round = max(self._round, *(row.round for row in rows))
        self._at_s = max([self._at_s, *(row.end_s for row in rows if isinstance(row, RoundRow))])
        for name in tuple(self._makers):
            self._run_guarded(name, partial(self._make, name))
        for name, exporter in tuple(self._exporters.items()):
            self._run_guarded(name, partial(exporter.append, rows))

    def close(self) -> None:
        """Close every exporter that has not failed."""
        for name, exporter in tuple(self._exporters.items()):
            self._run_guarded(name, exporter.close)
        self._exporters.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _make(self, name: str) -> None:
        self._exporters[name] = self._makers.pop(name)()

    def _run_guarded(self, name: str, act: Callable[[], None]) -> None:
        """Call ``act``; if it fails, end this exporter and store an event."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 -- third-party code and servers
            self._makers.pop(name, None)
            self._exporters.pop(name, None)
            reason = describe_error(error)
            logger.warning("exporter %s: %s", name, reason)
            rest = "" if name in LIVE_ONLY else "; `fedge export` tells the rest afterwards"
            message = f"{name} was ended, the run goes on: {reason}{rest}"
            event = EventRow(self._at_s, round=self._round, board=None, kind=EXPORTER_EVENT, message=message)
            self._tables.append([event])

"""Construction of an experiment's exporters, and checks of their options before a run."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from fedge import registry
from fedge.errors import BadInput
from fedge.experiment import Experiment, ExporterSpec
from fedge.extras import build_install_command
from server.exporters import EXPORTERS, PACKAGES, Exporter

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
        try:
            check_options(**spec.options)
        except BadInput as error:
            raise BadInput(f"{where}.{error.where}", error.got, error.right) from error


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

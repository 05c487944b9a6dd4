"""From an experiment's exporters to objects, and what can be known to be wrong with them before a run."""

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
from server.exporters import EXPORTERS, PACKAGES, Exporter

FIXED_ARGUMENTS = 2
"""The experiment and the run's folder come before an exporter's own options."""


def check_exporter(spec: ExporterSpec, where: str) -> None:
    """Raise ``BadInput`` for an unknown name, a package that is missing, or an option that the exporter has not."""
    made_by = _load_class(spec, where)
    if spec.name in PACKAGES:
        module, extra = PACKAGES[spec.name]
        if importlib.util.find_spec(module) is None:
            right = f"it needs a package that is not installed: pip install 'fedge[{extra}]'"
            raise BadInput(f"{where}.name", repr(spec.name), right)
    _check_options(made_by, spec, where)
    checked = getattr(made_by, "checked", None)
    if checked is not None:
        try:
            checked(**spec.options)
        except BadInput as error:
            raise BadInput(f"{where}.{error.where}", error.got, error.right) from error


def _load_class(spec: ExporterSpec, where: str) -> Callable[..., Exporter]:
    found: Any = registry.load_named(f"{where}.name", spec.name, EXPORTERS)
    is_class = inspect.isclass(found)
    missing = [name for name in ("append", "close") if not callable(getattr(found, name, None))]
    if missing or not is_class:
        right = "a class with append(rows) and close(), made as Class(experiment, folder, **options)"
        raise BadInput(f"{where}.name", repr(spec.name), right)
    return cast("Callable[..., Exporter]", found)


def _check_options(made_by: Callable[..., Exporter], spec: ExporterSpec, where: str) -> None:
    parameters = list(inspect.signature(made_by).parameters.values())
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
    """``check_exporter`` each of them, and that none stands there twice."""
    for i, spec in enumerate(specs):
        check_exporter(spec, f"exporters[{i}]")
        if spec in specs[:i]:
            raise BadInput(f"exporters[{i}]", f"{spec.name!r} a second time", "each exporter once, or other options")


def build_exporter(spec: ExporterSpec, experiment: Experiment, folder: Path) -> Exporter:
    """The exporter of a run in ``folder``."""
    return _load_class(spec, "exporters")(experiment, folder, **spec.options)


def build_factories(experiment: Experiment, folder: Path) -> Mapping[str, Callable[[], Exporter]]:
    """How to make each exporter, by what it is called in events: its name, with its place where there are several."""
    names = [spec.name for spec in experiment.exporters]
    told = [name if names.count(name) == 1 else f"{name} ({place})" for place, name in enumerate(names, 1)]
    makers = [partial(build_exporter, spec, experiment, folder) for spec in experiment.exporters]
    return dict(zip(told, makers, strict=True))

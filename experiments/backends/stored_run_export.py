"""Export of a stored run: its experiment and the exporter's options are read, then every round is exported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.backends import launcher
from experiments.backends.run_export import export_rounds
from experiments.spec.user_plugins import import_plugins
from fedge.errors import BadInput, FedgeError, RunFailed
from fedge.experiment import ExporterSpec
from fedge.yaml_files import parse_yaml

OptionValue = bool | int | float | str


def export_run(run: Path, exporter: str, options: Sequence[str], out: Path | None = None) -> int:
    """Export every round of a run and return their number.

    Args:
        run: The run folder.
        exporter: Name of the exporter.
        options: Its options as ``key=value``, with values as in YAML.
        out: Folder to write into; None for the exporter's default.

    Raises:
        BadInput: If the folder is not a run folder, or the exporter cannot be created.
        RunFailed: If the exporter fails.
    """
    experiment = launcher.load_saved_experiment(run)
    import_plugins(experiment)
    values = dict(_parse_option(option) for option in options)
    if out is not None:
        values["out"] = str(out.resolve())
    try:
        return export_rounds(experiment, run.resolve(), ExporterSpec(name=exporter, options=values))
    except FedgeError:
        raise
    except Exception as error:  # others' code, and others' servers
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise RunFailed(f"{exporter} did not take {run}: {reason}") from error


def _parse_option(text: str) -> tuple[str, OptionValue]:
    """Parse ``key=value``, with the value as YAML."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise BadInput("--option", repr(text), "key=value, for example --option tracking_uri=http://127.0.0.1:5000")
    parsed = parse_yaml(value, f"--option {key}")
    if not isinstance(parsed, OptionValue):
        raise BadInput(f"--option {key}", repr(value), "a number, text, true or false")
    return key.strip(), parsed

"""``fedge export``: export every round of a finished run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from experiments.backends import launcher
from experiments.spec import experiment_checks
from fedge.errors import BadInput, FedgeError, RunFailed
from fedge.experiment import ExporterSpec

OptionValue = bool | int | float | str


def export_run(run: Path, to: str, options: Sequence[str], out: Path | None) -> None:
    """Export a run and print the number of rounds.

    Raises:
        BadInput: If the folder is not a run folder, or the exporter cannot be created.
    """
    experiment = launcher.load_saved_experiment(run)
    experiment_checks.import_plugins(experiment)
    given = dict(_parse_option(option) for option in options)
    if out is not None:
        given["out"] = str(out.resolve())
    from experiments.backends import run_export as backend

    spec = ExporterSpec(name=to, options=given)
    try:
        count = backend.export_run(experiment, run.resolve(), spec)
    except FedgeError:
        raise
    except Exception as error:  # others' code, and others' servers
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise RunFailed(f"{to} did not take {run}: {reason}") from error
    sys.stdout.write(f"{count} {'round' if count == 1 else 'rounds'} told to {to}\n")


def _parse_option(text: str) -> tuple[str, OptionValue]:
    """Parse ``key=value``, with the value as YAML."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise BadInput("--option", repr(text), "key=value, for example --option tracking_uri=http://127.0.0.1:5000")
    try:
        read = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise BadInput(f"--option {key}", repr(value), "a value as in YAML") from error
    if not isinstance(read, OptionValue):
        raise BadInput(f"--option {key}", repr(value), "a number, text, true or false")
    return key.strip(), read

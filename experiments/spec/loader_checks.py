"""Checks the data loaders of a fleet: emulated boards only, known storage, no cost counted twice."""

from __future__ import annotations

from typing import Any

from fedge.costs.input_pipeline.emulated_pipeline import find_storage
from fedge.devices.board_kinds import TABLE_PREFIX
from fedge.errors import BadInput
from fedge.experiment import Experiment, FleetBoard, LoaderSpec
from fedge.yaml_files import format_value


def check_loader(experiment: Experiment) -> None:
    """Raise ``BadInput`` for the first entry whose ``loader`` its boards cannot have."""
    for i, entry in enumerate(experiment.fleet):
        if entry.loader is None:
            continue
        where = f"fleet[{i}].loader"
        if why := _refusal_reason(experiment, entry.truth, entry.serving is not None):
            raise BadInput(where, format_value(entry.loader), why)
        if entry.loader.storage is not None:
            find_storage(entry.loader.storage, f"{where}.storage")


def _refusal_reason(experiment: Experiment, truth: str, serves: bool) -> str:
    """Return why a loader cannot be combined with the entry's other fields; empty if it can."""
    if experiment.backend == "fleet":
        return "nothing: the fleet backend's boards are real, and their minibatches hold their stalls already"
    if truth.startswith(TABLE_PREFIX):
        return "nothing beside a measured table: its minibatches hold the stalls they were measured with"
    return "nothing beside `serving`: how requests and loaders share the cores is not modelled" if serves else ""


def loader_label(board: FleetBoard) -> dict[str, Any]:
    """Return the provenance of a board's loading cost as a label; empty if it has no loader."""
    spec = board.entry.loader
    return {} if spec is None else {"loader": {"label": "estimated", "source": _describe_loader(spec)}}


def _describe_loader(spec: LoaderSpec) -> str:
    workers = "no worker" if spec.workers == 0 else f"{spec.workers} worker{'s' if spec.workers > 1 else ''}"
    cached = f"{spec.cached:.0%} in the page cache"
    stored = spec.storage or "the boards' own storage"
    return f"pipeline model: {workers}, {stored}, images of {spec.image_mpixel:g} megapixel, {cached}"

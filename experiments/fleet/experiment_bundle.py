"""Packs an experiment for another machine: one tar with its YAML and every local file that it names."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import yaml

from fedge.errors import BadInput
from fedge.experiment import Experiment

EXPERIMENT = "experiment.yaml"


def pack_experiment(experiment: Experiment) -> bytes:
    """Pack an experiment and the local files that it names into an uncompressed tar, with paths that hold on the
    server.

    Modules keep their file name, because that is the name they are imported by. Data folders are not packed: they are
    paths on the server.
    """
    files: list[Path] = []

    def sent(text: str) -> str:
        path = Path(text)
        if path not in files:
            files.append(path)
        return f"files/{files.index(path)}/{path.name}"

    record = experiment.model_dump(mode="json")
    record["plugins"] = [sent(plugin) for plugin in experiment.plugins]
    if experiment.workload.task.endswith(".py"):
        record["workload"]["task"] = sent(experiment.workload.task)
    for raw, entry in zip(record["fleet"], experiment.fleet, strict=True):
        raw["references"] = [sent(path) for path in entry.references]
        if entry.device.endswith((".yaml", ".yml")):
            raw["device"] = sent(entry.device)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        text = yaml.safe_dump(record, sort_keys=False).encode()
        tar.addfile(_make_tar_info(EXPERIMENT, len(text)), io.BytesIO(text))
        for path in files:
            content = _read(path)
            tar.addfile(_make_tar_info(sent(str(path)), len(content)), io.BytesIO(content))
    return packed.getvalue()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(str(path), f"a file that cannot be read ({error.strerror})", "a file of yours") from error


def _make_tar_info(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o640
    return info

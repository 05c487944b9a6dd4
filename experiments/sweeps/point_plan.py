"""The plan of a sweep: its variants, and the points of each, which are resolved experiments with one seed.

The folder of a point is written where the run is, sent to the sweep's folder, and recognised there when finished.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import platform
import re
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from experiments.backends import launcher
from experiments.spec.experiment_loader import NAME_ONLY_KEYS, load_experiment
from experiments.spec.user_plugins import import_plugins
from experiments.sweeps.sweep_spec import DimensionSpec, SweepSpec, read_sweep
from fedge.atomic_files import sync_folder, sync_tree
from fedge.errors import BadInput
from fedge.experiment import Experiment
from fedge.json_reader import read_json
from fedge.studies.task_pool import describe_package
from fedge.telemetry import run_folder

IDENTITY_DIGITS = 10
MAX_LABEL = 60
"""Characters of a variant's name in a folder's name."""
WITHIN = 0.3819
"""Place in a range without steps whose value is tried: no whole number between whole ends less than 10,000 apart."""


@dataclass(frozen=True, slots=True)
class ExperimentVariant:
    """One setting of a sweep, without a seed.

    Attributes:
        label: Its values in short, unique within the sweep.
    """

    label: str
    overrides: tuple[str, ...]
    experiment: Experiment

    @property
    def identity(self) -> str:
        """A text that is equal for variants that are the same experiment."""
        return self.experiment.model_dump_json()


@dataclass(frozen=True, slots=True)
class ExperimentPoint:
    """One run of a sweep: a variant with a seed.

    Attributes:
        identity: Digest of the resolved experiment, by which a finished point is recognised.
    """

    variant: str
    overrides: tuple[str, ...]
    experiment: Experiment
    identity: str

    @property
    def seed(self) -> int:
        return self.experiment.seed

    @property
    def name(self) -> str:
        """Name of the point's folder."""
        readable = re.sub(r"[^A-Za-z0-9._=-]+", "-", self.variant).strip("-.")[:MAX_LABEL]
        return f"{readable}-seed{self.seed}-{self.identity}"

    def __str__(self) -> str:
        return f"{self.variant}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """A checked sweep.

    Attributes:
        variants: Those of a grid or list, in the order of the file. A sampler proposes its variants later; these are
            some in which every choice and both ends of every range occur.
    """

    path: Path
    spec: SweepSpec
    variants: tuple[ExperimentVariant, ...]

    @property
    def count(self) -> int:
        """Number of points."""
        sampler = self.spec.sampler
        return len(self.spec.seeds) * (len(self.variants) if sampler is None else sampler.trials)


def plan_sweep(path: Path, note: Callable[[str], None] = lambda _: None) -> SweepPlan:
    """Read a sweep's file and resolve the experiments of all its variants; of a sampler's, those at the ends.

    Raises:
        BadInput: For the first error in the file, or in the experiment of a variant.
    """
    spec = read_sweep(path)
    notes: dict[str, None] = {}
    settings = _list_settings(spec) if spec.sampler is None else _list_ends(spec.sampler.space)
    variants = tuple(build_variant(path, spec, values, notes.setdefault) for values in settings)
    for text in notes:
        note(text)
    if spec.sampler is not None:
        return SweepPlan(path, spec, variants)
    for kind, texts in {
        "the same name": [one.label for one in variants],
        "the same experiment": [one.identity for one in variants],
    }.items():
        twice = next((j for i, j in itertools.combinations(range(len(texts)), 2) if texts[i] == texts[j]), None)
        if twice is not None:
            first = variants[texts.index(texts[twice])]
            raise BadInput(str(path), f"{kind} for {first.label} and {variants[twice].label}", "variants that differ")
    return SweepPlan(path, spec, variants)


def _list_settings(spec: SweepSpec) -> Iterable[Mapping[str, Any]]:
    if spec.variants is not None:
        return spec.variants
    grid = spec.grid or {}
    return (dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))


def _list_ends(space: Mapping[str, DimensionSpec]) -> Iterator[Mapping[str, Any]]:
    """Yield settings in which every choice, both ends of every range and a fraction within those without steps occur.

    The fraction shows keys that take whole numbers alone before it is drawn.
    """
    ends = {key: _list_edges(one) for key, one in space.items()}
    for place in range(max(map(len, ends.values()))):
        yield {key: values[min(place, len(values) - 1)] for key, values in ends.items()}


def _list_edges(one: DimensionSpec) -> list[Any]:
    if one.choices is not None:
        return [*one.choices]
    low, high = one.low or 0.0, one.high or 0.0
    return [low, high] if one.step is not None or low == high else [low, low + WITHIN * (high - low), high]


def build_variant(
    path: Path, spec: SweepSpec, values: Mapping[str, Any], note: Callable[[str], None] = lambda _: None
) -> ExperimentVariant:
    """Resolve the experiment with these values.

    Raises:
        BadInput: If the experiment is invalid with them.
    """
    label = ", ".join(_describe_value(key, value) for key, value in values.items()) or "as in the file"
    overrides = tuple(f"{key}={_to_yaml(value)}" for key, value in {**spec.overrides, **values}.items())
    fixed = ("backend=local", "knowledge=none", f"seed={spec.seeds[0]}")
    try:
        experiment = load_experiment(path.parent / spec.experiment, (*overrides, *fixed), note)
    except BadInput as error:
        raise BadInput(f"{path}: {label}: {error.where.removeprefix('--set ')}", error.got, error.right) from error
    return ExperimentVariant(label, overrides, experiment)


def _describe_value(key: str, value: Any) -> str:
    """Name a setting by its value where that is a name, otherwise by the key's last part and the value."""
    *parents, last = key.split(".")
    if isinstance(value, str) and "name" in (last, NAME_ONLY_KEYS.get(key)):
        return value
    if isinstance(value, dict) and "name" in value:
        others = [f"{name} {_to_yaml(one)}" for name, one in value.items() if name != "name"]
        return " ".join((str(value["name"]), *others))
    at = key if any(part.isdigit() for part in (last, *parents[-1:])) else last
    return f"{at} {_to_yaml(value)}"


def _to_yaml(value: Any) -> str:
    """Write a value as one line of YAML."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), sort_keys=False)
    return text.removesuffix("...\n").strip()


def list_points(variants: Iterable[ExperimentVariant], seeds: Iterable[int]) -> list[ExperimentPoint]:
    """Return the points of variants: all with the first seed, then all with the next one.

    So variants can be compared, pair by pair, long before the sweep ends.
    """
    known = tuple(variants)
    points: dict[str, ExperimentPoint] = {}
    for seed in seeds:
        for variant in known:
            experiment = variant.experiment.model_copy(update={"seed": seed})
            identity = hashlib.sha256(experiment.model_dump_json().encode()).hexdigest()[:IDENTITY_DIGITS]
            points.setdefault(identity, ExperimentPoint(variant.label, variant.overrides, experiment, identity))
    return list(points.values())


POINTS = "points"
RECORD = "point.json"
LEFT_OUT = {run_folder.REPORT, run_folder.LIVE, launcher.LOCK_FILE}
"""Parts of a run folder that a point does without: a report has 5 MB, and `fedge report` writes it at any time."""


def run_point(point: ExperimentPoint) -> bytes:
    """Run a point in a temporary folder and return that folder, packed; called in a worker process.

    The machine of a worker need not see the sweep's folder.

    Raises:
        FedgeError: If the run fails.
    """
    import_plugins(point.experiment)
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fedge-point-") as temp:
        folder = Path(temp) / point.name
        # The sweep's own tasks share the cores.
        alone = point.experiment.model_copy(update={"jobs": point.experiment.jobs or 1})
        launcher.start_run(alone, folder, refresh=lambda: None, written=point.experiment)
        record = {
            "identity": point.identity,
            "variant": point.variant,
            "overrides": list(point.overrides),
            "seed": point.seed,
            "fedge": describe_package(),
            "machine": platform.node(),
            "wall_s": time.monotonic() - started_s,
        }
        run_folder.write_json(folder / RECORD, record)
        return _pack_folder(folder)


def _pack_folder(folder: Path) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for part in sorted(folder.iterdir()):
            if part.name not in LEFT_OUT:
                archive.add(part, part.name)
    return packed.getvalue()


def commit_point(sweep: Path, point: ExperimentPoint, packed: bytes) -> Path:
    """Write a point's folder and return it: it is there as a whole or not at all.

    Raises:
        OSError: If it cannot be written.
    """
    folder = sweep / POINTS / point.name
    part = folder.with_name(f".{point.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(part, filter="data")
    sync_tree(part)
    shutil.rmtree(folder, ignore_errors=True)  # without a record, see find_point
    part.rename(folder)
    sync_folder(folder.parent)
    return folder


def find_point(sweep: Path, point: ExperimentPoint) -> Path | None:
    """Return the folder of a finished point, which another variant's name may have; None if there is none."""
    for folder in sorted((sweep / POINTS).glob(f"*-{point.identity}")):
        if read_point_file(folder / RECORD).get("identity") == point.identity:
            return folder
    return None


def read_point_file(path: Path) -> dict[str, Any]:
    """Return a file of a point, its record or the summary of its run; empty unless it is a mapping."""
    try:
        content = read_json(path, "a record", finite=False)
    except BadInput:
        return {}
    return content if isinstance(content, dict) else {}

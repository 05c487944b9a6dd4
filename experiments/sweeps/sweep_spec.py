"""The file of a sweep: which keys of an experiment vary, the seeds, and what a task needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt

from fedge.errors import BadInput
from fedge.yaml_files import format_value, read_yaml_mapping, validate_fields

DEFAULT_FIGURES = ("final_accuracy", "energy_j", "resting_energy_j", "makespan_s", "mean_round_s", "saving_vs_maxn")
MAX_SEEDS = 10_000
RIGHT_DIMENSION = "low and high, or a list of choices"
FIXED_KEYS = {
    "seed": "the key `seeds` of the sweep",
    "backend": "no backend: every point is a run of the backend local",
    "knowledge": "no knowledge: the points of a sweep must not learn from each other",
}
"""Keys of an experiment that no variant sets."""

Seed = Annotated[StrictInt, Field(ge=0, le=2**31 - 1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Overrides = dict[str, Any]


class _SweepModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=False)


class DimensionSpec(_SweepModel):
    """Values that a sampler may give to a key: ``choices``, or numbers from ``low`` to ``high``.

    Attributes:
        low: Least value.
        high: Largest value.
        step: Distance between two values; whole numbers if ``low``, ``high`` and ``step`` are.
        log: Whether values are drawn on a logarithmic scale.
        choices: The values, instead of a range.
    """

    low: Finite | None = None
    high: Finite | None = None
    step: Annotated[Finite, Field(gt=0)] | None = None
    log: bool = False
    choices: Annotated[tuple[Any, ...], Field(min_length=1)] | None = None


class SamplerSpec(_SweepModel):
    """A search by Optuna: it proposes variants, and the figure of earlier ones guides it.

    Attributes:
        kind: The library that searches.
        trials: Number of variants.
        batch: Variants proposed at a time, which run side by side.
        seed: Seed of the search.
        minimise: Figure of the run's summary of which the mean over the seeds is minimised; or ``maximise``.
        maximise: Figure of which the mean is maximised; exactly one of the two is needed.
        algorithm: Optuna's sampler.
        space: Values by key.
    """

    kind: Literal["optuna"] = "optuna"
    trials: Annotated[StrictInt, Field(ge=1, le=100_000)]
    batch: Annotated[StrictInt, Field(ge=1)] = 4
    seed: Seed = 1
    minimise: str | None = None
    maximise: str | None = None
    algorithm: Literal["tpe", "random"] = "tpe"
    space: Annotated[dict[str, DimensionSpec], Field(min_length=1)]


class TaskSpec(_SweepModel):
    """Resources that a run reserves on its machine, and how often it is repeated if its process or machine is lost.

    Attributes:
        cpus: Cores that a run reserves.
        gpus: GPUs, or a share of one.
        memory_mb: Memory in MB; None reserves none.
        retries: Repetitions after the loss of the process or machine.
    """

    cpus: Annotated[Finite, Field(gt=0)] = 1.0
    gpus: Annotated[Finite, Field(ge=0)] = 0.0
    memory_mb: Annotated[Finite, Field(gt=0)] | None = None
    retries: Annotated[StrictInt, Field(ge=0, le=100)] = 2


class SweepSpec(_SweepModel):
    """A sweep: the variants are those of ``grid``, ``list`` or ``sampler``, each with every seed.

    Attributes:
        experiment: Path of the experiment, relative to the sweep's file.
        seeds: Seeds of every variant; K in the file stands for 1 to K. The same for all, so that runs can be paired.
        overrides: ``set`` in the file: keys that all variants set.
        grid: Values by key; the variants are all combinations, the last key varying fastest.
        variants: ``list`` in the file: one mapping of keys to values per variant.
        sampler: Proposes the variants, guided by the results of earlier ones.
        figures: Figures of a run's summary that the tables compare.
        task: Resources of a run.
    """

    experiment: str
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] = (1,)
    overrides: Overrides = Field(default={}, alias="set")
    grid: Annotated[dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]], Field(min_length=1)] | None = None
    variants: Annotated[tuple[Overrides, ...], Field(min_length=1)] | None = Field(default=None, alias="list")
    sampler: SamplerSpec | None = None
    figures: Annotated[tuple[str, ...], Field(min_length=1)] = DEFAULT_FIGURES
    task: TaskSpec = TaskSpec()

    @property
    def aims(self) -> tuple[str, ...]:
        """The figure that a sampler optimises; none without a sampler."""
        sampler = self.sampler
        return () if sampler is None else tuple(filter(None, (sampler.minimise, sampler.maximise)))

    @property
    def varied_keys(self) -> tuple[str, ...]:
        """All keys that a variant may set, each once."""
        if self.sampler is not None:
            return tuple(self.sampler.space)
        return tuple(self.grid or dict.fromkeys(key for one in self.variants or () for key in one))


def read_sweep(path: Path) -> SweepSpec:
    """Read a sweep's file.

    Raises:
        BadInput: For the first error, naming file and field.
    """
    raw = read_yaml_mapping(path, "a mapping of keys such as experiment, seeds, grid")
    if "fleet" in raw and "experiment" not in raw:
        raise BadInput(str(path), "the file of an experiment", f"the file of a sweep; `fedge run {path}` runs it once")
    seeds = raw.get("seeds", 1)
    if type(seeds) is int and 1 <= seeds <= MAX_SEEDS:
        raw["seeds"] = list(range(1, seeds + 1))
    elif not isinstance(seeds, list):
        right = f"a number K from 1 to {MAX_SEEDS} for the seeds 1 to K, or a list of seeds"
        raise BadInput(f"{path}: seeds", format_value(seeds), right)
    spec = validate_fields(SweepSpec, raw, str(path))
    if sum(part is not None for part in (spec.grid, spec.variants, spec.sampler)) != 1:
        given = [name for name in ("grid", "list", "sampler") if raw.get(name) is not None]
        raise BadInput(str(path), " and ".join(given) or "no variants", "one of the keys grid, list and sampler")
    for key in (*spec.overrides, *spec.varied_keys):
        if key in FIXED_KEYS:
            raise BadInput(f"{path}: {key}", "a key that no variant sets", FIXED_KEYS[key])
    if len(set(spec.seeds)) < len(spec.seeds):
        raise BadInput(f"{path}: seeds", str([*spec.seeds]), "each seed once")
    if spec.sampler is not None:
        _check_sampler(spec.sampler, path)
    return spec


def _check_sampler(sampler: SamplerSpec, path: Path) -> None:
    if (sampler.minimise is None) == (sampler.maximise is None):
        got = "no aim" if sampler.minimise is None else "minimise and maximise"
        raise BadInput(f"{path}: sampler", got, "one of minimise and maximise, such as minimise: energy_j")
    for key, values in sampler.space.items():
        where = f"{path}: sampler.space.{key}"
        ends = [end for end in (values.low, values.high) if end is not None]
        if len(ends) != (0 if values.choices else 2):
            raise BadInput(where, "a range and choices" if ends and values.choices else "no range", RIGHT_DIMENSION)
        if ends and ends[0] > ends[1]:
            raise BadInput(where, f"low {ends[0]:g} and high {ends[1]:g}", "a high that is not below low")
        if ends and values.log and (values.step is not None or ends[0] <= 0):
            raise BadInput(where, "log with a step, or with a low that is not above 0", "log with a low above 0 alone")

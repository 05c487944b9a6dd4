"""Variants proposed by Optuna, batch by batch: equal results give equal proposals, so a sweep can go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from experiments.sweeps.point_plan import ExperimentVariant, SweepPlan, build_variant
from experiments.sweeps.sweep_spec import DimensionSpec, SamplerSpec
from fedge.errors import BadInput
from fedge.extras import build_install_command

if TYPE_CHECKING:
    import optuna

DIGITS = 4
"""Digits of a number that is drawn from a range."""
Score = Callable[[ExperimentVariant], float | None]
"""Returns the figure to optimise of a variant that has run; None if it has none."""


def check_optuna(plan: SweepPlan) -> None:
    """Raise ``BadInput`` if the sweep needs Optuna and it is not installed."""
    if plan.spec.sampler is None:
        return
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise BadInput(
            f"{plan.path}: sampler.kind", f"'optuna', which is not installed ({error})", build_install_command("optuna")
        ) from error


def propose_variants(plan: SweepPlan, score: Score) -> Iterator[tuple[ExperimentVariant, ...]]:
    """Yield batches of variants; ``score`` is asked for those of a batch when the next one is wanted."""
    import optuna

    sampler = plan.spec.sampler
    assert sampler is not None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    search = optuna.create_study(
        sampler=_build_sampler(sampler), direction="minimize" if sampler.minimise is not None else "maximize"
    )
    space = {key: _build_distribution(values) for key, values in sampler.space.items()}
    left = sampler.trials
    while left:
        trials = [search.ask(space) for _ in range(min(sampler.batch, left))]
        left -= len(trials)
        variants = tuple(build_variant(plan.path, plan.spec, _read_values(sampler, one.params)) for one in trials)
        yield variants
        for trial, variant in zip(trials, variants, strict=True):
            value = score(variant)
            search.tell(trial, value, state=optuna.trial.TrialState.FAIL if value is None else None)


def _build_sampler(sampler: SamplerSpec) -> optuna.samplers.BaseSampler:
    import optuna

    if sampler.algorithm == "random":
        return optuna.samplers.RandomSampler(seed=sampler.seed)
    # Trials of one batch know nothing of each other's results: the constant liar keeps them apart.
    return optuna.samplers.TPESampler(seed=sampler.seed, constant_liar=True)


def _build_distribution(values: DimensionSpec) -> optuna.distributions.BaseDistribution:
    import optuna

    if values.choices is not None:
        return optuna.distributions.CategoricalDistribution(range(len(values.choices)))
    low, high = values.low or 0.0, values.high or 0.0
    if values.step is not None and all(one.is_integer() for one in (low, high, values.step)):
        return optuna.distributions.IntDistribution(int(low), int(high), step=int(values.step))
    return optuna.distributions.FloatDistribution(low, high, log=values.log, step=values.step)


def _read_values(sampler: SamplerSpec, drawn: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a trial; choices are drawn by their places, because Optuna accepts only simple ones."""
    return {key: _read_value(values, drawn[key]) for key, values in sampler.space.items()}


def _read_value(values: DimensionSpec, drawn: Any) -> Any:
    if values.choices is not None:
        return values.choices[drawn]
    if isinstance(drawn, float) and values.step is None:
        short = float(f"{drawn:.{DIGITS}g}")  # more would only make the variants' names long
        return min(max(short, values.low or 0.0), values.high or 0.0)
    return drawn

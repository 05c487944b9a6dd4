"""perf4sight as published (arXiv 2108.05580): extremely randomised trees on the 56 features, memory and time apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedge.errors import BadInput
from fedge.types import Floats

if TYPE_CHECKING:
    from sklearn.ensemble import ExtraTreesRegressor

TREES = 300


def forest(features: Floats, target: Floats, seed: int) -> ExtraTreesRegressor:
    """Trees grown on raw features (n, 56) and a raw target (n,); raises ``BadInput`` without scikit-learn."""
    try:
        from sklearn.ensemble import ExtraTreesRegressor
    except ModuleNotFoundError as error:
        raise BadInput("--method perf4sight", "no scikit-learn", "install it: pip install scikit-learn") from error
    return ExtraTreesRegressor(TREES, random_state=seed, n_jobs=1).fit(features, target)

"""fedge: federated learning on fleets of NVIDIA Jetson boards, real or emulated.

Scripts and notebooks use the functions of this package: ``fedge.run``, ``fedge.load``, ``fedge.predict`` and those
that ``dir(fedge)`` lists (docs/reference/python.md).
"""

__version__ = "0.1.0"
__all__ = [
    "Run",
    "RunComparison",
    "boards",
    "calibrate",
    "choose",
    "compare",
    "doctor",
    "evaluate_predictors",
    "export",
    "front",
    "layers",
    "load",
    "load_model",
    "memory",
    "place",
    "plan_concurrent",
    "predict",
    "profile",
    "replay",
    "resume",
    "roofline",
    "run",
    "runs",
    "select_board",
    "study_fleet",
    "study_mode_choice",
    "sweep",
    "to_table",
    "topology",
]


def __getattr__(name: str) -> object:
    """Return a function of ``experiments.api``, which is imported at its first use: it needs what fedge provides.

    The function raises ``MissingPackage`` where a library of an extra is missing.
    """
    if name not in __all__:
        raise AttributeError(f"module 'fedge' has no attribute {name!r}")
    import importlib

    from fedge.extras import name_missing
    from fedge.import_path import load_package

    with name_missing(f"fedge.{name}"):
        load_package("experiments")
        found = getattr(importlib.import_module("experiments.api"), name)
    return found if isinstance(found, type) else name_missing(f"fedge.{name}")(found)


def __dir__() -> "list[str]":  # a board's Python 3.6 runs this file too
    return [*globals(), *__all__]

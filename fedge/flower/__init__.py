"""Power modes for any Flower app: a mod for clients and a wrapper around a strategy (docs/tutorials/flower-app.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedge.flower.power_aware import PowerAware
    from fedge.flower.power_mod import power_mode

__all__ = ["PowerAware", "power_mode"]
_HOMES = {"PowerAware": "fedge.flower.power_aware", "power_mode": "fedge.flower.power_mod"}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)

"""Remembers a function's last answer, for curves that are asked again and again at the same modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fedge.types import Floats

R = TypeVar("R")


def cache_last_call(function: Callable[[Floats], R]) -> Callable[[Floats], R]:
    """``function`` that answers at once when asked with the very array of its last call, which nobody may change."""
    known: list[tuple[Floats, R]] = []

    def remembering(x: Floats) -> R:
        for asked, answer in known:
            if asked is x:
                return answer
        answer = function(x)
        known[:] = [(x, answer)]
        return answer

    return remembering

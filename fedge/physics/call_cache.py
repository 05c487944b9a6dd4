"""Cache of a function's last result, for curves that are evaluated repeatedly at the same modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fedge.types import Floats

R = TypeVar("R")


def cache_last_call(function: Callable[[Floats], R]) -> Callable[[Floats], R]:
    """Cache the result of the last call, keyed by the identity of its argument.

    Args:
        function: The function. Its arguments must not be modified in place afterwards.

    Returns:
        A function that returns the cached result if it is called with the very array of the previous call.
    """
    known: list[tuple[Floats, R]] = []

    def remembering(x: Floats) -> R:
        for asked, answer in known:
            if asked is x:
                return answer
        answer = function(x)
        known[:] = [(x, answer)]
        return answer

    return remembering

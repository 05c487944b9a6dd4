"""Elements that an optimiser keeps per parameter between two steps, counted after one step on tiny parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedge.errors import UnknownName

TINY_SHAPES = ((16, 8, 3, 3), (16,), (32, 64))
"""Shapes of the parameters. What is factored into rows and columns is smaller for larger ones, so never counted too
low."""


def count_optimizer_state(make: Callable[[Any, float, float], Any]) -> float | None:
    """Return the elements of 4 bytes that an optimiser keeps per parameter, or None if no plain step shows them.

    Args:
        make: Builds the optimiser from parameters, learning rate and momentum, as a task's ``optimizer`` does.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    weights = [torch.nn.Parameter(torch.zeros(shape)) for shape in TINY_SHAPES]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    try:
        optimizer = make(weights, 0.01, 0.9)
        optimizer.step()
        kept = [leaf for leaf in tree_leaves(dict(optimizer.state)) if isinstance(leaf, torch.Tensor)]
    except (Exception, SystemExit):  # noqa: BLE001 -- the user's own optimiser, or one that needs a closure
        return None
    # Counters of steps are single numbers, whatever the size of the parameters.
    held = sum(tensor.numel() * tensor.element_size() for tensor in kept if tensor.numel() > 1)
    return held / sum(weight.numel() * weight.element_size() for weight in weights)


def count_torch_optimizer(name: str, option: str) -> float:
    """Return the state of a class of ``torch.optim`` with its own defaults, but SGD's momentum.

    Raises:
        UnknownName: There is no such class whose plain steps show its state; ``option`` named it.
    """
    from torch import optim

    known = {each.lower(): getattr(optim, each) for each in dir(optim) if isinstance(getattr(optim, each), type)}
    found = known.get(name.lower())
    if found is None:
        state = None
    elif found is optim.SGD:
        state = count_optimizer_state(lambda weights, rate, momentum: optim.SGD(weights, lr=rate, momentum=momentum))
    else:
        state = count_optimizer_state(lambda weights, rate, _: found(weights, lr=rate))
    if state is None:
        raise UnknownName(option, name, ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adadelta", "Adafactor"))
    return state

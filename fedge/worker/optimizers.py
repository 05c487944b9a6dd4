"""The optimisers that train a network: SGD with a proximal term, and a task's own."""

import contextlib
from functools import partial
from typing import TYPE_CHECKING, List, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from fedge.worker.sources import UNLABELLED
from fedge.worker.tasks import TrainingTask

if TYPE_CHECKING:
    from typing import Any


class TrainingOptions(NamedTuple):
    """Options of a training.

    Attributes:
        momentum: Momentum, 0 to below 1.
        proximal_mu: Weight of FedProx's proximal term; 0: none.
        width: Share of every layer's channels to train, above 0 to 1, the leading ones (``narrow_networks``).
        mixed: Whether to compute in half precision where torch considers it safe.
    """

    steps: int
    batch_size: int
    learning_rate: float
    momentum: float = 0.9
    proximal_mu: float = 0.0
    width: float = 1.0
    mixed: bool = False


class SgdOptimizer:
    """SGD with momentum, equal to ``torch.optim.SGD``, with an optional proximal term.

    Implemented here because the first torch optimiser of a process imports torch's compiler, which takes as long as
    importing torch itself. FedProx adds ``mu / 2 * |w - w_start|^2`` to the loss, here as its gradient.

    References:
        Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, eq. 2.
    """

    def __init__(self, net: nn.Module, task: TrainingTask, options: TrainingOptions) -> None:
        self._net, self._task, self._options = net, task, options
        self.weights = [w for w in net.parameters() if w.requires_grad]
        self._starts = [w.detach().clone() for w in self.weights] if options.proximal_mu > 0 else []
        # As large as the model, and fresh memory is slow: allocated by the first step, not before it.
        self._speeds: List[Optional[Tensor]] = [None] * len(self.weights)

    def step(self, x: Tensor, y: Tensor) -> Tuple[float, float]:
        """Do one step.

        Args:
            x: Normalised images (n, channels, side, side).
            y: Labels (n,).

        Returns:
            Loss and accuracy (0 to 1) of the minibatch before the step.
        """
        scores = self._net(x)
        loss = self._task.loss(scores, y)
        gradients = torch.autograd.grad(loss, self.weights, allow_unused=True)
        with torch.no_grad():
            for i, (w, gradient) in enumerate(zip(self.weights, gradients)):
                if gradient is None:  # a weight that this minibatch did not use
                    continue
                speed = self._update_velocity(i, gradient)
                if self._options.proximal_mu > 0:
                    speed.add_(w - self._starts[i], alpha=self._options.proximal_mu)
                w.add_(speed, alpha=-self._options.learning_rate)
        return loss.item(), float(compute_metric(self._task, scores.detach(), y))

    def _update_velocity(self, i: int, gradient: Tensor) -> Tensor:
        speed = self._speeds[i]
        if speed is None:  # a copy, since two weights may share one gradient
            speed = self._speeds[i] = gradient.clone()
        else:
            speed.mul_(self._options.momentum).add_(gradient)
        return speed


class TaskOptimizer:
    """The optimiser that a task brings along, with FedProx's proximal term as ``SgdOptimizer`` has it.

    Also in half precision: bfloat16, or on GPUs without it float16, whose gradients are scaled so that none vanish.
    """

    def __init__(self, net: nn.Module, task: TrainingTask, options: TrainingOptions) -> None:
        self._net, self._task, self._options = net, task, options
        self.weights = [w for w in net.parameters() if w.requires_grad]
        self._starts = [w.detach().clone() for w in self.weights] if options.proximal_mu > 0 else []
        make = make_sgd if task.optimizer is None else task.optimizer
        self._optimizer = make(self.weights, options.learning_rate, options.momentum)
        device = self.weights[0].device if self.weights else torch.device("cpu")
        half = choose_half_type(str(device)) if options.mixed else None
        self._autocast = contextlib.suppress if half is None else partial(torch.autocast, device.type, dtype=half)
        self._scaler = make_gradient_scaler() if half is torch.float16 else None

    def step(self, x: Tensor, y: Tensor) -> Tuple[float, float]:
        """Do one step; see ``SgdOptimizer.step``."""
        self._optimizer.zero_grad(set_to_none=True)  # before torch 2 zeros, which weight decay would change
        with self._autocast():
            scores = self._net(x)
            loss = self._task.loss(scores, y)
        if self._scaler is None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            self._scaler.scale(loss).backward()
            self._scaler.unscale_(self._optimizer)
        for w, start in zip(self.weights, self._starts):
            if w.grad is not None:
                w.grad.add_(w.detach() - start, alpha=self._options.proximal_mu)
        if self._scaler is None:
            self._optimizer.step()
        else:
            self._scaler.step(self._optimizer)
            self._scaler.update()
        return loss.item(), float(compute_metric(self._task, scores.detach(), y))


AnyOptimizer = Union[SgdOptimizer, TaskOptimizer]


def make_optimizer(net: nn.Module, task: TrainingTask, options: TrainingOptions) -> AnyOptimizer:
    """Return the task's own optimiser for a training, or SGD."""
    plain = task.optimizer is None and not options.mixed
    return SgdOptimizer(net, task, options) if plain else TaskOptimizer(net, task, options)


def make_sgd(weights: "Any", learning_rate: float, momentum: float) -> "torch.optim.Optimizer":
    """Return torch's SGD."""
    return torch.optim.SGD(weights, lr=learning_rate, momentum=momentum)


def choose_half_type(device: str) -> "Optional[torch.dtype]":
    """Return the half precision of a device; None on the CPU before torch 2, which lacks operators.

    GPUs before the capability 8.0 emulate bfloat16, which recent torch calls supported too.
    """
    if device == "cpu":
        return torch.bfloat16 if int(torch.__version__.partition(".")[0]) >= 2 else None
    return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16


def make_gradient_scaler() -> "Any":
    """Return torch's scaler of gradients, which torch 2.3 moved to ``torch.amp``, a module that old ones lack."""
    scaler: "Any" = getattr(getattr(torch, "amp", None), "GradScaler", None) or torch.cuda.amp.GradScaler
    return scaler()


def compute_metric(task: TrainingTask, scores: Tensor, y: Tensor) -> Tensor:
    """Return the mean of the task's metric over a minibatch, by default its accuracy where there are labels.

    NaN without a metric where labels are fractions, or no classes of the scores' second axis.
    """
    if task.metric is not None:
        return task.metric(scores, y)
    if y.is_floating_point() or scores.dim() < 2 or scores.shape[:1] + scores.shape[2:] != y.shape:
        return torch.tensor(float("nan"))
    right = scores.argmax(1) == y
    return right.float().mean() if y.dim() == 1 else right.sum() / (y != UNLABELLED).sum()

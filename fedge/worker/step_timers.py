"""Timing of a step's copy and computation: by CUDA events on a GPU, otherwise by the monotonic clock."""

from typing import Any, Callable, NamedTuple, Tuple

import torch
from torch import Tensor, nn

from fedge.worker.task_shape import BadTask
from fedge.worker.tasks import cross_entropy
from fedge.worker.timed_loader import now_s


class StepOutcome(NamedTuple):
    """Results and times of one step.

    Attributes:
        loss: Loss, a scalar tensor on the device.
        scores: Scores (n, classes), on the device.
        labels: Labels (n,), on the device.
        copy_s: Seconds of the copy to the device; 0 on the host.
        compute_s: Seconds of the computation.
        done_s: When the device had finished, on the monotonic clock.
    """

    loss: Tensor
    scores: Tensor
    labels: Tensor
    copy_s: float
    compute_s: float
    done_s: float


StepFunction = Callable[[Tensor, Tensor], Tuple[Tensor, Tensor]]
"""Maps images and labels on the device to loss and scores (n, classes)."""


def make_step_function(net: nn.Module, kind: str, learning_rate: float, momentum: float) -> StepFunction:
    """Return a function that runs one step.

    ``train`` is one step of SGD (forward, backward, update), ``infer`` a forward pass.
    """
    if kind == "infer":
        net.eval()
        return lambda images, labels: _infer_step(net, images, labels)
    net.train()
    optimiser = torch.optim.SGD(net.parameters(), lr=learning_rate, momentum=momentum)
    return lambda images, labels: _train_step(net, optimiser, images, labels)


def _train_step(net: nn.Module, optimiser: Any, images: Tensor, labels: Tensor) -> Tuple[Tensor, Tensor]:
    optimiser.zero_grad()
    scores = _compute_scores(net, images)
    loss = cross_entropy(scores, labels)
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    return loss.detach(), scores.detach()


def _infer_step(net: nn.Module, images: Tensor, labels: Tensor) -> Tuple[Tensor, Tensor]:
    with torch.no_grad():
        scores = _compute_scores(net, images)
    return scores.new_zeros(()), scores


def _compute_scores(net: nn.Module, images: Tensor) -> Tensor:
    given = net(images)
    scores: Any = given if isinstance(given, Tensor) else getattr(given, "logits", given)
    if getattr(scores, "ndim", 0) != 2 or len(scores) != len(images):
        got = f"{type(scores).__name__} of shape {tuple(getattr(scores, 'shape', ()))} for {len(images)} images"
        raise BadTask("model", got, "a row of scores for each image")
    found: Tensor = scores
    return found


def time_on_host(work: StepFunction) -> Callable[[Tensor, Tensor], StepOutcome]:
    """Return a timed step function for the CPU, where nothing is copied."""

    def step(images: Tensor, labels: Tensor) -> StepOutcome:
        begun_s = now_s()
        loss, scores = work(images, labels)
        done_s = now_s()
        return StepOutcome(loss, scores=scores, labels=labels, copy_s=0.0, compute_s=done_s - begun_s, done_s=done_s)

    return step


def time_on_cuda(work: StepFunction, device: torch.device) -> Callable[[Tensor, Tensor], StepOutcome]:
    """Return a timed step function for a GPU.

    Copies from pinned memory do not block the host; at the end of each step the host waits for the device. Without that
    wait the parts of a step would overlap with those of the next, and would not add up.
    """
    event: Any = torch.cuda.Event
    begun, copied, done = (event(enable_timing=True) for _ in range(3))

    def step(images: Tensor, labels: Tensor) -> StepOutcome:
        begun.record()
        there = images.to(device, non_blocking=True)
        truth = labels.to(device, non_blocking=True)
        copied.record()
        loss, scores = work(there, truth)
        done.record()
        done.synchronize()
        done_s = now_s()
        return StepOutcome(
            loss,
            scores=scores,
            labels=truth,
            copy_s=begun.elapsed_time(copied) / 1e3,
            compute_s=copied.elapsed_time(done) / 1e3,
            done_s=done_s,
        )

    return step

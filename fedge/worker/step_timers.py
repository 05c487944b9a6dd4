"""A minibatch's copy and computation on a device, each timed: by CUDA events on a GPU, by the monotonic clock else."""

from typing import Any, Callable, NamedTuple, Tuple

import torch
from torch import Tensor, nn

from fedge.worker.tasks import BadTask, cross_entropy
from fedge.worker.timed_loader import now_s


class StepOutcome(NamedTuple):
    """What a minibatch gave and took; ``done_s`` is when the device had done everything."""

    loss: Tensor
    scores: Tensor
    labels: Tensor
    """On the device."""
    copy_s: float
    compute_s: float
    done_s: float


StepFunction = Callable[[Tensor, Tensor], Tuple[Tensor, Tensor]]
"""Images and labels on the device -> loss and scores (n, classes)."""


def make_step_function(net: nn.Module, kind: str, learning_rate: float, momentum: float) -> StepFunction:
    """One step of SGD (``train``): forward, backward, update; or a forward pass (``infer``)."""
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
    """The device is the host: nothing is copied."""

    def step(images: Tensor, labels: Tensor) -> StepOutcome:
        begun_s = now_s()
        loss, scores = work(images, labels)
        done_s = now_s()
        return StepOutcome(loss, scores=scores, labels=labels, copy_s=0.0, compute_s=done_s - begun_s, done_s=done_s)

    return step


def time_on_cuda(work: StepFunction, device: torch.device) -> Callable[[Tensor, Tensor], StepOutcome]:
    """Copies from page-locked memory do not hold the host up; at the end of each minibatch the device is waited for.

    Without that wait the parts of a minibatch would overlap with those of the next, and not add up.
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

"""Checks what an experiment says of memory: something has to fit, and what is to be lowered has to be possible."""

from __future__ import annotations

from experiments.schema import shown
from fedge.errors import BadInput
from fedge.experiment import Board, Experiment
from fedge.fleetsim.boards import kind_of
from fedge.fleetsim.client import task_of
from fedge.fleetsim.fitting import board_means, why_not_narrow
from fedge.rounds.fitting import AVERAGING, Means, may_narrow
from fedge.types import DeviceSpec

WHERE = "workload.memory"


def check_memory(experiment: Experiment) -> None:
    """Raise ``BadInput`` for batch sizes and widths that cannot be, and for a board in which nothing fits."""
    work = experiment.workload
    if work.memory.min_batch > work.batch_size:
        right = f"at most {work.batch_size}, workload.batch_size"
        raise BadInput(f"{WHERE}.min_batch", str(work.memory.min_batch), right)
    _check_widths(experiment)
    if experiment.backend == "fleet" or not work.memory.guard:
        return
    for i, entry in enumerate(experiment.fleet):
        if entry.memory_mb is not None:
            board = Board(name=entry.name or entry.device, index=0, entry=entry)
            means = board_means(experiment, board, kind_of(board, work).spec, lambda: task_of(experiment))
            if means is not None:
                _check_fits(means, f"fleet[{i}].memory_mb")


def _check_widths(experiment: Experiment) -> None:
    """Widths that the user asks for have to be possible; those by default are left out where they are not."""
    work, widths = experiment.workload, experiment.workload.memory.widths
    if widths is None or min(widths) == 1.0:
        return
    strategy = experiment.strategy.name
    if not may_narrow(work, strategy):
        right = (
            f"[1], because {strategy} compares or clips whole updates, which a narrow network's is not; or a strategy "
            f"that averages: {', '.join(AVERAGING)}"
        )
        raise BadInput(f"{WHERE}.widths", shown(list(widths)), right)
    why = why_not_narrow(task_of(experiment), widths)
    if why:
        right = f"[1], because the network of {work.task} cannot be narrowed ({why})"
        raise BadInput(f"{WHERE}.widths", shown(list(widths)), right)


def _check_fits(means: Means, where: str) -> None:
    needs = {scale: means.need(scale).memory_mb * (1.0 + means.spec.margin) for scale in means.scales()}
    smallest = min(needs, key=needs.__getitem__)
    if needs[smallest] > means.limit_mb:
        right = (
            f"at least {needs[smallest]:.0f}: so much {means.network.name} is predicted to need on {means.device.name} "
            f"at {smallest}, the smallest that {WHERE} allows, with {means.spec.margin:.0%} to spare"
        )
        raise BadInput(where, f"{means.limit_mb:g}", right)


def memory_label(experiment: Experiment, board: Board, device: DeviceSpec) -> dict[str, dict[str, str]]:
    """Where the prediction of a board's memory comes from; nothing where nobody knows what a step needs."""
    means = board_means(experiment, board, device, lambda: task_of(experiment))
    if means is None:
        return {}
    need = means.need(means.asked)
    return {"memory": {"label": need.label, "source": need.source}}

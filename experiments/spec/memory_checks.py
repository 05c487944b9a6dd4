"""Checks the memory settings of an experiment: some scale must fit, and requested reductions must be possible."""

from __future__ import annotations

from fedge.client.emulated_memory import build_board_scaling, explain_narrowing_failure
from fedge.client.memory_scaling import AVERAGING_STRATEGIES, ScalingContext, can_narrow_clients
from fedge.devices.board_kinds import build_kind
from fedge.errors import BadInput
from fedge.experiment import Experiment, FleetBoard
from fedge.types import DeviceSpec
from fedge.workloads import load_experiment_task
from fedge.yaml_files import format_value

MEMORY_FIELD = "workload.memory"


def check_memory(experiment: Experiment) -> None:
    """Raise ``BadInput`` for impossible batch sizes or widths, and for a board on which no allowed scale fits."""
    work = experiment.workload
    if work.memory.min_batch > work.batch_size:
        right = f"at most {work.batch_size}, workload.batch_size"
        raise BadInput(f"{MEMORY_FIELD}.min_batch", str(work.memory.min_batch), right)
    _check_widths(experiment)
    if experiment.backend == "fleet" or not work.memory.guard:
        return
    for i, entry in enumerate(experiment.fleet):
        if entry.memory_mb is not None:
            board = FleetBoard(name=entry.name or entry.device, index=0, entry=entry)
            scaling = build_board_scaling(
                experiment, board, build_kind(board, work).spec, lambda: load_experiment_task(experiment)
            )
            if scaling is not None:
                _check_memory_fits(scaling, f"fleet[{i}].memory_mb")


def _check_widths(experiment: Experiment) -> None:
    """Check that the requested widths are possible; default widths that are not are skipped."""
    work, widths = experiment.workload, experiment.workload.memory.widths
    if widths is None or min(widths) == 1.0:
        return
    strategy = experiment.strategy.name
    if not can_narrow_clients(work, strategy):
        right = (
            f"[1], because {strategy} compares or clips whole updates, which a narrow network's is not; or a strategy "
            f"that averages: {', '.join(AVERAGING_STRATEGIES)}"
        )
        raise BadInput(f"{MEMORY_FIELD}.widths", format_value(list(widths)), right)
    why = explain_narrowing_failure(load_experiment_task(experiment), widths)
    if why:
        right = f"[1], because the network of {work.task} cannot be narrowed ({why})"
        raise BadInput(f"{MEMORY_FIELD}.widths", format_value(list(widths)), right)


def _check_memory_fits(scaling: ScalingContext, where: str) -> None:
    needs = {
        scale: scaling.estimate_need(scale).memory_mb * (1.0 + scaling.spec.margin) for scale in scaling.list_scales()
    }
    smallest = min(needs, key=needs.__getitem__)
    if needs[smallest] > scaling.limit_mb:
        right = (
            f"at least {needs[smallest]:.0f}: so much {scaling.network.name} is predicted to need on "
            f"{scaling.device.name} at {smallest}, the smallest that {MEMORY_FIELD} allows, with "
            f"{scaling.spec.margin:.0%} to spare"
        )
        raise BadInput(where, f"{scaling.limit_mb:g}", right)


def memory_label(experiment: Experiment, board: FleetBoard, device: DeviceSpec) -> dict[str, dict[str, str]]:
    """Return the provenance of a board's memory prediction as a label; empty if the need of a step is unknown."""
    scaling = build_board_scaling(experiment, board, device, lambda: load_experiment_task(experiment))
    if scaling is None:
        return {}
    need = scaling.estimate_need(scaling.requested)
    return {"memory": {"label": need.label, "source": need.source}}

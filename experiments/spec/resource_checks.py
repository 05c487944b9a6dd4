"""Checks what boards shall hold beside the training: memory limits, data loaders and inference services.

Some scale must fit, and requested reductions must be possible; a loader needs an emulated board, and counts no cost
twice; an inference service's rate and latency must be sustainable. What is predicted of them is labelled.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from fedge.call_cache import cache_last_call
from fedge.client.answers import describe_evaluation
from fedge.client.emulated import partition_samples
from fedge.client.emulated_resources import build_board_scaling, build_loader_pipeline
from fedge.client.inference_service import (
    average_inference_costs,
    build_demand,
    describe_service,
    first_step_s,
    price_inference,
)
from fedge.client.memory_scaling import (
    AVERAGING_STRATEGIES,
    ScalingContext,
    can_narrow_clients,
    explain_narrowing_failure,
)
from fedge.costs.cost_profile import CostProfile
from fedge.costs.input_pipeline.pipeline_fit import read_fitted_loader
from fedge.costs.layered_work import build_workload, count_priced_bytes, find_priced_network
from fedge.costs.layers.network_record import list_known_workloads
from fedge.costs.memory.scale_choice import describe_safety
from fedge.devices.board_kinds import TABLE_PREFIX, BoardKind, build_kind
from fedge.devices.catalogue import find
from fedge.errors import BadInput, UnknownName
from fedge.experiment import (
    DEFAULT_LOADED_MPIXEL,
    Experiment,
    FleetBoard,
    FleetEntry,
    LoaderSpec,
    ServingSpec,
    label_network,
    list_boards,
)
from fedge.pareto import find_nearest_row
from fedge.serving.standing_service import (
    MAX_SHARE,
    InferenceCosts,
    ServiceDemand,
    build_service_table,
    min_latency_budget_s,
)
from fedge.types import DeviceSpec, weakest_label
from fedge.worker.builtin_tasks import TASKS
from fedge.workloads import NULL_TASK, explain_missing_cuda, load_experiment_task
from fedge.yaml_files import format_value

MEMORY_FIELD = "workload.memory"


def check_gpus(experiment: Experiment, elsewhere: bool) -> None:
    """Raise ``BadInput`` for GPUs that the clients cannot use.

    Args:
        elsewhere: Whether the clients run on machines of a cluster, whose devices are unknown here.
    """
    num_gpus, task = experiment.backend_options.num_gpus, experiment.workload.task
    if num_gpus == 0:
        return
    right = None
    if task == NULL_TASK or ":" in task:
        right = f"0: {'nothing is trained' if task == NULL_TASK else f'{task} chooses its own device'}"
    elif not elsewhere:
        missing = explain_missing_cuda()
        right = f"0, or a machine with CUDA: {missing} here" if missing else None
    if right is not None:
        raise BadInput("backend_options.num_gpus", f"{num_gpus:g}", right)


def check_memory(experiment: Experiment) -> None:
    """Raise ``BadInput`` for impossible batch sizes or widths, and for a board on which no allowed scale fits."""
    work = experiment.workload
    if work.memory.min_batch > work.batch_size:
        right = f"from 1 to {work.batch_size}, workload.batch_size"
        raise BadInput(f"{MEMORY_FIELD}.min_batch", str(work.memory.min_batch), right)
    _check_widths(experiment)
    if experiment.backend == "fleet" or not work.memory.guard:
        return
    for i, entry in enumerate(experiment.fleet):
        if entry.memory_mb is not None:
            scaling = build_board_scaling(experiment, entry)
            if scaling is not None:
                _check_memory_fits(scaling, f"fleet[{i}].memory_mb")


def _check_widths(experiment: Experiment) -> None:
    """Check that the requested widths are possible; default widths that are not are skipped."""
    if experiment.workload.memory.widths is not None:
        _check_possible(experiment, f"{MEMORY_FIELD}.widths", list(experiment.workload.memory.widths), full=[1])
    unpriced = [find_priced_network(entry, experiment.workload) is None for entry in experiment.fleet]
    for i, entry in enumerate(experiment.fleet):
        _check_possible(experiment, f"fleet[{i}].width", entry.width, full=1)
        if entry.width < 1.0 and unpriced[i]:
            cost = entry.cost or experiment.workload.cost
            right = f"no width, because the layers of {cost} are not known, so its narrow steps cannot be priced"
            raise BadInput(f"fleet[{i}].width", f"{entry.width:g}", right)


def _check_possible(experiment: Experiment, where: str, value: float | list[float], full: float | list[float]) -> None:
    """Check the widths of a key's value; ``full`` is the value without narrow networks."""
    work, strategy = experiment.workload, experiment.strategy.name
    widths = value if isinstance(value, list) else [value]
    if min(widths) == 1.0:
        return
    if not can_narrow_clients(experiment):
        who, other = strategy, f"a strategy that averages: {', '.join(AVERAGING_STRATEGIES)}"
        if experiment.mods:
            who, other = f"the mod {experiment.mods[0].name}", "no mods"
        why = f"because {who} compares or clips whole updates, which a narrow network's is not"
        right = f"{format_value(full)}, {why}; or {other}"
        raise BadInput(where, format_value(value), right)
    why = explain_narrowing_failure(load_experiment_task(experiment), widths)
    if why:
        right = f"{format_value(full)}, because the network of {work.task} cannot be narrowed ({why})"
        raise BadInput(where, format_value(value), right)


def _check_memory_fits(scaling: ScalingContext, where: str) -> None:
    """Check that a step is predicted to fit: the guard's bound only decides what is tried first."""
    margin = scaling.spec.margin or 0.0
    needs = {scale: (1.0 + margin) * scaling.estimate_need(scale).memory_mb for scale in scaling.list_scales()}
    smallest = min(needs, key=needs.__getitem__)
    if needs[smallest] > scaling.limit_mb:
        right = (
            f"at least {math.ceil(needs[smallest])}: so much {scaling.network.name} is predicted to need on "
            f"{scaling.device.name} at {smallest}, the smallest that {MEMORY_FIELD} allows"
            f"{f', with {describe_safety(margin)}' if margin else ''}; {MEMORY_FIELD}.guard: false tries all the same"
        )
        raise BadInput(where, f"{scaling.limit_mb:g}", right)


def memory_label(experiment: Experiment, entry: FleetEntry) -> dict[str, dict[str, str]]:
    """Return the provenance of its boards' memory prediction as a label; empty if the need of a step is unknown."""
    scaling = build_board_scaling(experiment, entry)
    if scaling is None:
        return {}
    need = scaling.estimate_need(scaling.requested)
    return {"memory": {"label": need.label, "source": need.source}}


def check_loader(experiment: Experiment) -> None:
    """Raise ``BadInput`` for the first entry whose ``loader`` its boards cannot have."""
    for i, entry in enumerate(experiment.fleet):
        if entry.loader is None:
            continue
        where = f"fleet[{i}].loader"
        if entry.truth.startswith(TABLE_PREFIX):
            right = "nothing beside a measured table: its minibatches hold the stalls they were measured with"
            raise BadInput(where, format_value(entry.loader), right)
        build_loader_pipeline(entry.loader, find(entry.device), experiment.workload.batch_size, where)


def loader_label(board: FleetBoard) -> dict[str, Any]:
    """Return the provenance of a board's loading cost as a label; empty if it has no loader."""
    spec = board.entry.loader
    if spec is None:
        return {}
    if spec.model is None:
        return {"loader": {"label": "estimated", "source": _describe_loader(spec)}}
    fitted = read_fitted_loader(Path(spec.model), "fleet.loader.model", spec.sha256)
    source = f"{_describe_loader(spec)}; fitted to {fitted.workload}, {fitted.source}"
    return {"loader": {"label": fitted.label, "source": source}}


def _describe_loader(spec: LoaderSpec) -> str:
    workers = "no worker" if spec.workers == 0 else f"{spec.workers} worker{'s' if spec.workers > 1 else ''}"
    cached = f"{spec.cached:.0%} in the page cache"
    stored = spec.storage or "the boards' own storage"
    images = "" if spec.model else f" images of {spec.image_mpixel or DEFAULT_LOADED_MPIXEL:g} megapixel,"
    return f"pipeline model: {workers}, {stored},{images} {cached}"


def link_label(experiment: Experiment, entry: FleetEntry) -> dict[str, dict[str, Any]]:
    """Return the sizes of the model that a round moves and of the one that is trained as a label, and where the former
    comes from.
    """
    work, moved_bytes = build_workload(entry, experiment.workload), count_priced_bytes(entry, experiment.workload)
    trained_bytes = _count_trained_bytes(experiment)
    if experiment.backend == "fleet":
        source, moved_bytes = "the trained model", trained_bytes
    elif moved_bytes is None:
        source, moved_bytes = f"the trained model: {work.name} has no known layers or workload.model_mb", trained_bytes
    else:
        source = "workload.model_mb" if experiment.workload.model_mb else f"the parameters of {work.name}, 4 bytes each"
    network = experiment.workload.network
    pruned = {} if network is None or network.channels is None else {"pruned": True}
    sizes = {"moved_bytes": moved_bytes, "trained_bytes": trained_bytes, **pruned}
    step = {"cost": work.name, "batch_size": work.batch_size}
    if network is not None and work.layers is not None:
        step["loading"] = network.loading
    return {"link": {"label": "estimated", "source": source, **step, **sizes}}


@cache_last_call
def _count_trained_bytes(experiment: Experiment) -> int:
    """Return the size of the trained model; kept, since a large one takes long to initialise for every entry."""
    return sum(array.nbytes for array in load_experiment_task(experiment).initial_arrays(experiment.seed).values())


WORKER_ACCELERATOR = "cuda-cores"
MAX_LATENCY_S = 1000.0
"""Upper end of the latency histograms, in seconds; a board also warms up for as long as its latency budget."""


def check_serving(experiment: Experiment) -> None:
    """Raise ``BadInput`` for the first service that its entry's average board cannot sustain.

    Training counts: no request is served during a step.
    """
    firsts = {board.entry: board for board in reversed(list_boards(experiment))}
    for i, entry in enumerate(experiment.fleet):
        if entry.serving is not None:
            _check_model(entry.serving, f"fleet[{i}].serving")
            _check_placed(experiment, entry, f"fleet[{i}].serving")
            if entry.serving.latency_s > MAX_LATENCY_S:
                got = f"{entry.serving.latency_s:g} s"
                raise BadInput(f"fleet[{i}].serving.latency_s", got, f"more than 0 and at most {MAX_LATENCY_S:g} s")
            kind = build_kind(firsts[entry], experiment.workload)
            inference = _estimate_inference(kind, entry.serving, f"fleet[{i}].serving")
            _check_sustainable(
                experiment, spec=entry.serving, kind=kind, inference=inference, where=f"fleet[{i}].serving"
            )


def _check_model(spec: ServingSpec, where: str) -> None:
    if spec.model is not None and spec.model not in TASKS:
        raise UnknownName(f"{where}.model", spec.model, tuple(TASKS))


def _check_placed(experiment: Experiment, entry: FleetEntry, where: str) -> None:
    """Raise ``BadInput`` if a plan does not fit the service: its board, network, batch size or accelerator."""
    spec = entry.serving
    placed = None if spec is None else spec.placed
    if spec is None or placed is None:
        return
    device, network = find(entry.device).name, spec.network
    if placed.device != device:
        raise BadInput(f"{where}.placement", f"a plan for {placed.device}", f"one of `fedge place --board {device}`")
    if network is None or (network.model, network.input) != (placed.network, placed.input):
        got = spec.cost if network is None else _name_network(network.model, network.input)
        right = f"the plan's, {_name_network(placed.network, placed.input)}, or no placement"
        raise BadInput(f"{where}.network", got, right)
    if spec.cost != label_network(placed.network):
        raise BadInput(f"{where}.cost", spec.cost, "none beside a placement, whose plan says what a batch costs")
    if placed.batch_size not in spec.batch_sizes:
        right = f"a list with {placed.batch_size}, the batch size of the plan"
        raise BadInput(f"{where}.batch_sizes", str(list(spec.batch_sizes)), right)
    if experiment.backend == "fleet" and placed.accelerator != WORKER_ACCELERATOR:
        right = f"a plan for {WORKER_ACCELERATOR}, on which a real board's worker infers: --on {WORKER_ACCELERATOR}"
        raise BadInput(f"{where}.placement", f"a plan for {placed.accelerator}", right)


def _name_network(model: str, shape: tuple[int, ...] | None) -> str:
    return model if shape is None else f"{model} for {'x'.join(map(str, shape))}"


def _estimate_inference(kind: BoardKind, spec: ServingSpec, where: str) -> InferenceCosts:
    """Estimate the costs of the service's batch sizes; messages are prefixed with the field."""
    try:
        return average_inference_costs(kind.spec, describe_service(spec), kind.average.modes)
    except UnknownName as error:
        known = sorted({*error.known, *list_known_workloads()})
        raise UnknownName(f"{where}.cost", spec.cost, tuple(known)) from error
    except BadInput as error:
        raise BadInput(f"{where}.batch_sizes", error.got, error.right) from error


def _check_sustainable(
    experiment: Experiment, spec: ServingSpec, kind: BoardKind, inference: InferenceCosts, where: str
) -> None:
    demand, train_s = build_demand(spec), kind.average.step_s
    least_s = min_latency_budget_s(inference, demand, train_s, first_step_s(train_s))
    if math.isinf(least_s):
        most_hz = float((MAX_SHARE * np.array(inference.batch_sizes) / inference.infer_s).max())
        right = (
            f"at most {most_hz:.3g}: more requests of {spec.cost} would take {kind.spec.name} over {MAX_SHARE:.0%} of "
            "its time, which leaves too little for training"
        )
        raise BadInput(f"{where}.rate_hz", f"{spec.rate_hz:g}", right)
    if least_s > spec.latency_s:
        alone_s = min_latency_budget_s(inference, demand)
        right = (
            f"at least {_round_up(least_s):g} s: so long {kind.spec.name} needs at its best to collect and infer a "
            f"batch of "
            f"{spec.cost} ({_round_up(alone_s):g} s) and end the training minibatch before it, a round's first one too"
        )
        raise BadInput(f"{where}.latency_s", f"{spec.latency_s:g} s", right)
    policy = experiment.policy.name
    if policy.startswith("preset:"):
        _check_preset(policy.removeprefix("preset:"), spec=spec, kind=kind, inference=inference, demand=demand)


def _check_preset(
    preset: str, spec: ServingSpec, kind: BoardKind, inference: InferenceCosts, demand: ServiceDemand
) -> None:
    """Check that a preset policy, which pins every board to one mode, names a mode that sustains the service."""
    if preset not in kind.spec.presets:
        return  # an unknown preset is reported with the policy
    row = find_nearest_row(inference.modes, kind.spec.presets[preset])
    train_s = kind.average.step_s
    if not build_service_table(inference, demand, train_s, first_step_s(train_s)).holds[row]:
        right = f"a preset in which {kind.spec.name} holds {spec.cost}, {spec.rate_hz:g}/s within {spec.latency_s:g} s"
        raise BadInput("policy.name", f"preset:{preset}", right)


def _round_up(seconds: float) -> float:
    """Round up to two significant digits, so that the suggested number is sufficient."""
    scale = 10.0 ** (math.floor(math.log10(seconds)) - 1)
    return float(f"{math.ceil(seconds / scale) * scale:.2g}")


def check_evaluation(experiment: Experiment) -> None:
    """Raise ``BadInput`` if the boards cannot evaluate the model, or the cost of it is not known."""
    spec, where, task = experiment.evaluation, "evaluation.by", experiment.workload.task
    if spec.by == "server":
        return
    if not hasattr(load_experiment_task(experiment), "test_labels"):
        raise BadInput(where, repr(spec.by), f"server: the task {task} has no test samples to divide among clients")
    if experiment.backend != "fleet":  # real boards may have data of their own
        _check_test_shares(experiment)
    for i, entry in enumerate(experiment.fleet):
        if entry.serving is not None:
            got = f"{spec.by!r}, with an inference service at fleet[{i}].serving"
            raise BadInput(where, got, "server: what an evaluation costs beside a service is not known")
    for board in {board.entry: board for board in list_boards(experiment)}.values():
        try:
            _price_evaluation(experiment, board, build_kind(board, experiment.workload).spec)
        except UnknownName as error:
            right = "server, or workload.network: a network whose layers price an inference"
            raise BadInput(where, f"{spec.by!r}, but inference with {error.got} has no cost", right) from error


def _check_test_shares(experiment: Experiment) -> None:
    """Raise ``BadInput`` if a client gets no samples of the test set, naming the first of such clients."""
    shares = partition_samples(experiment.model_dump_json())
    without = [board.name for board, (_, test) in zip(list_boards(experiment), shares, strict=True) if not len(test)]
    if without:
        got = f"{experiment.evaluation.by!r}, but {without[0]} gets no test samples"
        more = f" ({len(without)} of {len(shares)} clients get none)" if len(without) > 1 else ""
        raise BadInput("evaluation.by", got + more, "server, fewer clients, or a more even data.partition")


def _price_evaluation(experiment: Experiment, board: FleetBoard, device: DeviceSpec) -> CostProfile:
    return price_inference(device, describe_evaluation(experiment.workload, board.entry))[0]


def evaluation_label(experiment: Experiment, board: FleetBoard, device: DeviceSpec) -> dict[str, dict[str, str]]:
    """Return the provenance of the cost of an evaluation as a label; empty if no emulated board evaluates."""
    if experiment.evaluation.by == "server" or experiment.backend == "fleet":
        return {}
    cost = _price_evaluation(experiment, board, device)
    return {"evaluation": {"label": cost.label, "source": cost.source}}


def serving_label(board: FleetBoard, device: DeviceSpec) -> dict[str, dict[str, str]]:
    """Return the provenance of the service's cost as a label; empty if the board has no service."""
    spec = board.entry.serving
    if spec is None:
        return {}
    costs = price_inference(device, describe_service(spec))
    label = weakest_label(cost.label for cost in costs)
    if spec.placed is None:
        return {"serving": {"label": label, "source": f"{spec.cost}: {costs[0].source}"}}
    placed = spec.placed
    plan = f"{placed.batch_s:.3g} s and {placed.power_w:.3g} W a batch on {placed.accelerator} ({placed.precision})"
    source = f"{spec.cost}: planned {plan} at MAXN ({placed.label}), other modes by {costs[0].source}"
    return {"serving": {"label": weakest_label([label, placed.label]), "source": source}}

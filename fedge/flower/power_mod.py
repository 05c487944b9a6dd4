"""A Flower mod that trains every round in a power mode that fits (docs/tutorials/flower-app.md).

On an emulated board the app trains first, unhindered, and its round is then simulated. On a Jetson, or a machine whose
GPUs have a power limit that this user may set, the training runs step by step (``fedge.flower.step_gate``), so that
modes can be probed and changed within the work. Elsewhere time, and energy where processor or GPU count it, are only
measured.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp.typing import ClientAppCallable, Mod

from fedge.client.answers import build_reply
from fedge.client.board_session import build_setup
from fedge.client.client_setup import (
    ClientSetup,
    DeviceOpener,
    begin_requested_round,
    build_first_front,
    build_round,
    plan_conditions,
)
from fedge.client.emulated import build_client, build_true_front, open_board
from fedge.client.emulated_resources import build_board_scaling
from fedge.client.prediction_requests import run_alone
from fedge.client.round import finish_round
from fedge.client.round_state import RoundContext, RoundResult, merge_consecutive
from fedge.decisions.planning import load_planner
from fedge.devices.catalogue import GPU_WORKSTATION
from fedge.devices.gpu_workstation import open_power_limits
from fedge.devices.local_board import LocalBoard, NodeSettings, load_local_settings, open_local_board
from fedge.devices.sensing.energy_counters import GpuEnergyCounter, PackageEnergyCounter
from fedge.errors import BoardError
from fedge.experiment import Experiment, FleetBoard, FleetEntry, LinkSpec, NetworkSpec, WorkloadSpec
from fedge.flower.node_memory import (
    AUTO,
    RECORD,
    NodeKnowledge,
    NodeMemory,
    find_board_knowledge,
    find_emulated_knowledge,
    log_once,
    price_app,
    read_memory,
    recall_earlier_runs,
    write_memory,
)
from fedge.flower.option_checks import EMULATED_PREFIX, check_device, check_mod_arguments
from fedge.flower.step_gate import StepGate, TrainingEnded
from fedge.protocols import Training
from fedge.types import RoundGoal, TrainResult
from fedge.wire import ReplyMessage, RequestMessage, from_json, to_json

logger = logging.getLogger(__name__)

GOAL, ANSWER, WORK = "goal", "answer", "work"
"""Fields of the mod's record in a message: the goal asked for; the node's report, and what its steps are priced as."""
SECONDS, JOULES = "fedge-seconds", "fedge-joules"
"""Metrics of a reply: time and energy of the training; NaN where energy cannot be measured."""
DEVICE_KEY = "fedge-device"
"""Key of the node's configuration that replaces ``device``."""
SETTINGS_KEY = "settings"
"""Key of the node's configuration with the path of the board's settings (docs/how-to/boards.md)."""
PARTITION_KEY = "partition-id"
NO_TRANSFER_MB = 1e-9
"""Flower moves the model, and does not tell a client how long that takes."""
NO_MEMORY_LIMIT_MB = 1e9
"""The app decides what it trains; whether it fits a board is not known."""


@dataclass(frozen=True, slots=True)
class PowerModeOptions:
    """Options of ``power_mode``; see there.

    Attributes:
        assumed: Whether the user named neither a cost profile nor a network.
    """

    policy: str
    limits: Mapping[str, float]
    devices: Sequence[str]
    workload: WorkloadSpec
    assumed: bool
    predictor: str
    seed: int
    knowledge: str | Path | None


def power_mode(
    policy: str = "balanced",
    *,
    device: str | Sequence[str] = "auto",
    cost: str | None = None,
    network: str | None = None,
    input_shape: Sequence[int] | None = None,
    batch_size: int = 16,
    predictor: str = "fedge",
    seed: int = 1,
    knowledge: str | Path | None = AUTO,
    **limits: float,
) -> Mod:
    """Return a mod for a Flower ``ClientApp`` that chooses the power mode of every training message.

    Args:
        policy: Name of a policy (docs/explanation/policies.md).
        device: ``auto`` for the Jetson that this is, if its power daemon runs, else for the power limit of this
            machine's NVIDIA GPUs (``gpu``), if this user may set it, else for measuring only; ``emulated:BOARD`` for an
            emulated board; several for nodes with different partition ids. The node's configuration ``fedge-device``
            replaces it.
        cost: Cost profile of a step: the truth of an emulated board, and what a predictor compares with.
        network: The app's own network instead, priced by its layers: ``module:function``, or what else ``fedge layers``
            takes.
        input_shape: Shape of one sample of ``network``, without the batch.
        batch_size: Samples per step.
        predictor: Name of a predictor.
        seed: Seed of emulated boards.
        knowledge: Folder in which the node's measurements outlive the run; ``auto`` for the board's state folder, and
            for emulated boards ``$FEDGE_KNOWLEDGE`` if it is set; None for none.
        limits: The policy's numbers, such as ``deadline_s`` or ``max_slowdown``.

    Raises:
        BadInput: An option is invalid; a network of the user's own is built only when a node trains.
    """
    given = check_mod_arguments(
        {
            "policy": policy,
            "device": (device,) if isinstance(device, str) else device,
            "cost": cost,
            "network": network,
            "input_shape": input_shape,
            "batch_size": batch_size,
            "predictor": predictor,
            "seed": seed,
        },
        limits,
        knowledge,
    )
    options = PowerModeOptions(
        policy,
        limits=limits,
        devices=given.device,
        workload=WorkloadSpec(
            cost=cost or WorkloadSpec().cost,
            network=None if given.network is None else NetworkSpec(model=given.network, input=given.input_shape),
            batch_size=given.batch_size,
            local_epochs=1.0,
            model_mb=NO_TRANSFER_MB,
        ),
        assumed=cost is None and network is None,
        predictor=predictor,
        seed=given.seed,
        knowledge=knowledge,
    )

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if message.metadata.message_type.partition(".")[0] != "train":
            return call_next(message, context)
        return _train(options, message, context, partial(call_next, message, context))

    return mod


def _train(options: PowerModeOptions, message: Message, context: Context, call: partial[Message]) -> Message:
    memory, name = read_memory(context), _choose_device(options, context.node_config)
    goal = _read_goal(message)
    settings = None if name.startswith(EMULATED_PREFIX) else _find_settings(name, context.node_config)
    if isinstance(settings, str):
        return _measure_only(call, context, settings)
    options = dataclasses.replace(options, workload=price_app(options.workload, context, assumed=options.assumed))
    if settings is None:
        board = _build_board(options, name.removeprefix(EMULATED_PREFIX), context.node_config)
        experiment = _build_experiment(options, board)
        memory = recall_earlier_runs(memory, find_emulated_knowledge(options.knowledge, experiment, board, context))
        gate = StepGate(call)
        steps = gate.run_to_end()
        answer = _simulate_round(options, board, memory, goal=goal, steps=steps)
    else:
        locate = partial(find_board_knowledge, options.knowledge, settings, message=message, context=context)
        gate, memory, answer = _run_on_board(options, settings, memory, goal=goal, call=call, locate=locate)
        steps = gate.run_to_end()
    write_memory(
        context,
        dataclasses.replace(memory, state=answer.state or memory.state, steps=steps, round=memory.round + 1),
    )
    return _add_report(gate.finish(), answer, options.workload)


def _find_settings(name: str, node: Mapping[str, object]) -> NodeSettings | str:
    """Return the settings of the board that this machine is, or why its modes cannot be set."""
    own = node.get(SETTINGS_KEY)
    settings = load_local_settings(None if own is None else Path(str(own)))
    if name == "jetson" or (name == "auto" and Path(settings.power_socket).exists()):
        return settings
    try:
        open_power_limits(settings.state_dir)
    except BoardError as error:
        if name == "gpu":
            raise
        return str(error)
    return settings.model_copy(update={"device": GPU_WORKSTATION})


def _simulate_round(
    options: PowerModeOptions, board: FleetBoard, memory: NodeMemory, goal: RoundGoal | None, steps: int
) -> ReplyMessage:
    """Simulate the round of an emulated board whose app has trained ``steps`` steps."""
    experiment, samples = _build_experiment(options, board), np.arange(steps * options.workload.batch_size)
    client = build_client(experiment, board, samples, scaling=build_board_scaling(experiment, board.entry))
    open_device = partial(open_board, client, options.seed)
    answer, context = _run_round(options, client.setup, memory, goal, open_device=open_device, training=_Trained())
    assert answer.report is not None
    request = RequestMessage("train", policy=options.policy)
    front = build_true_front(client, request, context, client.surface)
    return dataclasses.replace(answer, report=dataclasses.replace(answer.report, true_front=front))


class _Trained:
    """A ``Training`` that has been done already."""

    def advance(self, steps: int) -> None:
        """Do nothing."""

    def result(self) -> TrainResult:
        return TrainResult({}, math.nan, math.nan)


def _run_on_board(
    options: PowerModeOptions,
    settings: NodeSettings,
    memory: NodeMemory,
    *,
    goal: RoundGoal | None,
    call: partial[Message],
    locate: Callable[..., NodeKnowledge | None],
) -> tuple[StepGate[Message], NodeMemory, ReplyMessage]:
    """Run the round on this board; return the training, the memory that it began with, and the reply without arrays.

    The app's training always ends: a board that fails on the way leaves it unmeasured. ``locate`` finds the place of
    the board's measurements for its experiment and kind.
    """
    gate = StepGate(call)
    try:
        with open_local_board(settings.place) as here, here.board.hold():
            board = FleetBoard(name=here.board.spec.name, index=0, entry=_build_entry(here.catalogued.name))
            experiment = _build_experiment(options, board)
            memory = recall_earlier_runs(memory, locate(experiment, device=here.catalogued.name))
            steps = memory.steps or 1
            samples = steps * options.workload.batch_size
            setup = build_setup(experiment, board, here, steps=steps, samples=samples)
            if memory.steps is None:
                answer = _run_first_round(options, setup, memory, here=here, gate=gate)
            else:
                answer = _run_gated_round(options, setup, memory, goal=goal, here=here, gate=gate)
    except BoardError as error:
        logger.warning("the board failed during the training, which goes on unmeasured: %s", error)
        answer = ReplyMessage("", state=memory.state, error=str(error))
    return gate, memory, dataclasses.replace(answer, recorded=settings.root != "/")


def _run_first_round(
    options: PowerModeOptions, setup: ClientSetup, memory: NodeMemory, here: LocalBoard, gate: StepGate[Message]
) -> ReplyMessage:
    """Run the whole training as one step in the fastest mode: the number of its steps is known only at its end."""
    goal = RoundGoal("maxn", 1)
    answer, _ = _run_round(
        options, setup, memory, goal, open_device=lambda _: here.board, training=_WholeTraining(gate)
    )
    assert answer.report is not None
    assert answer.state is not None
    whole = answer.report.measured
    measured = dataclasses.replace(whole, steps=gate.done, step_s=whole.step_s / gate.done)
    state = dataclasses.replace(answer.state, measurements=(measured,))
    request = RequestMessage("front", policy=options.policy, state=state, recalled=memory.recalled or ())
    known = dataclasses.replace(setup, steps=gate.done)
    front = run_alone(build_first_front(known, request, None, lambda _: here.board))
    report = dataclasses.replace(answer.report, measured=measured, asked_steps=gate.done, front=front)
    return dataclasses.replace(answer, report=report, front=front, state=state)


class _WholeTraining(_Trained):
    """A ``Training`` whose single step is the whole call."""

    def __init__(self, gate: StepGate[Message]) -> None:
        self._gate = gate

    def advance(self, steps: int) -> None:
        """Run the call to its end."""
        self._gate.run_to_end()


def _run_gated_round(
    options: PowerModeOptions,
    setup: ClientSetup,
    memory: NodeMemory,
    goal: RoundGoal | None,
    here: LocalBoard,
    gate: StepGate[Message],
) -> ReplyMessage:
    """Run a round of as many steps as the last one, and what more the app does in the round's last mode."""
    try:
        answer, _ = _run_round(options, setup, memory, goal, open_device=lambda _: here.board, training=gate)
    except TrainingEnded as ended:
        return ReplyMessage(setup.board.name, state=memory.state, error=f"not measured: {ended}")
    assert answer.report is not None
    measured = answer.report.measured
    if gate.try_end():  # as in most rounds: what follows the last step needs no mode of its own
        return answer
    tried = gate.done
    measured = dataclasses.replace(measured, steps=measured.steps + 1)  # the tried one, unmeasured: like the others
    with here.board.use_mode(measured.mode):
        rest = here.board.measure(setup.workload, 1, lambda _: gate.run_to_end())
    if more := gate.done - tried:
        measured = merge_consecutive(measured, dataclasses.replace(rest, steps=more, step_s=rest.step_s / more))
    return dataclasses.replace(answer, report=dataclasses.replace(answer.report, measured=measured))


def _run_round(
    options: PowerModeOptions,
    setup: ClientSetup,
    memory: NodeMemory,
    goal: RoundGoal | None,
    *,
    open_device: DeviceOpener,
    training: Training,
) -> tuple[ReplyMessage, RoundContext]:
    """Run a round with a goal of the server's, or with one that is planned for this board alone."""
    request = RequestMessage(
        "train",
        round=memory.round + 1,
        start_s=memory.state.rested_at_s,
        policy=options.policy if goal is None else goal.policy,
        state=memory.state,
        recalled=() if memory.state.doubts_recalled else memory.recalled or (),
        goal=goal,
    )
    if goal is None:
        front = run_alone(build_first_front(setup, request, None, open_device))
        plain, planner = RoundGoal(options.policy, setup.steps, limits=options.limits), load_planner(options.policy)
        name = setup.board.name
        plan = None if planner is None else planner({name: front}, [name], plain)
        goal = plain if plan is None else dataclasses.replace(plan.goals[name], deadline_s=plan.deadline_s)
        request = dataclasses.replace(request, goal=goal)
    conditions = plan_conditions(setup, request, None)
    device = open_device(conditions)
    context = build_round(setup, conditions, device)
    state = run_alone(begin_requested_round(setup, request, context, training))
    result: RoundResult = run_alone(finish_round(state))
    temperature_c = getattr(device, "temperature_c", None)
    reply, _ = build_reply(setup, conditions, context=context, result=result, temperature_c=temperature_c, peak_mb=None)
    return reply, context


def _measure_only(call: partial[Message], context: Context, reason: str) -> Message:
    """Train and measure time, and the energy of processor and GPUs as far as they count it; log once what that is."""
    packages = PackageEnergyCounter.try_open()
    opened = {"processor (RAPL)": packages, "GPUs (NVML)": GpuEnergyCounter.try_open()}
    counters = {name: each for name, each in opened.items() if each is not None}
    said = f"modes are not set: {reason}; measured: time{''.join(f', energy of the {name}' for name in counters)}"
    log_once(context, said)
    start_s = time.monotonic()
    with nullcontext() if packages is None else packages.follow():
        reply = call()
    seconds = time.monotonic() - start_s
    known = [joules for each in counters.values() if (joules := each.try_read_energy_j()) is not None]
    _add_metrics(reply, seconds, sum(known) if known and len(known) == len(counters) else math.nan)
    return reply


def _add_report(reply: Message, answer: ReplyMessage, priced: WorkloadSpec) -> Message:
    """Add time and energy to the reply's metrics, and the whole report as a record that strategies do not aggregate."""
    if reply.has_error():
        return reply
    report = answer.report
    _add_metrics(reply, math.nan if report is None else report.work_s, math.nan if report is None else report.work_j)
    work = priced.model_dump_json(include={"cost", "batch_size", "network"})
    reply.content[RECORD] = ConfigRecord({ANSWER: to_json(dataclasses.replace(answer, state=None)), WORK: work})
    return reply


def _add_metrics(reply: Message, seconds: float, joules: float) -> None:
    if reply.has_error():
        return
    metrics = next(iter(reply.content.metric_records.values()), None)
    if metrics is None:
        metrics = reply.content["metrics"] = MetricRecord()
    metrics[SECONDS], metrics[JOULES] = seconds, joules


def _read_goal(message: Message) -> RoundGoal | None:
    """Return the goal that ``PowerAware`` planned for this node; None without one."""
    record = message.content.config_records.get(RECORD)
    return None if record is None or GOAL not in record else from_json(RoundGoal, str(record[GOAL]))


def _choose_device(options: PowerModeOptions, node: Mapping[str, object]) -> str:
    own = node.get(DEVICE_KEY)
    if not own:
        return options.devices[_partition(node) % len(options.devices)]
    check_device(str(own), f"the node's {DEVICE_KEY}")
    return str(own)


def _partition(node: Mapping[str, object]) -> int:
    return int(str(node.get(PARTITION_KEY, 0)))


def _build_board(options: PowerModeOptions, device: str, node: Mapping[str, object]) -> FleetBoard:
    place = _partition(node)
    return FleetBoard(name=f"{device}-{place + 1}", index=place, entry=_build_entry(device))


def _build_entry(device: str) -> FleetEntry:
    return FleetEntry(device=device, memory_mb=NO_MEMORY_LIMIT_MB, link=LinkSpec(latency_s=0.0, radio_w=0.0))


def _build_experiment(options: PowerModeOptions, board: FleetBoard) -> Experiment:
    """Return the experiment whose client the node is, as far as a client reads it."""
    return Experiment(fleet=(board.entry,), seed=options.seed, workload=options.workload, predictor=options.predictor)

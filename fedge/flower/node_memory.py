"""Memory of a node of a plain Flower app, between rounds and between runs; and the price of its steps.

The memory is in the node's context between rounds and in a knowledge folder between runs. A context ends with its run.
So a node's measurements are an entry of the folder, too, one per run and node: nodes that share a folder never write
the same file and need no lock. The newest ``MAX_RUNS`` entries of a board are kept.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import cast

from flwr.app import ConfigRecord, Context, Message

from fedge.costs.cost_scaling import load_workload_sizes
from fedge.costs.layered_work import find_named_workload
from fedge.costs.layers.network_record import format_layers
from fedge.devices.board_kinds import build_kind
from fedge.devices.local_board import NodeSettings
from fedge.errors import BadInput
from fedge.experiment import Experiment, FleetBoard, NetworkSpec, WorkloadSpec
from fedge.flower.option_checks import MOD, in_own_words
from fedge.knowledge.evidence_files import identify_client, read_evidence
from fedge.knowledge.knowledge_folder import (
    ENTRIES,
    KnowledgeEntry,
    add_entry,
    encode_measurements,
    forget_entry,
    format_date,
    hash_content,
    list_entries,
)
from fedge.knowledge.recall import (
    RECORDED,
    ClientIdentity,
    limit_measurements,
    measurement_kind,
    recall_measurements,
)
from fedge.types import Label, Measurement
from fedge.user_catalogue import FOLDER_VARIABLE
from fedge.wire import ClientState, from_json, to_json

logger = logging.getLogger(__name__)


RECORD = "fedge"
"""Name of the mod's record in messages and in the node's context."""
NOTE = "fedge-note"
"""Record in the node's context: what was logged about it."""
STATE, STEPS, ROUND, RECALLED = "state", "steps", "round", "recalled"
"""Fields of the node's record; ``STEPS`` is also a condition of its entries: the steps of its last round."""
AUTO = "auto"
"""The default knowledge folder."""
MAX_REMEMBERED = 64
"""Measurements that a node keeps from earlier rounds: a default; the time of a fit grows with their number cubed."""
MAX_RUNS = 12
"""Entries that are kept per board, all of which a recall reads. A default: with five new modes per run they are the 60
modes that a recall takes at most."""


@dataclass(frozen=True, slots=True)
class NodeKnowledge:
    """The place of a node's measurements in a knowledge folder."""

    folder: Path
    client: ClientIdentity
    label: Label
    run: str


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """The memory of a node between rounds, in its Flower context.

    Attributes:
        steps: Steps of its last round; None before the first one of all.
        recalled: The board's measurements of earlier runs; None until they are looked up, on a board that works.
        known: Where this run's measurements are kept beyond it; None for nowhere.
    """

    state: ClientState = field(default_factory=ClientState)
    steps: int | None = None
    round: int = 0
    recalled: tuple[Measurement, ...] | None = None
    known: NodeKnowledge | None = None


def read_memory(context: Context) -> NodeMemory:
    if RECORD not in context.state:
        return NodeMemory()
    stored = context.state.config_records[RECORD]
    recalled = from_json(ClientState, str(stored[RECALLED])).measurements if RECALLED in stored else None
    state, steps, number = (str(stored[name]) for name in (STATE, STEPS, ROUND))
    return NodeMemory(from_json(ClientState, state), int(steps), int(number), recalled)


def write_memory(context: Context, memory: NodeMemory) -> None:
    """Write the memory into the context, and its measurements where they outlive the run."""
    state = dataclasses.replace(memory.state, measurements=memory.state.measurements[-MAX_REMEMBERED:])
    steps = memory.steps or 1
    record = ConfigRecord({STATE: to_json(state), STEPS: steps, ROUND: memory.round})
    if memory.recalled is not None:
        record[RECALLED] = to_json(ClientState(memory.recalled))
    context.state[RECORD] = record
    if memory.known is not None:
        try:
            _keep_measurements(memory.known, state.measurements, steps)
        except BadInput as error:
            log_once(context, f"what this run learns is forgotten at its end: {error}")


def log_once(context: Context, said: str) -> None:
    """Log a line once per node: what was said is in its context, because a node's processes end with a message."""
    record = context.state.config_records.get(NOTE, ConfigRecord())
    if said not in record:
        context.state[NOTE] = ConfigRecord({**record, said: True})
        logger.warning("%s", said)


def recall_earlier_runs(memory: NodeMemory, known: NodeKnowledge | None) -> NodeMemory:
    """Return the memory with its place beyond the run and, once per run, with what earlier runs left there."""
    if known is None or memory.recalled is not None:
        return dataclasses.replace(memory, known=known)
    recalled, steps = _recall_node(known)
    return dataclasses.replace(
        memory, known=known, recalled=recalled, steps=steps if memory.steps is None else memory.steps
    )


def find_emulated_knowledge(
    chosen: str | Path | None, experiment: Experiment, board: FleetBoard, context: Context
) -> NodeKnowledge | None:
    """Return the place of an emulated board's measurements; ``auto`` is ``$FEDGE_KNOWLEDGE``, and none without it."""
    named = os.environ.get(FOLDER_VARIABLE) if chosen == AUTO else chosen
    if not named:
        return None
    label = build_kind(board, experiment.workload).truth_label
    return NodeKnowledge(
        Path(named).expanduser(), identify_client(experiment, board), label=label, run=_name_run(context)
    )


def find_board_knowledge(
    chosen: str | Path | None,
    settings: NodeSettings,
    experiment: Experiment,
    *,
    device: str,
    message: Message,
    context: Context,
) -> NodeKnowledge | None:
    """Return the place of this board's measurements; ``auto`` is in the state folder of its settings.

    The app's steps are its own, whatever prices them: the names and shapes of its arrays tell apps apart.
    """
    if chosen is None:
        return None
    shapes = [(name, one.shape) for record in message.content.array_records.values() for name, one in record.items()]
    recorded = settings.root != "/"
    client = ClientIdentity(
        settings.board,
        board=settings.board,
        device=device,
        workload=experiment.workload.cost,
        batch_size=experiment.workload.batch_size,
        conditions={"network": hash_content(repr(shapes).encode()), **({"truth": RECORDED} if recorded else {})},
    )
    folder = settings.state_dir / "knowledge" if chosen == AUTO else Path(chosen).expanduser()
    return NodeKnowledge(folder, client, label="estimated" if recorded else "measured", run=_name_run(context))


def _recall_node(known: NodeKnowledge) -> tuple[tuple[Measurement, ...], int | None]:
    """Return the board's measurements of earlier runs, and the steps of its last round there, None if unknown.

    A folder that cannot be read is logged and counts as empty.
    """
    client = known.client
    try:
        entries = [
            entry
            for entry in list_entries(known.folder).entries
            if client.board in entry.boards and measurement_kind(entry) == client.kind
        ]
        found = recall_measurements([client], entries, partial(read_evidence, known.folder), datetime.now(UTC))
    except BadInput as error:
        logger.warning("nothing is recalled of earlier runs: %s", error)
        return (), None
    steps = [int(entry.conditions[STEPS]) for entry in entries if entry.conditions.get(STEPS, "").isdigit()]
    recalled = found.own.get(client.name, ())
    if recalled:
        logger.info("%s recalls %d measurements of earlier runs (%s)", client.name, len(recalled), known.folder)
    return recalled, steps[-1] if recalled and steps else None


def _keep_measurements(known: NodeKnowledge, measurements: Sequence[Measurement], steps: int) -> None:
    """Write a run's measurements so far, in place of those of its earlier rounds.

    Raises:
        BadInput: The folder cannot be written.
    """
    client, rows = known.client, limit_measurements(measurements)
    if not rows:
        return
    series = f"flower-{hashlib.sha256(repr((client.board, client.kind)).encode()).hexdigest()[:12]}-"
    ident, content = f"{series}{known.run}", encode_measurements({client.board: rows})
    entry = KnowledgeEntry(
        id=ident,
        form="run",
        device=client.device,
        workload=client.workload,
        batch_size=client.batch_size,
        label=known.label,
        source="run of a Flower app",
        file=f"{ENTRIES}/{ident}.rows",
        sha256=hash_content(content),
        date=format_date(datetime.now(UTC).timestamp()),
        rows=len(rows),
        boards=(client.board,),
        conditions={**client.conditions, STEPS: str(steps)},
    )
    add_entry(known.folder, entry, content)
    kept = [each for each in list_entries(known.folder).entries if each.id.startswith(series)]
    for old in kept[:-MAX_RUNS]:
        forget_entry(known.folder, old)


def _name_run(context: Context) -> str:
    return f"{context.run_id}-{context.node_id}"


NETWORK = "fedge-network"
"""Record in the node's context: the layers of the app's network, because tracing takes longer than reading them."""


def price_app(work: WorkloadSpec, context: Context, *, assumed: bool) -> WorkloadSpec:
    """Return the workload with the layers of the app's network counted, or log once which network is assumed.

    Raises:
        BadInput: The network cannot be loaded or counted.
    """
    if assumed:
        log_once(
            context,
            f"every step is priced as one of {work.cost}: name your own network with "
            'power_mode(network="module:function", input_shape=(3, 224, 224)), or a profile with cost=',
        )
    if work.network is None:
        return work
    if NETWORK not in context.state:
        context.state[NETWORK] = _count_network(work.network)
    found = context.state.config_records[NETWORK]
    update: dict[str, object] = {"cost": found["cost"], "network": None}
    if found["cost"] not in load_workload_sizes():
        counted = {"input": tuple(cast("list[int]", found["input"])), "layers": found["layers"]}
        update["network"] = work.network.model_copy(update=counted)
    return work.model_copy(update=update)


def _count_network(network: NetworkSpec) -> ConfigRecord:
    """Return name, input and layers of the app's network."""
    shape = None if network.input is None else "x".join(map(str, network.input))
    try:
        work, counted = find_named_workload(network.model, input_shape=shape, option="NETWORK")
    except BadInput as error:
        raise in_own_words(error) from error
    if counted is None:
        raise BadInput(f"{MOD}: network", network.model, "a network whose layers are known, or cost= for a profile")
    return ConfigRecord({"cost": work.name, "input": [*counted.input_shape], "layers": format_layers(counted)})

"""A wrapper around any Flower strategy: plans goals for the nodes' power modes and stores what they report."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedge.atomic_files import write_text
from fedge.decisions.planning import BUDGET_POLICY
from fedge.decisions.planning.round_plan import plan_round
from fedge.errors import BadInput, FedgeError
from fedge.experiment import APP_TASK, Experiment, FleetEntry, LateReplySpec, StrategySpec, WorkloadSpec
from fedge.flower.node_memory import RECORD
from fedge.flower.option_checks import WRAPPER, check_policy
from fedge.flower.power_mod import ANSWER, GOAL, JOULES, SECONDS, WORK
from fedge.json_reader import parse_json
from fedge.telemetry.client_rows import RoundStart, describe_impossible_answer
from fedge.telemetry.run_folder import RUN_YAML, SUMMARY, write_json
from fedge.telemetry.settlement import RoundSettlement, round_row, settle_round
from fedge.telemetry.store import RunTables
from fedge.telemetry.store_records import NOTHING_MEASURED, RECORDED, REFUSED, EventRow
from fedge.types import FleetPlan, Front
from fedge.wire import InvalidMessage, ReplyMessage, from_json, to_json

logger = logging.getLogger(__name__)

ACCURACY_NAMES, LOSS_NAMES = ("accuracy", "acc"), ("loss",)
"""Ends of the names of metrics that become a round's accuracy and loss; those of the evaluation come first."""
MAX_DIGITS = 10
"""Digits of a board's number: Python refuses to convert thousands of them."""


class PowerAware(Strategy):
    """A strategy that behaves as the wrapped one and plans the nodes' power modes.

    Before a round, the fronts that the nodes offered after their last one give a deadline and goals. After it, rows are
    stored that ``fedge report``, ``fedge query`` and ``fedge board`` read. Nodes without the mod take part unplanned;
    then time and energy are in the rows, but not among the aggregated metrics, which must be the same for all nodes.

    Args:
        strategy: Any strategy of Flower or of the user.
        policy: Name of a policy (docs/explanation/policies.md).
        folder: New folder for the run's rows; None stores nothing.
        name: Name of the run.
        now_s: Returns a time in seconds, for the run's wall time.
        limits: The policy's numbers, such as ``deadline_s`` or ``max_slowdown``.

    Raises:
        BadInput: The folder holds a run's rows or is used by another process, there is no such policy, it does not take
            these numbers, or it is ``energy-budget``, whose end of the run a strategy cannot decide.
    """

    def __init__(
        self,
        strategy: Strategy,
        policy: str = "balanced",
        *,
        folder: str | Path | None = None,
        name: str = "flower-app",
        now_s: Callable[[], float] = time.monotonic,
        **limits: float,
    ) -> None:
        if not isinstance(strategy, Strategy):
            got = f"the class {strategy.__name__}" if isinstance(strategy, type) else repr(strategy)
            raise BadInput(f"{WRAPPER}: strategy", got, "a strategy object, for example FedAvg()")
        self._policy = check_policy(policy, limits, WRAPPER)
        if policy == BUDGET_POLICY:
            right = "another one: a strategy cannot end the run when the budget is spent"
            raise BadInput(f"{WRAPPER}: policy", repr(policy), right)
        self._inner, self._name = strategy, name
        if folder == "":
            raise BadInput(f"{WRAPPER}: folder", "an empty name", "a new folder, or None to store nothing")
        self._folder = None if folder is None else Path(folder)
        self._tables = None if self._folder is None else _open_tables(self._folder)
        self._boards: dict[int, str] = {}
        """Board by node id, from its first reply on."""
        self._unreadable: set[int] = set()
        """Nodes whose answer could once not be read."""
        self._devices: Counter[str] = Counter()
        self._real_boards: list[str] = []
        self._fronts: dict[str, Front] = {}
        self._work: WorkloadSpec | None = None
        """What the nodes' steps are priced as, from the first that says it: one app is priced as one network."""
        self._rounds: int | None = None
        """Rounds of the run, which Flower says when it starts the strategy."""
        self._clock_s = 0.0
        self._now_s = now_s
        self._began_s: float | None = None
        self._asked: list[int] = []
        self._plan = FleetPlan({})
        self._settled: RoundSettlement | None = None
        self._train_metrics: MetricRecord | None = None

    def start(self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, *given: Any, **more: Any) -> Result:
        """Run the rounds as any strategy does; the boards are told how many are left."""
        self._rounds = num_rounds
        return super().start(grid, initial_arrays, num_rounds, *given, **more)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the wrapped strategy's messages, with a goal for every node whose front is known."""
        if self._began_s is None:
            self._began_s = self._now_s()
        messages = list(self._inner.configure_train(server_round, arrays, config, grid))
        self._asked = [message.metadata.dst_node_id for message in messages]
        known = [self._boards[node] for node in self._asked if node in self._boards]
        self._plan = plan_round(self._policy, self._fronts, known)
        for message in messages:
            goal = self._plan.goals.get(self._boards.get(message.metadata.dst_node_id, ""))
            if goal is not None:  # strategies give all messages one content
                if self._rounds is not None:
                    goal = dataclasses.replace(goal, rounds_left=self._rounds - server_round)
                message.content = RecordDict({**message.content, RECORD: ConfigRecord({GOAL: to_json(goal)})})
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Settle the round from the nodes' reports and aggregate as the wrapped strategy does."""
        received = list(replies)
        known = [
            (node, answer)
            for node, answer in self._take_answers(received)
            if node in self._boards or answer.report is not None  # a board that failed at once did not say its kind
        ]
        found = sorted(known, key=lambda pair: (_read_place(pair[1].board), pair[0]))
        answers = {answer.board: answer for answer in itertools.starmap(self._note_answer, found)}
        self._settled = self._settle(server_round, answers, received)
        _drop_unshared_metrics(received)
        arrays, self._train_metrics = self._inner.aggregate_train(server_round, received)
        return arrays, self._train_metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self._inner.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Aggregate as the wrapped strategy does, and store the round with its accuracy and loss."""
        metrics = self._inner.aggregate_evaluate(server_round, replies)
        if self._settled is not None and self._tables is not None:
            records = metrics, self._train_metrics
            row = dataclasses.replace(
                round_row(self._settled, None),
                loss=_find_metric(records, LOSS_NAMES),
                accuracy=_find_metric(records, ACCURACY_NAMES),
            )
            self._tables.append((*self._settled.clients, *self._settled.events, row))
            self._write_experiment(server_round)
        self._settled = None
        return metrics

    def summary(self) -> None:
        self._inner.summary()

    def _take_answers(self, replies: Sequence[Message]) -> Iterator[tuple[int, ReplyMessage]]:
        """Take the mod's answers out of the replies; yield them with the ids of their nodes.

        One that cannot be read is left out, and of one with impossible figures only the error is left: a node must not
        end the run.
        """
        for reply in replies:
            if not reply.has_error() and RECORD in reply.content.config_records:
                record = reply.content.config_records[RECORD]
                del reply.content[RECORD]
                if self._work is None and WORK in record:
                    self._work = parse_work(str(record[WORK]))
                node = reply.metadata.src_node_id
                try:
                    answer = from_json(ReplyMessage, str(record.get(ANSWER)))
                except InvalidMessage as error:
                    if node not in self._unreadable:
                        logger.warning("node %d counts as one without the mod: its answer is %s", node, error)
                    self._unreadable.add(node)
                    continue
                wrong = describe_impossible_answer(answer)
                yield node, ReplyMessage(answer.board, error=f"{REFUSED}impossible {wrong}") if wrong else answer

    def _note_answer(self, node: int, answer: ReplyMessage) -> ReplyMessage:
        """Return a node's answer under the board's name in this run, and keep its front."""
        name = self._name_board(node, answer)
        if answer.front is not None:
            self._fronts[name] = answer.front
        report = None if answer.report is None else dataclasses.replace(answer.report, board=name)
        return dataclasses.replace(answer, board=name, report=report)

    def _name_board(self, node: int, answer: ReplyMessage) -> str:
        """Return the board's name: its kind and a number, as boards of an experiment have."""
        if node not in self._boards:
            assert answer.report is not None
            device = answer.report.device
            self._devices[device] += 1
            name = self._boards[node] = f"{device}-{self._devices[device]}"
            if answer.report.true_front is None:  # only of an emulated board the truth is known
                self._real_boards.append(name)
            if answer.recorded and self._tables is not None:
                self._tables.append([EventRow(0.0, round=0, board=name, kind=RECORDED, message=NOTHING_MEASURED)])
        return self._boards[node]

    def _settle(
        self, number: int, answers: Mapping[str, ReplyMessage], replies: Sequence[Message]
    ) -> RoundSettlement | None:
        """Settle the round of all nodes that have the mod; one of them that did not reply has failed."""
        failed = {
            board: ReplyMessage(board, error=_find_error(replies, node))
            for node in self._asked
            if (board := self._boards.get(node)) is not None and board not in answers
        }
        if not answers:
            return None
        start = RoundStart(
            number,
            start_s=self._clock_s,
            deadline_s=self._plan.deadline_s,
            idle_w={board: front.idle_w for board, front in self._fronts.items()},
        )
        settled = settle_round(start, {**answers, **failed}, LateReplySpec())
        self._clock_s = settled.end_s
        return settled

    def _write_experiment(self, rounds: int) -> None:
        """Write what is known of the run, which its readers need, its wall time so far and its real boards."""
        assert self._folder is not None
        assert self._began_s is not None
        experiment = Experiment(
            name=self._name,
            rounds=rounds,
            backend="flower",
            fleet=tuple(FleetEntry(device=device, count=count) for device, count in self._devices.items()),
            workload=self._work or WorkloadSpec(task=APP_TASK),
            policy=self._policy,
            strategy=StrategySpec(name=type(self._inner).__name__),
        )
        known = experiment.model_dump(mode="json", exclude_unset=True)  # the rest is the app's own, and not known here
        write_text(self._folder / RUN_YAML, yaml.safe_dump(known, sort_keys=False))
        write_json(self._folder / SUMMARY, {"wall_s": self._now_s() - self._began_s, "real_boards": self._real_boards})


def _open_tables(folder: Path) -> RunTables:
    where = f"{WRAPPER}: folder"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(where, f"{folder.absolute()}: {error.strerror}", "a new folder that can be made") from error
    tables = RunTables(folder)
    if tables.rounds:
        tables.close()
        raise BadInput(where, f"{folder.absolute()}, which holds the rows of a run", "a new folder")
    return tables


def _drop_unshared_metrics(replies: Sequence[Message]) -> None:
    """Remove time and energy from the metrics unless all nodes report them: Flower refuses nodes that differ."""
    records = [
        metrics for reply in replies if not reply.has_error() for metrics in reply.content.metric_records.values()
    ]
    if all(SECONDS in metrics for metrics in records):
        return
    for metrics in records:
        for name in (SECONDS, JOULES):
            if name in metrics:
                del metrics[name]


def _read_place(board: str) -> int:
    """Return the number at the end of an emulated board's name, so that boards are named in the order of partitions."""
    number = board.rpartition("-")[2]
    return int(number) if number.isdecimal() and len(number) < MAX_DIGITS else 0


def _find_error(replies: Sequence[Message], node: int) -> str:
    errors = [reply for reply in replies if reply.has_error() and reply.metadata.src_node_id == node]
    return f"{errors[0].error.code}: {errors[0].error.reason}" if errors else "no answer"


def _find_metric(records: Iterable[MetricRecord | None], ends: tuple[str, ...]) -> float | None:
    """Return the first metric whose name ends so, from the first record that has one; None without any."""
    values = (
        float(value)
        for record in records
        for name, value in (record or {}).items()
        if str(name).lower().endswith(ends) and isinstance(value, int | float)
    )
    return next(values, None)


def parse_work(text: str) -> WorkloadSpec | None:
    """Return what a node says of the app's training; None if it is malformed: a node must not end the run."""
    try:
        return WorkloadSpec.model_validate({"task": APP_TASK, **parse_json(text)})
    except (FedgeError, ValueError, TypeError):
        return None

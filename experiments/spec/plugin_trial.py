"""Trial of the user's own policy and selector before a run: they are called once as in its first round."""

from __future__ import annotations

from experiments.spec.user_plugins import import_apart
from fedge.decisions.candidate_modes import mask_candidates
from fedge.decisions.planning.round_plan import plan_round
from fedge.decisions.policies import POLICIES, load_policy
from fedge.decisions.selection import SELECTORS, load_selector
from fedge.devices.board_kinds import build_kind, build_knowledge, load_references
from fedge.devices.catalogue import is_catalogued
from fedge.experiment import Experiment, FleetBoard, list_boards
from fedge.modes import build_front
from fedge.predictors import load_predictor
from fedge.seeds import make_generator
from fedge.types import ClientStatus, DeviceSpec, Front, Modes, Predictions, SelectionContext

TRIAL_STEPS, TRIAL_LINK_S, TRIAL_SAMPLES = 10, 1.0, 100
"""A round of the trial. Any would do: what is looked for are results of another type, and errors."""


def try_own_functions(experiment: Experiment) -> None:
    """Call the user's own policy and selector with what the first round would give them.

    Copies of their modules are called, so that a counter in a module starts the run as its file says. This is why a
    plug-in is imported twice before a run: what a call changes in a module cannot be undone, only left behind.

    Raises:
        BadInput: In one line, if one of them fails or returns something that a round cannot use.
    """
    policy, selection = experiment.policy, experiment.selection
    own_policy = policy.name not in POLICIES and not policy.name.startswith("preset:")
    if not own_policy and selection.name in SELECTORS:
        return
    with import_apart(experiment.plugins):
        _call_own_functions(experiment, own_policy)


def _call_own_functions(experiment: Experiment, own_policy: bool) -> None:
    policy, selection = experiment.policy, experiment.selection
    boards = [board for board in list_boards(experiment) if is_catalogued(board.entry.device)]
    if not boards:  # nothing is known about them before they answer
        return
    predictions, spec, front = _predict_first_round(experiment, boards[0])
    if own_policy:
        goal = plan_round(policy, {boards[0].name: front}, [boards[0].name]).goals[boards[0].name]
        load_policy(policy.name, "policy.name")(predictions, front, goal, spec)
    if selection.name not in SELECTORS:
        clients = [ClientStatus(board.name, front=front, samples=TRIAL_SAMPLES) for board in boards]
        count = len(boards) if selection.count is None else selection.count
        context = SelectionContext(1, count=count, options=selection.options, policy=policy.name, limits=policy.limits)
        load_selector(selection.name)(clients, context, make_generator(experiment.seed, 1, "select"))


def _predict_first_round(experiment: Experiment, board: FleetBoard) -> tuple[Predictions, DeviceSpec, Front]:
    """Return a board's predictions without measurements, its description and its offer."""
    kind = build_kind(board, experiment.workload)
    knowledge = build_knowledge(kind, load_references(board, experiment.workload), None)
    modes = Modes(kind.average.modes.knobs[mask_candidates(kind.average.modes)])
    predictions = load_predictor(experiment.predictor, knowledge).fit([]).predict(modes)
    front = build_front(
        predictions, TRIAL_STEPS, idle_w=float(predictions.power_w.min()) / 2, link_s=TRIAL_LINK_S, maxn=kind.spec.maxn
    )
    return predictions, kind.spec, front

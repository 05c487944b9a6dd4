"""Which mode a round tries next, and for how many of its minibatches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedge.explorers import improving
from fedge.rounds.course import Course
from fedge.rounds.learning import prediction_of
from fedge.rounds.player import Player
from fedge.rounds.view import View
from fedge.types import Measurement, PowerMode


def next_trial(course: Course, view: View) -> tuple[PowerMode, int] | None:
    """The mode to try next and for how many minibatches; None when the round has no deadline or no room for it."""
    exploration, room = course.player.exploration, view.room
    if room is None or exploration.share == 0 or course.trials >= exploration.probes:
        return None
    mode = _worth_trying(course.player, view, course.own, room)
    if mode is None:
        return None
    steps = int(improving.probe_steps(np.array([prediction_of(view.predictions, mode).step_s]), room)[0])
    tried = course.total - course.left + steps
    if steps >= course.left or (view.known and tried > exploration.share * course.total):
        return None
    return mode, steps


def _worth_trying(player: Player, view: View, own: Sequence[Measurement], room: improving.Room) -> PowerMode | None:
    """The fastest mode first, then a few that teach much, then what it would work in, then what may save most."""
    if not view.known:
        return player.maxn
    if player.exploration.modes is not None and len({m.mode for m in own}) >= player.exploration.modes:
        return None
    telling = improving.telling(view.predictions, view.front.idle_w, view.known, room)
    if len(telling) and player.explorer is not None:
        explorer = player.explorer(telling)
        explorer.tell(own)
        if len(asked := explorer.ask(1)):
            return asked[0]
    for mode in view.wished:
        if mode not in view.known and improving.is_safe(view.predictions, mode, room):
            return mode
    return improving.saving(view.predictions, view.front.idle_w, view.known, room)

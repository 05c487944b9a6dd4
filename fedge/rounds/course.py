"""A round as it goes on: the parts of its work that are done, and doing more of it, metered, until it has to end."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from fedge.interfaces import Training
from fedge.rounds.player import Player
from fedge.rounds.work import together, warm_up_steps
from fedge.types import Goal, LinkUse, Measurement, Mix, PowerMode


@dataclass(slots=True, eq=False)
class Course:
    """What a round began with, and what became of it so far.

    ``earlier`` are the board's own measurements before the round, ``shared`` those of other boards that it believes.
    ``guessed_s`` are the seconds per minibatch in the fastest mode as guessed before anything was measured; None when
    something was.
    """

    player: Player
    goal: Goal
    link: LinkUse
    training: Training
    earlier: tuple[Measurement, ...]
    shared: tuple[Measurement, ...]
    guessed_s: float | None = None
    parts: list[Measurement] = field(default_factory=list)
    mixed: Measurement | None = None
    """The part in the slower mode, once there is one."""
    trials: int = 0
    """How many of the parts were trials; they come first."""
    stopped: bool = False
    """Whether the round's end came before the work's, or with it."""

    @property
    def own(self) -> tuple[Measurement, ...]:
        """All the board's own measurements."""
        return (*self.earlier, *self.parts)

    @property
    def total(self) -> int:
        """Minibatches of the whole round."""
        return round(self.goal.steps)

    @property
    def left(self) -> int:
        """Minibatches still to do."""
        return self.total - sum(part.steps for part in self.parts)

    @property
    def spent_s(self) -> float:
        """Seconds of work so far, and of what was lost before."""
        return sum(part.work_s for part in self.parts) if self.parts else self.player.lost_s

    @property
    def warm_up(self) -> float:
        """Minibatches' worth of warm-up that is still to come."""
        return 0.0 if self.parts else warm_up_steps(self.earlier)

    def try_out(self, mode: PowerMode, steps: int) -> None:
        """Do some minibatches in a mode of which little is known."""
        self._work(mode, steps)
        self.trials += 1

    def may_mix(self, mix: Mix) -> bool:
        """Whether a part in a slower mode comes now: the first such part, or more of it right after it.

        What it really took is known by then, so that more of it may fit than was safe before.
        """
        return mix.steps < self.left and (self.mixed is None or self.mixed.mode == mix.mode)

    def work_slowly(self, mix: Mix) -> None:
        """Do a part in the slower mode."""
        self._work(mix.mode, mix.steps)
        part = self.parts.pop()
        if self.mixed is not None:
            part = together(self.parts.pop(), part)
        self.mixed = part
        self.parts.append(part)

    def finish(self, mode: PowerMode) -> None:
        """Do all that is left."""
        self._work(mode, self.left)

    def _work(self, mode: PowerMode, steps: int) -> None:
        """``steps`` minibatches in ``mode``, metered; fewer when the round has to end."""
        device = self.player.device
        with device.in_mode(mode):
            measured = device.measure(self.player.workload, steps, self.training.advance, self._limit_s())
        if not self.parts and self.player.lost_s:
            measured = dataclasses.replace(measured, lost_s=self.player.lost_s)
        self.parts.append(measured)
        limit_s = self._limit_s()
        self.stopped = measured.steps < steps or self.left == 0 or (limit_s is not None and limit_s <= 0.0)

    def _limit_s(self) -> float | None:
        """Seconds left for work before the upload must begin."""
        stop_s = self.goal.stop_s
        return None if stop_s is None else stop_s - self.link.down_s - self.link.up_s - self.spent_s

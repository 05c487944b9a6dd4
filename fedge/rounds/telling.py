"""A round that tells how far it is: a device and a training in front of those that work, which change nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedge.interfaces import Device, Training
from fedge.rounds.player import Player
from fedge.telemetry.telling import Teller
from fedge.types import DeviceSpec, Measurement, PowerMode, TrainResult, Workload


class TellingDevice:
    """A ``fedge.interfaces.Device``; of ``steps`` minibatches in all, at most ``trial_steps`` are trials.

    A part that is not all that is left, and early enough to be a trial, is told as one.
    """

    def __init__(self, device: Device, teller: Teller, steps: int, trial_steps: float) -> None:
        self._device, self._teller = device, teller
        self._steps, self._trial_steps, self._done = steps, trial_steps, 0

    @property
    def spec(self) -> DeviceSpec:
        return self._device.spec

    def idle_w(self, mode: PowerMode) -> float:
        return self._device.idle_w(mode)

    @contextmanager
    def in_mode(self, mode: PowerMode) -> Iterator[None]:
        with self._device.in_mode(mode):
            self._teller.say(mode=str(mode))
            yield

    def measure(
        self, workload: Workload, steps: int, work: Callable[[int], object], limit_s: float | None = None
    ) -> Measurement:
        after = self._done + steps
        self._teller.say("probing" if after < self._steps and after <= self._trial_steps else "training")
        measured = self._device.measure(workload, steps, work, limit_s)
        self._done += measured.steps
        self._teller.say(power_w=measured.power_w, temperature_c=measured.peak_c)
        return measured


def told_by(player: Player, teller: Teller, steps: int) -> Player:
    """The player of a round of ``steps`` minibatches, whose device tells."""
    trial_steps = player.exploration.share * steps
    return dataclasses.replace(player, device=TellingDevice(player.device, teller, steps, trial_steps))


class TellingTraining:
    """A ``fedge.interfaces.Training``."""

    def __init__(self, training: Training, teller: Teller) -> None:
        self._training, self._teller = training, teller

    def advance(self, steps: int) -> None:
        self._training.advance(steps)
        self._teller.worked(steps)

    def result(self) -> TrainResult:
        self._teller.say("sending")
        return self._training.result()

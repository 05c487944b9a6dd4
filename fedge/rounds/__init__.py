"""One client's round without Flower: fit, predict, choose, set the mode, train, measure, offer the next front."""

from __future__ import annotations

from fedge.rounds.candidates import above_floor, choosable, choosable_with
from fedge.rounds.learning import believed, offer
from fedge.rounds.player import EXPLORER, WATTS, Played, Player
from fedge.rounds.playing import play
from fedge.rounds.reporting import report_of, state_after
from fedge.rounds.work import steps_of, warm_up_steps

__all__ = [
    "EXPLORER",
    "WATTS",
    "Played",
    "Player",
    "above_floor",
    "believed",
    "choosable",
    "choosable_with",
    "offer",
    "play",
    "report_of",
    "state_after",
    "steps_of",
    "warm_up_steps",
]

"""Answers of emulated clients as they are sent: after the experiment's mods, with their updates encoded."""

from __future__ import annotations

from collections.abc import Sequence

from fedge.client.answers import Answer
from fedge.client.emulated import ClientTask, answer_together
from fedge.flower.update_codec import encode_answer


def answer_tasks(tasks: Sequence[ClientTask]) -> list[Answer]:
    """Answer requests to different emulated clients, who predict together; the answers are in the same order."""
    return [_prepare_answer(task, answer) for task, answer in zip(tasks, answer_together(tasks), strict=True)]


def _prepare_answer(task: ClientTask, answer: Answer) -> Answer:
    if task.experiment.mods:
        from fedge.flower.client_mods import apply_mods  # Flower takes a second to import

        answer = apply_mods(task.experiment, task.request, task.arrays, answer)
    return encode_answer(task.request, task.arrays, task.residual, answer)

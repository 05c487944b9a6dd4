"""Sizes of a task's network, and the errors of a task that cannot be used; imports neither torch nor numpy."""

from typing import NamedTuple, Tuple

from fedge.worker.refusal import Refusal

VOCABULARY = 8192
"""Numbers of words that a text is made of; 0 is padding. A word's number is a hash, so that no list of words has to
travel, and some words share one."""


class BadTask(Refusal):
    """An unknown task name, or a task file with an error in it."""

    kind = "bad-source"


class WrongHash(BadTask):
    """A task file whose SHA-256 is not the announced one."""

    kind = "hash"


class Shape(NamedTuple):
    """Input and output of a network.

    Attributes:
        side: Height and width of an image in pixels.
        sample: Shape of a sample that is no image, whose first and last sizes are then ``channels`` and ``side``;
            empty for images.
    """

    channels: int
    side: int
    classes: int
    sample: Tuple[int, ...] = ()

    @property
    def input(self) -> Tuple[int, ...]:
        """Shape of a sample, image or not."""
        return self.sample or (self.channels, self.side, self.side)

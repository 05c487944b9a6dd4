"""Small colour images generated from a seed: ten classes of a striped shape at a random place.

Class c is shape c // 2 (disc, square, triangle, ring, cross) with stripes across (c even) or along it (odd). Position,
size, rotation, colours, phase of the stripes and noise are random for every image, so that only shape and stripes
determine the class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedge.types import Floats

CLASSES = 10
SIDE = 32
TRAIN_IMAGES = 1_500
TEST_IMAGES = 500
SEED = 0
RADIUS = (9.0, 12.0)
# Range of half the size of a shape, pixels. The numbers of this file make the task neither trivial nor hopeless: a
# small network learns the classes in tens of rounds and keeps some errors.
TURN = 0.2
"""Largest rotation of a shape with its stripes, radians."""
PERIODS = 2.0
"""Periods of the stripes over half the size of a shape."""
NOISE = 15.0
"""Standard deviation of every pixel's noise, in pixel values from 0 to 255."""
DARK, BRIGHT = 130.0, 140.0
"""Largest channel value of a dark colour and smallest of a bright one."""

Shape = Callable[["Floats", "Floats"], "NDArray[np.bool_]"]


def make_images(count: int, rng: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Generate images with balanced classes.

    Returns:
        Images, uint8 of shape (count, 3, 32, 32), and labels, shape (count,); class counts differ by at most one.
    """
    labels = rng.permutation(np.arange(count, dtype=np.int64) % CLASSES)
    across, down = _pixel_coordinates(count, rng)
    inside = np.select([labels[:, None, None] // 2 == i for i in range(len(SHAPES))], [s(across, down) for s in SHAPES])
    bright = _stripe_mask(labels[:, None, None] % 2 == 0, across, down, rng)
    part = np.where(inside, np.where(bright, 1, 2), 0)
    pixels = _draw_colours(count, rng)[np.arange(count)[:, None, None], part] + rng.normal(
        0.0, NOISE, (count, SIDE, SIDE, 3)
    )
    return np.rint(pixels.clip(0.0, 255.0)).astype(np.uint8).transpose(0, 3, 1, 2).copy(), labels


def _pixel_coordinates(count: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return every pixel in the coordinates of its image's shape (centre 0, half its size 1), each (count, 32, 32)."""
    radius = rng.uniform(*RADIUS, (count, 1, 1))
    centre = rng.uniform(radius, SIDE - 1 - radius, (2, count, 1, 1))
    turn = rng.uniform(-TURN, TURN, (count, 1, 1))
    y, x = np.mgrid[:SIDE, :SIDE].astype(np.float64)[:, None] - centre
    return (np.cos(turn) * x + np.sin(turn) * y) / radius, (np.cos(turn) * y - np.sin(turn) * x) / radius


def _stripe_mask(
    upright: NDArray[np.bool_], across: Floats, down: Floats, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Return where the stripes are, shape (count, 32, 32): across the shape or along it."""
    phase = rng.uniform(0.0, 2.0 * np.pi, (len(across), 1, 1))
    bright: NDArray[np.bool_] = np.sin(2.0 * np.pi * PERIODS * np.where(upright, across, down) + phase) > -0.3
    return bright


def _draw_colours(count: int, rng: np.random.Generator) -> Floats:
    """Draw the colours of background, stripes (bright) and gaps, shape (count, 3 colours, 3 channels)."""
    low, high = np.array([(0.0, DARK), (BRIGHT, 255.0), (0.0, DARK)]).T[:, :, None]
    colours: Floats = rng.uniform(low, high, (count, 3, 3))
    return colours


def _disc(x: Floats, y: Floats) -> NDArray[np.bool_]:
    return np.hypot(x, y) < 1.0


def _square(x: Floats, y: Floats) -> NDArray[np.bool_]:
    return np.maximum(np.abs(x), np.abs(y)) < 0.85


def _triangle(x: Floats, y: Floats) -> NDArray[np.bool_]:
    return (y < 0.8) & (y > 2.0 * np.abs(x) - 1.0)


def _ring(x: Floats, y: Floats) -> NDArray[np.bool_]:
    return (np.hypot(x, y) < 1.0) & (np.hypot(x, y) > 0.5)


def _cross(x: Floats, y: Floats) -> NDArray[np.bool_]:
    return (np.minimum(np.abs(x), np.abs(y)) < 0.35) & (np.maximum(np.abs(x), np.abs(y)) < 1.0)


SHAPES: tuple[Shape, ...] = (_disc, _square, _triangle, _ring, _cross)

"""What a real board is doing for a run, told to its telemetry service, where the board has one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedge.node.settings import NodeSettings
from fedge.telemetry.live import Progress
from fedge.telemetry.telling import Teller
from fedge.wire import Ask


@contextmanager
def telling(settings: NodeSettings, ask: Ask, steps: int, wall_s: Callable[[], float] = time.time) -> Iterator[Teller]:
    """The teller of one round of ``steps`` minibatches, which ends as done or failed."""
    begun = Progress(settings.board, 0.0, "fetching", run=ask.run, round=ask.round, steps=steps)
    teller = Teller(settings.live_dir if settings.telemetry else None, begun, wall_s)
    teller.say()
    try:
        yield teller
        teller.end("done")
    except BaseException as error:
        teller.end("failed", error=str(error))
        raise

"""What an emulated board is doing now, told in the run's folder: seldom, and without any effect on what it does."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fedge.telemetry.live import Progress
from fedge.telemetry.telling import Teller

LIVE = "live"
"""The folder in a run's folder."""
EVERY_S = 0.2
"""Chosen by us: emulated rounds may take milliseconds, and a file's writing a tenth of one."""
REMEMBERED = 4096

_last_s: OrderedDict[tuple[Path, str], float] = OrderedDict()
"""When a board told something last in this process, unix time: over its rounds, of which each may be very short."""


@contextmanager
def telling(run_folder: Path | None, begun: Progress, wall_s: Callable[[], float]) -> Iterator[Teller]:
    """The teller of one round of a run, which ends as done or failed; None: nobody listens."""
    if run_folder is None:
        yield Teller(None, begun, wall_s)
        return
    key = run_folder, begun.board
    begun = replace(begun, run=run_folder.name)
    last_s = _last_s.get(key, float("-inf"))
    teller = Teller(run_folder / LIVE, begun, wall_s, EVERY_S, states_at_once=False, last_s=last_s)
    try:
        yield teller
        teller.end("done")
    except BaseException as error:
        teller.end("failed", error=str(error))
        raise
    finally:
        _last_s[key] = teller.told_s
        _last_s.move_to_end(key)
        while len(_last_s) > REMEMBERED:
            _last_s.popitem(last=False)

"""Progress reporting of a client's round; it does not change any result."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fedge.telemetry.live_records import BoardProgress
from fedge.telemetry.progress_files import ProgressReporter
from fedge.telemetry.run_folder import LIVE

REPORT_PERIOD_S = 0.2
REPORT_PERIOD_PER_CLIENT_S = 0.1
# Emulated rounds may take milliseconds, and a file system may take three for each file: of a hundred clients each is
# reported every ten seconds.
MAX_REMEMBERED_BOARDS = 4096

_last_report_s: OrderedDict[tuple[Path, str], float] = OrderedDict()
"""Unix time of each board's last report in this process, kept across rounds because a round may be very short."""


@contextmanager
def finish_reporter(reporter: ProgressReporter) -> Iterator[ProgressReporter]:
    """Yield the reporter of one round, which ends with the state ``done`` or ``failed``."""
    try:
        yield reporter
        reporter.finish("done")
    except BaseException as error:
        reporter.finish("failed", error=str(error))
        raise


@contextmanager
def open_emulated_reporter(
    run_folder: Path | None, begun: BoardProgress, wall_s: Callable[[], float], clients: int = 1
) -> Iterator[ProgressReporter]:
    """Open the reporter of one round of an emulated client.

    Args:
        run_folder: Folder of the run; None disables reporting.
    """
    if run_folder is None:
        yield ProgressReporter(None, begun, wall_s)
        return
    key = run_folder, begun.board
    begun = replace(begun, run=run_folder.name)
    last_s = _last_report_s.get(key, float("-inf"))
    period_s = max(REPORT_PERIOD_S, REPORT_PERIOD_PER_CLIENT_S * clients)
    reporter = ProgressReporter(run_folder / LIVE, begun, wall_s, period_s, states_at_once=False, last_s=last_s)
    try:
        with finish_reporter(reporter):
            yield reporter
    finally:
        _last_report_s[key] = reporter.told_s
        _last_report_s.move_to_end(key)
        while len(_last_report_s) > MAX_REMEMBERED_BOARDS:
            _last_report_s.popitem(last=False)

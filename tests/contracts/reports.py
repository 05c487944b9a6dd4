"""Small reports and answers for tests of the server: one board, its work, its link, its fronts."""

import dataclasses

from fedge.types import Decision, Front, FrontPoint, LinkUse, Measurement, PowerMode, Prediction, RoundReport
from fedge.wire import ClientState, ReplyMessage

MAXN, LOW = PowerMode(4, 1479.0, 921.6, 1600.0), PowerMode(2, 1132.8, 460.8, 800.0)
IDLE_W, MAXN_IDLE_W = 2.0, 3.0
LINK = LinkUse(0.5, 1.5, 1.0, moved_mb=80.0, down_mb=50.0)


def front(scale: float = 1.0) -> Front:
    """MAXN: 10 s at 9 W; LOW: 20 s at 4 W; both times ``scale``."""
    fast = FrontPoint(MAXN, 10.0 * scale, 90.0 * scale)
    return Front(
        (fast, FrontPoint(LOW, 20.0 * scale, 80.0 * scale)), fast, IDLE_W, LINK.down_s + LINK.up_s, MAXN_IDLE_W
    )


def report(board: str, work_s: float, power_w: float = 9.0, truth: Front | None = None, steps: int = 10) -> RoundReport:
    """A board that worked ``work_s`` at ``power_w`` in MAXN."""
    measured = Measurement(MAXN, steps, work_s / steps, power_w, 40.0)
    return RoundReport(
        board=board,
        device="nano",
        round=1,
        decision=Decision(MAXN, "Top of every knob."),
        measured=measured,
        probes=(),
        predicted=Prediction(MAXN, work_s / steps, power_w, 0.1, 0.1),
        link=LINK,
        idle_w=IDLE_W,
        front=front(),
        true_front=truth,
        samples=100,
        loss=0.5,
        accuracy=0.8,
        temperature_c=40.0,
        prior_time_ape=None,
        prior_power_ape=None,
    )


def answer(board: str, work_s: float, power_w: float = 9.0, truth: Front | None = None) -> ReplyMessage:
    """The answer with that report."""
    said = report(board, work_s, power_w, truth)
    return ReplyMessage(board, said.front, said, ClientState((said.measured,), 40.0, said.busy_s))


def report_of_three_parts() -> RoundReport:
    """A probe of 16 s at 4 W, then 12 s at 20 W in a second mode, then 20 s at 9 W."""
    probe = Measurement(LOW, 4, 3.5, 4.0, warm_up_s=2.0)
    mixed = Measurement(LOW, 5, 2.0, 20.0, switch_s=2.0)
    return dataclasses.replace(report("a", 20.0), probes=(probe,), mixed=mixed)

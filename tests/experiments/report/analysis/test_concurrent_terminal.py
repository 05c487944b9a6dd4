"""What is shown of concurrent training and inference: a turn's figures and latencies, and the scores of strategies."""

import io
from dataclasses import replace

from contracts.shown import shown_text
from rich.console import Console

from experiments.report.analysis import concurrent_terminal
from experiments.report.analysis.concurrent_terminal import print_strategies
from fedge.serving.side_by_side import ALONE, MANAGED, SideBySideOutcome
from fedge.studies.serving.strategy_study import StrategyRow
from fedge.worker.inference_interleaver import ServiceStatistics
from fedge.worker.latency_histogram import LatencyHistogram


def outcome(latencies_s=(0.02, 0.02, 0.2), budget_s=0.1, dropped=0) -> SideBySideOutcome:
    histogram = LatencyHistogram(budget_s)
    for one in latencies_s:
        histogram.add(one)
    told = ServiceStatistics(
        len(latencies_s) + dropped, len(latencies_s), histogram.late, dropped, 2, 0.1, 0, histogram
    )
    return SideBySideOutcome(MANAGED, 2.0, 30, told)


def shown(console_of_file: bool, one: SideBySideOutcome, passed_s: float) -> str:
    out, now = io.StringIO(), [0.0]
    console = Console(file=out, force_terminal=not console_of_file, width=120)
    with concurrent_terminal.SideBySideProgress("a + b", 10.0, console, now_s=lambda: now[0]) as seen:
        now[0] = passed_s
        seen(one)
    return out.getvalue()


def test_a_line_has_latencies_violations_and_training():
    text = concurrent_terminal.format_outcome(outcome(dropped=1))

    assert "p50/p95/p99 20.4/200/200 ms" in text
    assert "violations 50.00 %  dropped 1" in text
    assert "training 15.0 steps/s" in text


def test_training_alone_has_no_latencies():
    assert concurrent_terminal.format_outcome(SideBySideOutcome(ALONE, 2.0, 30, None)) == "training 15.0 steps/s"


def test_the_bars_have_the_budget_between_what_was_in_time_and_what_was_late():
    text = concurrent_terminal.format_histogram(outcome().service.histogram)

    before, after = text.split("|", 1)
    assert "█" in before
    assert any(bar in after for bar in concurrent_terminal.BAR_GLYPHS[1:])


def test_a_single_late_answer_among_thousands_is_seen():
    histogram = LatencyHistogram(0.1)
    for latency_s in [0.02] * 5000 + [0.5]:
        histogram.add(latency_s)

    assert any(
        bar in concurrent_terminal.format_histogram(histogram).split("|", 1)[1]
        for bar in concurrent_terminal.BAR_GLYPHS[1:]
    )


def test_a_file_gets_a_plain_line_every_some_seconds():
    assert shown(console_of_file=True, one=outcome(), passed_s=1.0) == ""
    text = shown(console_of_file=True, one=outcome(), passed_s=6.0)
    assert text.startswith("managed  2/10 s  requests 3")
    assert text.count("\n") == 1


def test_a_terminal_gets_the_bars():
    assert "(| budget)" in shown(console_of_file=False, one=outcome(), passed_s=0.1)


ROW = StrategyRow(
    "gmd", "net+served", 40, 36, 0.0, 12.5, 10.0, 20.25, 11.75, 28, problems=41, solved_share=90.0, seconds=1.0
)


def strategies_text(*rows: StrategyRow, width: int = 160) -> str:
    return shown_text(print_strategies, rows, width=width)


def test_a_strategy_is_a_line_under_the_pair_and_family():
    text = strategies_text(ROW, replace(ROW, strategy="bs", seed=1))

    assert text.splitlines()[0].rstrip() == "net+served: training and inference, 41 problems"
    assert "seed" in text
    assert all(words in text for words in ("36/40", "90.0", "12.5", "20.2", "11.8"))
    assert "left out" not in text


def test_what_a_family_does_not_have_is_no_column():
    text = strategies_text(replace(ROW, family="infer", loss_mean=None, loss_median=None))

    assert "inference alone" in text
    assert "loss," not in text
    assert "loss," in strategies_text(replace(ROW, family="train", excess_mean=None))


def test_a_failed_strategy_has_no_figures():
    (line,) = [
        line
        for line in strategies_text(ROW, StrategyRow("bs", "net+served", error="no grid")).splitlines()
        if "bs" in line
    ]

    assert line.split() == ["bs", "(failed)", *["–"] * 9]


def test_the_title_says_how_many_modes_were_left_out():
    for count in (0, 52):
        words = " ".join(
            strategies_text(replace(ROW, modes_left_out=count)).split()
        )  # a title is folded to the table's width
        assert f"41 problems, {count} implausible modes excluded" in words

"""What strategies reached is one table per pair and family, with what the family has and what was left out."""

from __future__ import annotations

from dataclasses import replace

from contracts.shown import shown_text

from experiments.report.analysis.strategy_terminal import print_strategies
from fedge.studies.serving.strategy_study import StrategyRow

ROW = StrategyRow(
    "gmd", "net+served", 40, 36, 0.0, 12.5, 10.0, 20.25, 11.75, 28, problems=41, solved_share=90.0, seconds=1.0
)


def shown(*rows: StrategyRow, width: int = 160) -> str:
    return shown_text(print_strategies, rows, width=width)


def test_a_strategy_is_a_line_under_the_pair_and_family() -> None:
    text = shown(ROW, replace(ROW, strategy="bs", seed=1))

    assert text.splitlines()[0].rstrip() == "net+served: training and inference, 41 problems"
    assert "seed" in text
    assert all(words in text for words in ("36/40", "90.0", "12.5", "20.2", "11.8"))
    assert "left out" not in text


def test_what_a_family_does_not_have_is_no_column() -> None:
    text = shown(replace(ROW, family="infer", loss_mean=None, loss_median=None))

    assert "inference alone" in text
    assert "loss," not in text
    assert "loss," in shown(replace(ROW, family="train", excess_mean=None))


def test_a_failed_strategy_has_no_figures() -> None:
    (line,) = [
        line for line in shown(ROW, StrategyRow("bs", "net+served", error="no grid")).splitlines() if "bs" in line
    ]

    assert line.split() == ["bs", "(failed)", *["–"] * 9]


def test_the_title_says_how_many_modes_were_left_out() -> None:
    for count in (0, 52):
        words = " ".join(shown(replace(ROW, modes_left_out=count)).split())  # a title is folded to the table's width
        assert f"41 problems, {count} implausible modes excluded" in words


def test_a_failure_is_told_in_a_narrow_terminal() -> None:
    text = shown(ROW, StrategyRow("bs", "net+served", error="no grid"), width=80)

    assert "bs (failed)" in text
    assert "  solved: 36/40" in text
    assert "…" not in text

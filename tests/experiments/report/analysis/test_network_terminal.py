"""A ranking's verdict on each board is whole in every terminal, with its reason."""

import pytest
from contracts.shown import shown_text

from experiments.report.analysis.network_terminal import offers_table, print_board_selection
from fedge.analysis.board_selection import BoardLimits, BoardSelection, BoardSelectionOptions, select_board
from fedge.client.memory_scaling import estimate_usable_mb


@pytest.fixture(scope="module")
def selection() -> BoardSelection:
    """Boards of which some have too little memory, and some are too slow."""
    options = BoardSelectionOptions("resnet50", batch_size=64, objective="energy", limits=BoardLimits(15.0, 3000.0))
    return select_board(options, estimate_usable_mb)


@pytest.mark.parametrize("width", [40, 80, 160])
def test_no_width_drops_a_verdict_or_its_reason(selection, width):
    text = shown_text(print_board_selection, selection, width=width)
    unfit = [offer for offer in selection.offers if not offer.is_suitable]

    assert 0 < len(unfit) < len(selection.offers)
    assert "…" not in text
    for offer in unfit:
        (reason,) = [line for line in text.splitlines() if line.startswith(f"{offer.board} is not suitable: ")]
        assert all(limit in reason for limit in offer.broken)
        assert offer.memory.fits or "largest that fits" in reason or "not even one" in reason


def test_in_eighty_columns_the_verdict_follows_the_boards_name(selection):
    lines = shown_text(print_board_selection, selection, width=80).splitlines()

    for offer in selection.offers:
        verdict = "yes" if offer.is_suitable else "no"
        assert lines[lines.index(f"board: {offer.board}") + 1] == f"  suitable: {verdict}"


def test_numbers_are_exported_unrounded_without_their_marks(selection):
    head, first, *_ = offers_table(selection).csv.splitlines()

    assert head.startswith("board,suitable,rank,")
    assert "~" not in first
    assert "^" not in first

"""The ClientApp answers for the board of its node; for emulated boards see ``EmulatingNodes``."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="the ClientApp is Flower's")

from clients.app import _compute_answer
from fedge.errors import BadInput
from fedge.experiment import Experiment
from fedge.wire import RequestMessage

EXPERIMENT = Experiment.model_validate({"fleet": [{"device": "orin-nano", "count": 2}]})


def test_a_node_is_the_board_of_its_settings(tmp_path):
    settings = tmp_path / "node.yaml"
    settings.write_text("board: bench-7\n", encoding="utf-8")

    assert _compute_answer(EXPERIMENT, {"settings": str(settings)}, RequestMessage("hello"), None)[0].board == "bench-7"


def test_a_board_without_settings_says_which_file_is_missing(tmp_path):
    with pytest.raises(BadInput, match=r"node.yaml: got no such file; .*docs/how-to/boards.md"):
        _compute_answer(EXPERIMENT, {"settings": str(tmp_path / "node.yaml")}, RequestMessage("hello"), None)

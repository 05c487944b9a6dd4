"""A rotation leaves out what it says, judges every model on it alone, and says why a model refuses."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from contracts.boards import made_up_table, write_table
from contracts.measured_steps import write_folder

from fedge.costs.cost_profile import load_calibrated_inference, load_calibrated_training
from fedge.costs.layered_work import find_family
from fedge.errors import BadInput, FedgeError
from fedge.studies.transfer_models import (
    UNPROMISED,
    JudgedTable,
    TransferRow,
    choose_with_confidence,
    choose_with_margin,
    list_hidden_names,
    list_remaining,
    mark_refusal,
    read_judged_tables,
    score_choice,
    score_quantity,
)
from fedge.studies.transfer_study import TransferOptions, build_transfer_study, summarize_transfer
from fedge.types import Predictions, ProfileTable

BLANK = TransferRow("layers", "workload", "table", "time")


def judged(workload: str, board: str = "tx2", network: str = "", batch_size: int = 16) -> JudgedTable:
    table = made_up_table(every=30, device=board, workload=workload, batch_size=batch_size)
    return JudgedTable(table, "train", board, network or workload)


@pytest.mark.parametrize(
    ("network", "family"),
    [
        ("resnet18", "resnet"),
        ("mobilenet_v3_large", "mobilenet"),
        ("mobilenetv2", "mobilenet"),
        ("vit_b_16", "vit"),
        ("yolov8n", "yolo"),
        ("squeezenet", "squeezenet"),
        ("7b", "7b"),
    ],
)
def test_a_family_is_the_name_without_version_and_size(network, family):
    assert find_family(network) == family


def test_what_remains_shares_nothing_with_what_is_left_out():
    one = judged("resnet18-a", network="resnet18")
    every = [
        one,
        judged("resnet18-a", board="nano", network="resnet18"),
        judged("resnet18-a", network="resnet18", batch_size=4),
        judged("resnet50-b", network="resnet50"),
        judged("vit-c", board="nano", network="vit_b_16"),
    ]

    def remaining(case: str) -> list[int]:
        return [every.index(other) for other in list_remaining(one, case, every)]

    assert remaining("workload") == [3, 4]
    assert remaining("board") == [4]
    assert remaining("family") == [4]
    assert remaining("batch") == [2, 3, 4]


def test_a_left_out_board_or_family_hides_its_profiles_and_timed_steps():
    one = judged("resnet18-imagenet", board="agx-xavier", network="resnet18")

    assert list_hidden_names(one, "workload") == {"resnet18-imagenet"}
    assert list_hidden_names(one, "board") == {"resnet18-imagenet", "agx-xavier"}
    family = list_hidden_names(one, "family")
    assert {"resnet50-imagenet", "resnet50-tinyimagenet224", "resnet18", "resnet50"} <= family
    assert not any("mobilenet" in name or "vit" in name for name in family)


def test_a_renamed_copy_of_a_calibrated_table_hides_the_original():
    profile = next(p for p in (*load_calibrated_training(), *load_calibrated_inference()) if p.evidence)
    table = made_up_table(every=30, workload="copy", sha256=profile.evidence.sha256)

    assert list_hidden_names(JudgedTable(table, "train", "tx2", "copy"), "workload") == {"copy", profile.workload}


def test_errors_bias_and_coverage_are_those_of_a_count_by_hand():
    predicted, measured = np.array([1.1, 0.9, 1.0, 2.0]), np.ones(4)

    row = score_quantity(BLANK, predicted, measured, 0.1)

    assert row.error == pytest.approx(30.0)
    assert row.bias == pytest.approx(25.0)
    assert (row.covered, row.bounded) == (75.0, 100.0)


def known(table: ProfileTable) -> Predictions:
    return Predictions(table.modes, table.step_s, table.power_w, np.zeros(len(table.modes)), np.zeros(len(table.modes)))


def test_true_predictions_choose_what_the_oracle_chooses():
    table = made_up_table()

    row = score_choice(BLANK, table, known(table), choose_with_margin(0.0))

    assert row.slowdown is not None
    assert row.slowdown <= 1.05
    assert row.missed == 0.0
    assert row.regret == pytest.approx(0.0, abs=1.0)  # a lowered knob has to save 1 %
    assert row.saving == pytest.approx(row.oracle_saving, abs=1.0)


def test_a_table_without_maxn_has_no_slowdown():
    whole = made_up_table()
    kept = ~(whole.modes.knobs == whole.modes.knobs.max(axis=0)).all(axis=1)
    table = made_up_table(modes=type(whole.modes)(whole.modes.knobs[kept]))

    assert score_choice(BLANK, table, known(table), choose_with_margin(0.0)) is None


def test_a_choice_by_spreads_stays_at_maxn_where_nothing_is_known_beyond_it():
    table = made_up_table()
    unsure = np.where((table.modes.knobs == table.modes.knobs.max(axis=0)).all(axis=1), 0.01, 0.5)

    row = score_choice(BLANK, table, replace(known(table), step_s_sd_log=unsure), choose_with_confidence)

    assert (row.slowdown, row.saving, row.missed) == (1.0, 0.0, 0.0)


def test_a_summary_weighs_tables_equally_and_counts_refusals():
    rows = [
        TransferRow("layers", "board", "a", "time", rows=10, error=10.0, bias=10.0),
        TransferRow("layers", "board", "a", "time", seed=1, rows=10, error=20.0, bias=-10.0),
        TransferRow("layers", "board", "b", "time", rows=1, error=5.0, bias=5.0),
        TransferRow("layers", "board", "c", "time", refused="unknown"),
    ]

    (one,) = summarize_transfer(rows)

    assert (one.tables, one.error, one.worst, one.bias, one.refused) == (3, 10.0, 15.0, 2.5, pytest.approx(100.0 / 3.0))
    assert one.regret is None


def test_variants_of_a_table_are_summarised_apart():
    rows = [
        TransferRow("memory", "workload", "tx2/a", "memory", variant=variant, error=error)
        for variant, error in (("", 4.0), ("unpruned", 8.0))
    ]

    assert [(one.variant, one.tables, one.error) for one in summarize_transfer(rows)] == [
        ("", 1, 4.0),
        ("unpruned", 1, 8.0),
    ]


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    write_table(tmp_path / "agx-orin" / "train" / "resnet18-imagenet.csv", rows=slice(None, None, 9))
    write_table(tmp_path / "agx-orin" / "infer" / "net.csv", rows=slice(None, None, 9), batches=(1, 16))
    (tmp_path / "perf4sight-tx2").mkdir()
    write_folder(tmp_path / "perf4sight-tx2")
    return tmp_path


def test_every_model_is_judged_on_every_table_that_it_may_see(tables):
    study = build_transfer_study(
        TransferOptions(tables, ("predictor", "layers", "roofline", "memory"), modes="0,3", seeds=1)
    )

    rows = study.run(lambda _: None, 1)

    judged = {(row.part, row.left_out, row.judged.partition(" ")[0]) for row in rows}
    assert {
        ("predictor", case, "agx-orin-64gb/train/resnet18-imagenet") for case in ("workload", "board", "family")
    } <= judged
    assert {row.modes for row in rows if row.part == "predictor" and row.refused is None} == {0, 3}
    memory = {(row.judged, row.variant) for row in rows if row.part == "memory"}
    assert memory == {(f"tx2/{name}", variant) for name in ("deep", "small", "wide") for variant in ("", "unpruned")}
    refusals = {row.refused for row in rows if row.judged.startswith("agx-orin-64gb/infer") and row.part == "roofline"}
    assert any("layers are known" in str(reason) for reason in refusals)


def test_steps_of_several_boards_are_judged_by_the_boards_full_names(tables):
    (tables / "perf4sight-orin-nano").mkdir()
    write_folder(tables / "perf4sight-orin-nano")

    study = build_transfer_study(TransferOptions(tables, ("memory",)))

    assert {cell.judged.partition("/")[0] for cell in study.cells} == {"orin-nano", "tx2"}
    assert len(study.cells) == 6


def test_a_predictor_that_refuses_does_so_at_every_number_of_modes(tables):
    study = build_transfer_study(TransferOptions(tables, ("predictor",), modes="0,3", seeds=2))

    rows = study.run(lambda _: None, 1)

    refused = {(row.left_out, row.judged) for row in rows if row.refused is not None}
    assert refused
    for case, name in refused:
        of = [(row.modes, row.variant) for row in rows if (row.left_out, row.judged) == (case, name)]
        assert of == [(0, ""), (3, ""), (3, "front")]
    for one in summarize_transfer(rows):
        if one.quantity == "choice":
            assert one.modes in (0, 3)
            count = sum(case == one.left_out and f"/{one.kind}/" in name for case, name in refused)
            assert one.refused == pytest.approx(100.0 * count / one.tables)


def test_rows_do_not_depend_on_the_number_of_processes_or_the_other_parts(tables):
    one = build_transfer_study(TransferOptions(tables, ("layers",))).run(lambda _: None, 1)
    both = build_transfer_study(TransferOptions(tables, ("memory", "layers"))).run(lambda _: None, 1)

    assert [row for row in both if row.part == "layers"] == one


def test_wrong_options_are_named(tables, tmp_path):
    with pytest.raises(FedgeError, match="--part: got 'luck'"):
        build_transfer_study(TransferOptions(tables, ("luck",)))
    (tables / "perf4sight-tx2").rename(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match=r"--part: got memory, but .* has no training steps in perf4sight-<board>"):
        build_transfer_study(TransferOptions(tables, ("memory", "layers")))
    assert build_transfer_study(TransferOptions(tables)).cells
    with pytest.raises(BadInput, match="--modes: got '3,x'"):
        build_transfer_study(TransferOptions(tables, modes="3,x"))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(BadInput, match="a folder that holds"):
        read_judged_tables(empty)


def test_every_model_leaves_out_all_that_its_tables_allow(tables):
    cells = {(cell.part, cell.left_out) for cell in build_transfer_study(TransferOptions(tables)).cells}

    of_all, but_batch = {"workload", "board", "family", "batch"}, {"workload", "board", "family"}
    for part in ("predictor", "layers", "roofline", "pagoda"):
        assert {case for name, case in cells if name == part} == of_all
    for part in ("online", "serving"):  # a table of training has one batch size
        assert {case for name, case in cells if name == part} == but_batch


def test_a_left_out_board_has_no_rooflines_and_the_row_says_why(tables):
    study = build_transfer_study(TransferOptions(tables, ("roofline",)))

    refusals = {row.refused for row in study.run(lambda _: None, 1) if row.left_out == "board"}

    assert refusals == {"board: got agx-orin-64gb, left out; a board with tables: constants are fitted board by board"}


def test_a_choice_of_maxn_counts_as_a_refusal():
    stays = replace(BLANK, quantity="choice", slowdown=1.0, saving=0.0)

    assert mark_refusal(stays).refused == UNPROMISED
    assert mark_refusal(replace(stays, slowdown=1.01, saving=2.0)).refused is None

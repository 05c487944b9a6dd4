"""``fedge predict fit`` learns from a table or an emulated board, says how well, and refuses what cannot be."""

import json
from pathlib import Path

import pytest
from contracts.boards import write_table

from experiments.cli.predict_commands import fit_to_file
from fedge.devices.tables.mode_table import TABLE_COLUMNS
from fedge.errors import BadInput
from fedge.knowledge.model_file import load_model
from fedge.knowledge.model_training import ModelFitOptions


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path / "my-board" / "train" / "net.csv")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def asked(table: Path | None, **more) -> ModelFitOptions:
    return ModelFitOptions(table, **{"method": "physical", **more})


def test_some_modes_of_a_table_are_learnt_from_and_the_others_scored(table, out, capsys):
    fit_to_file(asked(table, modes=10), out, as_json=False)

    said, told = capsys.readouterr()
    assert "my-board, net, batch size 16, predicted by physical" in said
    assert "10 of 126 modes of net.csv (measured), chosen by random" in said
    assert "mean over the 116" in said
    assert f"written: {out}" in said
    assert "my-board is not in the catalogue" in told
    assert len(load_model(out).measurements) == 10


def test_json_holds_the_same_and_nothing_else_is_printed(table, out, capsys):
    fit_to_file(asked(table, modes=10, seed=3), out, as_json=True)

    told = json.loads(capsys.readouterr().out)
    assert told["file"] == str(out)
    assert told["learnt_from"]["modes"] == 10
    assert told["learnt_from"]["label"] == "measured"
    assert told["label"] == "calibrated"
    assert told["held_out"]["modes"] == 116
    assert 0 < told["held_out"]["time_mape"] < 0.3
    assert len(told["measured"]) == 10
    assert len(told["prior"]["tables"]) == told["prior"]["beliefs"] > 0


def test_all_modes_are_learnt_from_on_demand(table, out):
    fit_to_file(asked(table, modes="all", method="linear"), out, as_json=True)

    assert len(load_model(out).measurements) == 126


def test_without_a_number_all_rows_are_learnt_from(table, out, capsys):
    fit_to_file(asked(table), out, as_json=False)

    said = capsys.readouterr().out
    assert "all 126 modes of net.csv" in said
    assert "unknown: every mode was used for the fit" in said


def test_a_table_of_one_row_is_learnt_from_with_a_word_of_warning(tmp_path, out, capsys):
    fit_to_file(asked(write_table(tmp_path / "b" / "one.csv", rows=slice(0, 1))), out, as_json=False)

    assert "only one power mode" in capsys.readouterr().err
    assert len(load_model(out).candidates) == 1


def test_a_board_of_the_users_own_file_gives_the_candidates(table, tmp_path, out, project_root):
    stock = (project_root / "fedge" / "devices" / "catalogue" / "orin-nano.yaml").read_text(encoding="utf-8")
    own = tmp_path / "own.yaml"
    own.write_text(stock.replace("name: orin-nano\n", "name: desk-nano\n", 1), encoding="utf-8")
    path = table.with_name("two.csv")
    path.write_text(f"{','.join(TABLE_COLUMNS)}\n6,1510400,624750000,2133000000,16,50,14\n", encoding="utf-8")

    fit_to_file(asked(path, board=str(own)), out, as_json=True)

    assert load_model(out).about.device == "desk-nano"
    assert len(load_model(out).candidates) == 1800


def test_an_emulated_board_is_profiled_and_never_called_measured(out, capsys):
    fit_to_file(asked(None, board="orin-nano", workload="mobilenetv3l-gld23k"), out, as_json=False)

    said = " ".join(capsys.readouterr().out.split())
    assert "10 of 1,800 modes of an emulated orin-nano" in said
    assert "(measured)" not in said
    assert "against the emulated truth" in said
    assert load_model(out).about.origin.label in ("calibrated", "estimated")


def test_a_reference_is_kept_and_one_of_the_same_workload_left_out_with_a_word(table, tmp_path, out, capsys):
    other = write_table(tmp_path / "my-board" / "train" / "other.csv", seed=2)

    fit_to_file(asked(table, modes=5, references=(other, table)), out, as_json=True)

    said, told = capsys.readouterr()
    assert [one["name"] for one in json.loads(said)["references"]] == ["other.csv"]
    assert "net.csv" in told
    assert len(load_model(out).knowledge.references[0].modes) == 126


def test_a_model_is_replaced_and_the_table_is_not(table, out):
    content = table.read_bytes()
    fit_to_file(asked(table, modes=5), out, as_json=True)
    fit_to_file(asked(table, modes=6), out, as_json=True)

    assert len(load_model(out).measurements) == 6
    with pytest.raises(BadInput, match="a file that is no model"):
        fit_to_file(asked(table, modes=5), table, as_json=True)
    assert table.read_bytes() == content


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"method": "nosuch"}, "--method: got 'nosuch'; known: .*fedge"),
        ({"method": "my:Own"}, "--method: got 'my:Own'; one of .* a model file cannot name code of your own"),
        ({"explorer": "random"}, "--explorer: got 'random'; it together with --modes"),
        ({"explorer": "nosuch", "modes": 5}, "--explorer: got 'nosuch'; known"),
        ({"modes": 127}, r"--modes: got 127; from 1 to 126"),
        ({"modes": "0"}, "--modes: got '0'; a whole number above 0, or all"),
        ({"budget_s": -1.0}, "--budget-s: got -1; seconds, above 0"),
        ({"budget_j": float("nan")}, "--budget-j: got nan; joules, above 0"),
        ({"budget_s": 1.0}, "--budget-s: got 1 s; at least"),
        ({"seed": -1}, "--seed: got -1"),
        ({"batch_size": 32}, "batch size: got 32; known: 16"),
        ({"references": (Path("nosuch.csv"),)}, "nosuch.csv: got no such file"),
    ],
)
def test_wrong_options_are_named_and_nothing_is_written(table, out, more, words):
    with pytest.raises(BadInput, match=words):
        fit_to_file(asked(table, **more), out, as_json=False)

    assert not out.exists()


@pytest.mark.parametrize("more", [{}, {"board": "orin-nano"}, {"workload": "resnet18-imagenet"}])
def test_neither_a_table_nor_a_board_is_too_little(out, more):
    with pytest.raises(BadInput, match="a TABLE, or --board NAME and --workload NAME"):
        fit_to_file(asked(None, **more), out, as_json=False)


def test_an_emulated_board_is_priced_at_any_batch_size(out):
    wanted = asked(None, board="orin-nano", workload="resnet18-imagenet", batch_size=32, modes=5)
    fit_to_file(wanted, out, as_json=False)
    about = load_model(out).about
    assert (about.batch_size, about.origin.label) == (32, "estimated")
    with pytest.raises(BadInput, match="--workload"):
        fit_to_file(asked(None, board="orin-nano", workload="nosuch", batch_size=32), out, as_json=False)


@pytest.mark.parametrize("path", [".", "nosuch/model.safetensors"])
def test_the_file_must_go_into_a_folder_that_exists(table, tmp_path, path):
    with pytest.raises(BadInput, match="--out"):
        fit_to_file(asked(table, modes=5), tmp_path / path, as_json=False)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["physical", "fedge"])
def test_ten_modes_of_a_measured_table_tell_the_others(profiles_root, out, capsys, method):
    path = profiles_root / "agx-orin" / "train" / "mobilenetv3l-gld23k.csv"

    fit_to_file(ModelFitOptions(path, method=method, modes=10), out, as_json=True)

    told = json.loads(capsys.readouterr().out)
    print(method, told["held_out"])
    assert told["candidates"]["modes"] == 18_096
    assert not [name for name in told["prior"]["tables"] if "mobilenetv3l" in name]
    assert told["held_out"]["time_mape"] < 0.15
    assert told["held_out"]["power_mape"] < 0.08

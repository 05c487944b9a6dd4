"""PowerTrain's transfer: needs a reference, keeps its networks well, and beats networks from scratch."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
from contracts.baselines import MadeUpBoard, mape, real_table
from contracts.boards import MAXN, another_workload, grid, made_up_table
from contracts.crashing import disk_full
from contracts.predictor import BaselineContract, measured
from safetensors.numpy import load_file, save_file

from fedge.errors import BadInput
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors import powertrain_reference
from fedge.predictors.measurement_columns import collect_columns
from fedge.predictors.network_training import NetworkPredictor
from fedge.predictors.powertrain import PowerTrainPredictor, choose_loss, find_most_similar
from fedge.predictors.powertrain_reference import ReferenceNetwork, cache_folder, load_reference_network, reference_path
from fedge.protocols import Predictor
from fedge.types import PowerMode, ProfileTable

AGX_ORIN = PowerMode(12, 2201.6, 1300.5, 3199.0)
ONE_WORKER = pytest.mark.xdist_group("powertrain")
"""Those with one reference run one after the other, so that it is trained once."""
# The other pairs of tables: docs/explanation/predictors.md.
REAL = [
    ("agx-xavier", "vit-b16-cifar10", "agx-xavier", "resnet50-tinyimagenet224"),
    ("agx-xavier", "resnet50-tinyimagenet224", "agx-xavier", "vit-b16-cifar10"),
    pytest.param("orin-nano", "resnet18-imagenet", "agx-orin", "resnet18-imagenet", marks=ONE_WORKER),
]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all tests, so that a reference is trained once."""
    folder = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setenv("FEDGE_CACHE", str(folder))
    return folder


@pytest.fixture
def table() -> ProfileTable:
    return made_up_table(every=11)


class TestPowerTrainPredictor(MadeUpBoard, BaselineContract):
    @pytest.fixture
    def predictor(self, table: ProfileTable) -> Predictor:
        return PowerTrainPredictor(PriorKnowledge(MAXN, references=(table,)))


def test_without_a_reference_it_says_how_to_give_one():
    one = measured(grid(), np.ones(630), np.ones(630), [0])

    with pytest.raises(BadInput, match="got no reference; another workload's table, with --reference TABLE"):
        PowerTrainPredictor(PriorKnowledge(MAXN)).fit(one)


def test_the_relative_loss_is_taken_where_the_paper_took_it():
    boards = {
        "orin-nano": PowerMode(6, 1510.4, 624.75, 2133.0),
        "agx-xavier": PowerMode(8, 2265.6, 1377.0, 2133.0),
        "agx-orin": AGX_ORIN,
    }

    assert {name: choose_loss(maxn, AGX_ORIN) for name, maxn in boards.items()} == {
        "orin-nano": "mape",
        "agx-xavier": "mse",
        "agx-orin": "mse",
    }


def test_the_loss_can_be_chosen(table):
    some = measured(table.modes, table.step_s, table.power_w, [0, 5, 9])
    knowledge = PriorKnowledge(MAXN, references=(table,))

    said = {
        loss: PowerTrainPredictor(knowledge, loss=loss).fit(some).predict(table.modes).step_s
        for loss in (None, "mse", "mape")
    }

    np.testing.assert_array_equal(said[None], said["mse"])
    assert not np.array_equal(said["mse"], said["mape"])


def test_of_several_references_the_closest_to_the_measured_modes_is_taken():
    tables = [made_up_table(another_workload(np.random.default_rng(seed)), every=11) for seed in (1, 2, 3)]
    for place, order in enumerate(itertools.permutations(tables)):
        target = tables[place % 3]
        some = measured(target.modes, 1.1 * target.step_s, 0.95 * target.power_w, [0, 9, 20, 33, 56])

        assert find_most_similar(order, collect_columns("powertrain", some)) is target


def test_of_references_that_are_alike_the_most_trusted_is_taken():
    tables = [made_up_table(every=11), made_up_table(every=11, sha256="1" * 64)]
    some = measured(tables[1].modes, tables[1].step_s, tables[1].power_w, [7, 9])

    assert find_most_similar(tables, collect_columns("powertrain", some)) is tables[0]


def test_a_reference_is_trained_once_and_then_read(table, tmp_path):
    first, second = load_reference_network(table, 0, tmp_path), load_reference_network(table, 0, tmp_path)

    assert (first.cached, first.kept, second.cached, second.kept) == (False, True, True, True)
    np.testing.assert_array_equal(first.trained.pair.flat, second.trained.pair.flat)
    np.testing.assert_array_equal(first.trained.scaler.mean, second.trained.scaler.mean)
    np.testing.assert_array_equal(first.trained.validation_mape, second.trained.validation_mape)
    assert second.train_s == pytest.approx(first.train_s, abs=1e-3)
    assert [path.suffix for path in (tmp_path / "powertrain").iterdir()] == [".safetensors"]


def test_another_table_seed_or_recipe_is_another_file(table, monkeypatch):
    folder = Path("cache")
    other_rows = made_up_table(every=12)
    other_content = made_up_table(every=11, sha256="1" * 64)
    files = [
        *(reference_path(t, 0, folder) for t in (table, other_rows, other_content)),
        reference_path(table, 1, folder),
    ]
    monkeypatch.setattr(powertrain_reference, "RECIPE", "another")
    files.append(reference_path(table, 0, folder))

    assert len(set(files)) == 5


def _damage_by_cutting(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def _damage_by_garbage(path: Path) -> None:
    path.write_bytes(b"\xff" * 400)


def _damage_by_emptying(path: Path) -> None:
    path.write_bytes(b"")


def _damage_by_nan(path: Path) -> None:
    _rewrite(path, parameters=np.full(84_994, np.nan, np.float32))


def _damage_by_shape(path: Path) -> None:
    _rewrite(path, mean=np.zeros(3))


def _damage_by_another_key(path: Path) -> None:
    save_file(load_file(path), path, {"key": "of another table", "train_s": "1"})


def _damage_by_no_metadata(path: Path) -> None:
    save_file(load_file(path), path)


def _damage_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _rewrite(path: Path, **changed: np.ndarray) -> None:
    key = path.with_suffix(".key").read_text(encoding="utf-8")
    save_file(load_file(path) | changed, path, {"key": key, "train_s": "1"})


@pytest.mark.parametrize(
    "damage",
    [
        _damage_by_cutting,
        _damage_by_garbage,
        _damage_by_emptying,
        _damage_by_nan,
        _damage_by_shape,
        _damage_by_another_key,
        _damage_by_no_metadata,
        _damage_by_a_folder,
    ],
)
def test_a_damaged_file_is_trained_anew(damage, table, tmp_path, caplog):
    first = load_reference_network(table, 0, tmp_path)
    path = reference_path(table, 0, tmp_path)
    path.with_suffix(".key").write_text(powertrain_reference._content_key(table, 0), encoding="utf-8")
    damage(path)

    again = load_reference_network(table, 0, tmp_path)

    assert not again.cached
    assert "damaged" in caplog.text
    np.testing.assert_array_equal(again.trained.pair.flat, first.trained.pair.flat)
    assert load_reference_network(table, 0, tmp_path).cached == path.is_file()


def test_a_cache_that_cannot_be_written_only_costs_time(table, tmp_path, monkeypatch, caplog):
    blocked = tmp_path / "a file"
    blocked.write_text("", encoding="utf-8")
    monkeypatch.setenv("FEDGE_CACHE", str(blocked))
    some = measured(table.modes, table.step_s, table.power_w, [0, 5])

    said = PowerTrainPredictor(PriorKnowledge(MAXN, references=(table,))).fit(some).predict(table.modes)

    assert np.isfinite(said.step_s).all()
    assert "cannot be written" in caplog.text


def test_a_write_that_breaks_leaves_nothing_behind(table, tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "replace", disk_full)

    made: ReferenceNetwork = load_reference_network(table, 0, tmp_path)

    assert not made.kept
    assert list((tmp_path / "powertrain").iterdir()) == []


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"FEDGE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"FEDGE_CACHE": "", "XDG_CACHE_HOME": "/b"}, Path("/b/fedge")),
        ({}, Path.home() / ".cache" / "fedge"),
    ],
)
def test_the_cache_is_where_the_environment_says(environment, folder):
    assert cache_folder(environment) == folder


def test_a_transfer_from_a_like_workload_beats_networks_from_scratch():
    reference = made_up_table(every=3)
    target = made_up_table(another_workload(np.random.default_rng(2), 0.2), every=2)

    transferred = mape(PowerTrainPredictor, target, 10, range(2), (reference,))
    scratch = mape(NetworkPredictor, target, 10, range(2))

    assert transferred[0] < 0.8 * scratch[0]
    assert transferred[1] < 0.8 * scratch[1]


@pytest.mark.long
@ONE_WORKER
@pytest.mark.parametrize(
    ("workload", "time", "power"),
    [("mobilenetv3l-gld23k", (0.08, 0.16), (0.025, 0.06)), ("yolov8n-coco", (0.08, 0.13), (0.02, 0.055))],
)
def test_fifty_modes_give_the_errors_that_powertrain_is_known_for(workload, time, power, profiles_root):
    reference = real_table(profiles_root, "agx-orin", "resnet18-imagenet")
    target = real_table(profiles_root, "agx-orin", workload)

    time_mape, power_mape = mape(PowerTrainPredictor, target, 50, range(2), (reference,))

    print(f"powertrain, 50 modes of {workload}: time {time_mape:.1%}, power {power_mape:.1%}")
    assert time[0] < time_mape < time[1]
    assert power[0] < power_mape < power[1]


@pytest.mark.long
@pytest.mark.parametrize(("board", "workload", "from_board", "from_workload"), REAL)
def test_a_transfer_beats_networks_from_scratch_on_measured_boards(
    board, workload, from_board, from_workload, profiles_root
):
    reference, target = (
        real_table(profiles_root, *names) for names in ((from_board, from_workload), (board, workload))
    )

    for count in (10, 20):
        transferred = mape(PowerTrainPredictor, target, count, range(2), (reference,))
        scratch = mape(NetworkPredictor, target, count, range(2))

        print(f"{board} {workload}, {count} modes: powertrain {transferred}, mlp {scratch}")
        assert transferred[0] < scratch[0]
        assert transferred[1] < scratch[1]


def test_without_safetensors_it_says_so_before_it_trains(table, tmp_path, monkeypatch):
    for name in ("safetensors", "safetensors.numpy"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(powertrain_reference, "train_pair", None)

    with pytest.raises(BadInput, match=r"powertrain, .*boards never have it: take the predictor fedge"):
        load_reference_network(table, 0, tmp_path)

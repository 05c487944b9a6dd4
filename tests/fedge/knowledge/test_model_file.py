"""A model file gives back what was saved, predicts the same, and says what is wrong with every other file."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contracts.boards import MAXN, another_workload, coefficients, grid, made_up_table
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from fedge.errors import BadInput, FedgeError
from fedge.knowledge import model_file
from fedge.knowledge.model_file import (
    METADATA_KEY,
    BoardModel,
    HeldOutErrors,
    ModelInfo,
    ModelOrigin,
    fit_model_predictor,
    load_model,
    predict_candidates,
    save_model,
)
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.physics.time_power_model import compute_power_w, compute_step_s
from fedge.types import Floats, LabelledValue, Measurement, Modes, Predictions, ProfileTable

TRUTH = another_workload(np.random.default_rng(4))
ROWS = (629, 500, 377, 200, 3)


def reference() -> ProfileTable:
    named = {"device": "my-board", "workload": "other", "batch_size": 8, "path": "/home/me/my-board/other.csv"}
    return made_up_table(every=7, sha256="b" * 64, **named)


def model(rows: tuple[int, ...] = ROWS, references: tuple[ProfileTable, ...] = ()) -> BoardModel:
    modes = grid()
    seconds, watts = compute_step_s(TRUTH, MAXN, modes), compute_power_w(TRUTH, MAXN, modes)
    seen = [Measurement(modes[i], 40, float(seconds[i]), float(watts[i]), throttled=i == 3) for i in rows]
    about = ModelInfo(
        method="physical",
        device="my-board",
        workload="net",
        batch_size=16,
        origin=ModelOrigin("measured", "net.csv", 630, "a" * 64, "random", 12.5, 300.0),
        candidates="the table's modes",
        idle=LabelledValue(12.0, "estimated", "a guess"),
        prior_tables=("other-board/other 0123456789ab",),
        held_out=HeldOutErrors(600, 0.04, 0.02, 0.9, 0.91),
    )
    priors = (coefficients(), another_workload(np.random.default_rng(5)))
    errors = ((0.12, 0.09), (0.6, 0.31))
    return BoardModel(about, tuple(seen), modes, PriorKnowledge(MAXN, priors, references, 12.0, 7, errors))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_model(tmp_path / "model.safetensors", model(references=(reference(),)))
    return tmp_path / "model.safetensors"


def parts(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The JSON text and the arrays of a file."""
    with safe_open(path, framework="numpy") as opened:
        return json.loads(opened.metadata()[METADATA_KEY]), {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118


def spoil(
    path: Path,
    header: Callable[[dict[str, Any]], Any] = lambda _: None,
    arrays: Callable[[dict[str, Any]], Any] = lambda _: None,
) -> Path:
    """Write the file anew after the two were changed in place."""
    text, tensors = parts(path)
    header(text)
    arrays(tensors)
    save_file(tensors, path, metadata={METADATA_KEY: json.dumps(text)})
    return path


def test_what_is_loaded_is_what_was_saved(saved):
    original, back = model(references=(reference(),)), load_model(saved)

    assert back.about == original.about
    assert back.measurements == original.measurements
    np.testing.assert_array_equal(back.candidates.knobs, original.candidates.knobs)
    assert (back.knowledge.maxn, back.knowledge.idle_w, back.knowledge.seed) == (MAXN, 12.0, 7)
    assert back.knowledge.errors == original.knowledge.errors
    for ours, theirs in zip(back.knowledge.priors, original.knowledge.priors, strict=True):
        np.testing.assert_array_equal(ours.time, theirs.time)
        np.testing.assert_array_equal(ours.power, theirs.power)
    (table,) = back.knowledge.references
    np.testing.assert_array_equal(table.step_s, reference().step_s)
    assert (table.device, table.workload, table.batch_size, table.sha256) == ("my-board", "other", 8, "b" * 64)


def test_a_file_tells_no_folder_of_its_maker(saved):
    assert load_model(saved).knowledge.references[0].path == "other.csv"
    assert b"/home" not in saved.read_bytes()


def test_a_loaded_model_predicts_to_the_last_bit_what_the_saved_one_did(saved):
    original, back = model(), load_model(saved)

    ours, theirs = (
        predict_candidates(back, fit_model_predictor(back)),
        predict_candidates(original, fit_model_predictor(original)),
    )

    for name in ("step_s", "power_w", "step_s_sd_log", "power_w_sd_log"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


def test_saving_twice_gives_the_same_bytes_and_leaves_nothing_else(saved):
    first = saved.read_bytes()

    save_model(saved, model(references=(reference(),)))

    assert saved.read_bytes() == first
    assert list(saved.parent.iterdir()) == [saved]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 629), st.floats(1e-6, 1e3), st.floats(0.1, 500.0), st.integers(1, 10_000), st.booleans()
        ),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=30)
def test_any_measurements_come_back_as_they_were(tmp_path_factory, seen):
    path = tmp_path_factory.mktemp("any") / "m.safetensors"
    modes = grid()
    measurements = tuple(Measurement(modes[i], n, t, p, throttled=hot) for i, t, p, n, hot in seen)

    save_model(path, dataclasses.replace(model(), measurements=measurements))

    assert load_model(path).measurements == measurements


def test_a_model_without_priors_or_references_is_kept_too(tmp_path):
    bare = dataclasses.replace(model(), knowledge=PriorKnowledge(MAXN))

    save_model(
        tmp_path / "m", dataclasses.replace(bare, about=dataclasses.replace(bare.about, idle=None, held_out=None))
    )

    back = load_model(tmp_path / "m")
    assert back.knowledge.priors == back.knowledge.references == ()
    assert back.knowledge.idle_w is None


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 200, 5000, -1])
def test_a_file_that_was_cut_short_is_refused_wherever_it_ends(saved, kept):
    saved.write_bytes(saved.read_bytes()[:kept])

    with pytest.raises(BadInput, match="damaged or foreign file"):
        load_model(saved)


def test_a_file_of_another_kind_is_named_as_such(tmp_path):
    csv, weights = tmp_path / "t.csv", tmp_path / "w.safetensors"
    csv.write_text("cores,cpu_khz\n1,2\n" * 50, encoding="utf-8")
    save_file({"w": np.zeros(3)}, weights)

    for path, words in ((csv, "damaged or foreign"), (weights, "something else"), (tmp_path, "a folder")):
        with pytest.raises(BadInput, match=words):
            load_model(path)
    with pytest.raises(BadInput, match="no such file"):
        load_model(tmp_path / "none.safetensors")


def _about(**fields: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda text: text["about"].update(fields)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.update(version=2), r"version: got 2; 1; a newer fedge"),
        (lambda t: t.update(version=0), r"version: got 0; 1; a model fitted anew"),
        (lambda t: t.update(version="1"), "version: got '1'"),
        (lambda t: t.pop("about"), "about: got nothing"),
        (_about(method="os:system"), "about.method: got 'os:system'; known:"),
        (_about(batch_size="16"), "about.batch_size: got '16'"),
        (_about(idle={"value": float("nan"), "label": "measured", "source": "x"}), "about.idle: got nan W"),
        (_about(idle={"value": -1.0, "label": "measured", "source": "x"}), "about.idle: got -1 W"),
        (_about(idle={"value": 5.0, "label": "sworn", "source": "x"}), "about.idle.label: got 'sworn'"),
        (lambda t: t["about"]["origin"].update(sha256="xyz"), "about.origin.sha256: got 'xyz'"),
        (lambda t: t["maxn"].update(cores=0), "maxn.cores: got 0"),
        (lambda t: t.update(seed=-1), "seed: got -1"),
        (lambda t: t["errors"].pop(), "errors: got 1 pairs; none, or 2"),
        (lambda t: t["errors"][0].pop(), r"errors\[0\]\[1\]: got nothing"),
        (lambda t: t["references"].append(dict(t["references"][0])), "reference/1/knobs: got nothing"),
    ],
)
def test_a_wrong_field_is_named(saved, change, words):
    with pytest.raises(BadInput, match=words):
        load_model(spoil(saved, header=change))


def _set(name: str, index: Any, value: float) -> Callable[[dict[str, Any]], Any]:
    return lambda arrays: arrays[name].__setitem__(index, value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: a.pop("measured/steps"), "measured/steps: got nothing"),
        (lambda a: a.update({"measured/step_s": a["measured/step_s"][:-1]}), r"measured/step_s: got shape \(4,\)"),
        (lambda a: a.update({"measured/step_s": a["measured/step_s"].astype(np.float32)}), "measured/step_s.*type F32"),
        (
            lambda a: a.update({"measured/knobs": a["measured/knobs"][:, :3].copy()}),
            r"measured/knobs: got shape \(5, 3\)",
        ),
        (lambda a: a.update({"candidates/knobs": np.zeros((0, 4))}), r"candidates/knobs: got shape \(0, 4\)"),
        (lambda a: a.update({"prior/time": np.zeros((2, 3))}), r"prior/time: got shape \(2, 3\)"),
        (_set("prior/time", (0, 0), np.nan), "prior/time: got nan"),
        (_set("measured/power_w", 0, np.inf), "measured/power_w: got inf"),
        (_set("measured/steps", 0, 0), "measured/steps: got 0"),
        (_set("measured/knobs", (1, 0), 2.5), "measured/knobs: got a fraction of a core"),
        (_set("candidates/knobs", (5, 1), np.nan), "candidates/knobs: got nan"),
        (_set("reference/0/step_s", 0, 0.0), "reference/0/step_s: got 0"),
        (lambda a: a.update({"reference/0/power_w": np.ones(1)}), "reference/0/power_w: got shape"),
    ],
)
def test_a_wrong_array_is_named(saved, change, words):
    with pytest.raises(BadInput, match=words):
        load_model(spoil(saved, arrays=change))


def test_a_file_without_any_measurement_is_refused(saved):
    def emptied(arrays: dict[str, Any]) -> None:
        arrays.update({name: a[:0].copy() for name, a in arrays.items() if name.startswith("measured/")})

    with pytest.raises(BadInput, match=r"measured/knobs: got shape \(0, 4\)"):
        load_model(spoil(saved, arrays=emptied))


@given(at=st.floats(0.0, 1.0), bit=st.integers(0, 7))
@settings(max_examples=150)
def test_one_flipped_bit_gives_a_model_or_a_clear_error(tmp_path_factory, at, bit):
    path = tmp_path_factory.mktemp("flip") / "m.safetensors"
    save_model(path, model(references=(reference(),)))
    content = bytearray(path.read_bytes())
    # The first 3,000 bytes hold the headers, where most can go wrong.
    content[round(at * min(len(content) - 1, 3000))] ^= 1 << bit
    path.write_bytes(bytes(content))

    back = _loaded_or_refused(path)
    assert isinstance(back, BoardModel) or str(path) in str(back)


def _loaded_or_refused(path: Path) -> BoardModel | BadInput:
    try:
        return load_model(path)
    except BadInput as error:
        return error


def test_a_path_that_cannot_be_written_is_the_users_mistake_and_leaves_nothing(tmp_path):
    (tmp_path / "file").write_text("x", encoding="utf-8")
    (tmp_path / "folder").mkdir()

    for path in (tmp_path / "file" / "m.safetensors", tmp_path / "folder"):
        with pytest.raises(BadInput, match="cannot be written"):
            save_model(path, model())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


class _Broken:
    """A predictor that fails in one of two ways."""

    def __init__(self, knowledge: PriorKnowledge) -> None:
        self.knowledge = knowledge

    def fit(self, measurements: Any) -> Any:
        if len(measurements) < 2:
            raise np.linalg.LinAlgError("singular")
        return self

    def predict(self, modes: Modes) -> Predictions:
        good: Floats = np.ones(len(modes))
        return Predictions(modes, np.full(len(modes), np.nan), good, good, good)


def test_a_predictor_that_fails_is_an_error_in_words(monkeypatch):
    monkeypatch.setattr(model_file, "load_predictor", lambda name, knowledge, where: _Broken(knowledge))

    with pytest.raises(FedgeError, match="physical cannot be fitted to these measurements"):
        fit_model_predictor(model(ROWS[:1]))
    with pytest.raises(FedgeError, match="predicts no number for some modes"):
        predict_candidates(model(), fit_model_predictor(model()))

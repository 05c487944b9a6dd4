"""``fedge predict show``, ``choose`` and ``pareto`` say what follows from a model, and refuse what
cannot be meant."""

import csv
import json
import math
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contracts.boards import MAXN, another_workload, coefficients, grid
from contracts.launching import FEDGE
from hypothesis import given
from hypothesis import strategies as st

from experiments.cli.predict_commands import choose, pareto, show
from fedge.errors import BadInput, FedgeError, UnknownName
from fedge.knowledge.model_file import BoardModel, HeldOutErrors, ModelInfo, ModelOrigin, save_model
from fedge.knowledge.saved_model import UNIT_SLIP_FACTOR, ChoiceAim, choose_for_aim, open_model
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.physics.time_power_model import compute_power_w, compute_step_s
from fedge.types import LabelledValue, Measurement, Modes, PowerMode

ROWS = (629, 500, 377, 200, 120, 3)


def model(label: str = "measured", rows: tuple[int, ...] = ROWS) -> BoardModel:
    modes, truth = grid(), another_workload(np.random.default_rng(4))
    seconds, watts = compute_step_s(truth, MAXN, modes), compute_power_w(truth, MAXN, modes)
    emulated = label != "measured"
    origin = ModelOrigin(
        label, "an emulated b" if emulated else "net.csv", 630, None if emulated else "a" * 64, "random", 9.0, 99.0
    )
    about = ModelInfo(
        method="physical",
        device="b",
        workload="net",
        batch_size=16,
        origin=origin,
        candidates="the table's modes",
        idle=LabelledValue(5.0, "estimated", "a guess"),
        prior_tables=("other/net2 0123456789ab", "tx2/net3 timed steps"),
        held_out=HeldOutErrors(624, 0.04, 0.02, 0.9, 0.93),
    )
    seen = tuple(Measurement(modes[i], 40, float(seconds[i]), float(watts[i])) for i in rows)
    return BoardModel(about, seen, modes, PriorKnowledge(MAXN, (coefficients(),), (), 5.0))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("model") / "m.safetensors"
    save_model(out, model())
    return out


def chosen(path: Path, capsys: pytest.CaptureFixture[str], **aim: Any) -> dict[str, Any]:
    choose(path, **aim, as_json=True)
    return json.loads(capsys.readouterr().out)


# show -----------------------------------------------------------------------------------------------------------------


def test_show_tells_where_each_thing_comes_from(path, capsys):
    show(path, as_json=False)

    said = " ".join(capsys.readouterr().out.split())
    assert "6 of 630 modes of net.csv (measured), chosen by random" in said
    assert "from 1 table of other workloads (calibrated) and the timed steps of 1 network: other/net2 0123" in said
    assert "idle 5.00 W at MAXN (estimated)" in said
    assert "630: the table's modes" in said
    assert "time 4.0 %, power 2.0 %, mean over the 624 modes not profiled; 90 % intervals cover 90 % and 93 %" in said
    assert "terms of the physical model at MAXN" in said
    assert said.count("2000") >= 1


def test_show_lists_every_measurement_of_few_and_the_worst_of_many(tmp_path, capsys):
    save_model(tmp_path / "m", model(rows=tuple(range(0, 630, 20))))

    show(tmp_path / "m", as_json=False)
    said = capsys.readouterr().out
    show(tmp_path / "m", as_json=True)
    told = json.loads(capsys.readouterr().out)

    assert "The 20 of 32 with the largest errors" in said
    assert len(told["measured"]) == 32


def test_show_never_calls_an_emulated_board_measured(tmp_path, capsys):
    save_model(tmp_path / "m", model("calibrated"))

    show(tmp_path / "m", as_json=False)

    said = capsys.readouterr().out
    assert "measured" not in said
    assert "emulated" in said
    assert "(estimated)" in said


def test_show_as_json_has_labels_spreads_and_parts(path, capsys):
    show(path, as_json=True)

    told = json.loads(capsys.readouterr().out)
    assert told["label"] == "calibrated"
    assert told["learnt_from"]["sha256"] == "a" * 64
    assert told["spread"]["time"]["median"] > 0
    assert told["meaning"]["power_w"]["together"] > 0
    assert {"cores", "predicted_step_s", "predicted_power_w_sd_log"} <= told["measured"][0].keys()


# choose ---------------------------------------------------------------------------------------------------------------


_OPENED: dict[Path, Any] = {}


def _read(path: Path) -> Any:
    """Read once: hypothesis asks often."""
    return _OPENED.setdefault(path, open_model(path))


def test_a_mode_that_was_measured_within_the_limit_is_chosen_whatever_is_predicted(path, tmp_path, capsys):
    few, top, measured = model(rows=ROWS[:1]), grid()[ROWS[0]], grid()[500]
    seen = (few.measurements[0], Measurement(measured, 40, 1.04 * few.measurements[0].step_s, 4.0))
    save_model(tmp_path / "m", replace(few, measurements=seen))

    told = chosen(tmp_path / "m", capsys, max_slowdown=1.05, confidence=0.95)

    assert PowerMode(**told["chosen"]["mode"]) == measured != top
    assert told["chosen"]["measured"]
    assert told["chosen"]["step_s"]["value"] == pytest.approx(1.04 * told["maxn"]["step_s"]["value"], rel=0.005)
    assert told["chosen"]["step_s"]["high90"] < 1.02 * told["chosen"]["step_s"]["value"]


@pytest.mark.parametrize(
    ("aim", "best"),
    [
        ({"max_power_w": 20.0}, lambda p, ok: p.step_s[ok]),
        ({"max_step_s": 0.2}, lambda p, ok: (p.step_s * p.power_w)[ok]),
        ({"time_weight": 1.0}, lambda p, ok: p.step_s),
        ({"time_weight": 0.0}, lambda p, ok: p.step_s * p.power_w),
    ],
)
def test_each_aim_gets_what_it_asks_for(path, capsys, aim, best):
    told = chosen(path, capsys, confidence=0.5, **aim)

    predictions = _read(path).predictions
    allowed = (predictions.step_s <= aim.get("max_step_s", np.inf)) & (
        predictions.power_w <= aim.get("max_power_w", np.inf)
    )
    is_fastest = "max_power_w" in aim or aim.get("time_weight") == 1.0
    assert told["chosen"]["step_s" if is_fastest else "energy_j"]["value"] == pytest.approx(
        best(predictions, allowed).min()
    )
    assert told["feasible"]


def test_the_knee_lies_on_the_front(path, capsys):
    told = chosen(path, capsys, knee=True)
    pareto(path, as_json=True)
    front = json.loads(capsys.readouterr().out)

    assert told["chosen"] in front["front"]
    assert told["chosen"] == front["knee"]
    assert told["value"] is None
    assert told["confidence"] is None


def test_the_mode_is_told_in_the_units_of_the_boards_files(path, capsys):
    told = chosen(path, capsys, time_weight=1.0)

    mode = told["chosen"]["mode"]
    assert told["set"] == {
        "cpu_online": mode["cores"],
        "cpu_max_freq_khz": round(1e3 * mode["cpu_mhz"]),
        "gpu_max_freq_hz": round(1e6 * mode["gpu_mhz"]),
        "emc_max_freq_hz": round(1e6 * mode["mem_mhz"]),
    }


def test_the_choice_is_printed_beside_maxn(path, capsys):
    choose(path, max_power_w=20.0)

    said = capsys.readouterr().out
    for word in ("Fastest", "chosen", "MAXN", "difference", "84 %", "calibrated", "GPU MAX_FREQ", "CPU_ONLINE"):
        assert word in said


def test_a_limit_that_no_mode_keeps_fails_and_says_the_least_there_is(path, capsys):
    least_w = float(_read(path).predictions.power_w.min())

    with pytest.raises(FedgeError, match="no mode keeps 3 W with 84 % confidence; the nearest is 2c/") as error:
        choose(path, max_power_w=3.0)

    assert not isinstance(error.value, BadInput)
    assert f"{least_w:.3g} W" in str(error.value)
    said = capsys.readouterr().out
    assert "nearest" in said
    assert "MAX_FREQ" not in said


def test_json_tells_an_infeasible_choice_too(path, capsys):
    with pytest.raises(FedgeError):
        choose(path, max_step_s=0.01, as_json=True)

    assert json.loads(capsys.readouterr().out)["feasible"] is False


@pytest.mark.parametrize(
    ("aim", "words"),
    [
        ({}, "got no objective; exactly one of --max-power-w, --max-step-s, --max-slowdown, --time-weight, --knee"),
        ({"max_power_w": 20.0, "knee": True}, "got --max-power-w and --knee; exactly one"),
        ({"max_power_w": 0.0}, "--max-power-w: got 0; watts, above 0"),
        ({"max_power_w": -5.0}, "--max-power-w: got -5"),
        ({"max_power_w": math.nan}, "--max-power-w: got nan"),
        ({"max_step_s": math.inf}, "--max-step-s: got inf; seconds, above 0"),
        ({"max_power_w": 20_000.0}, "--max-power-w: got 20000 W; .* were these milliwatts"),
        ({"max_power_w": 0.02}, "--max-power-w: got 0.02 W; .* all modes draw at least"),
        ({"max_step_s": 200.0}, "--max-step-s: got 200 s; .* were these milliseconds"),
        ({"max_step_s": 1e-6}, "--max-step-s: got 1e-06 s"),
        ({"max_slowdown": 0.95}, "--max-slowdown: got 0.95; 1 or more, as 1.05"),
        ({"max_slowdown": math.inf}, "--max-slowdown: got inf; 1 or more"),
        ({"time_weight": 1.5}, "--time-weight: got 1.5; a number from 0"),
        ({"time_weight": math.nan}, "--time-weight: got nan"),
        ({"max_power_w": 20.0, "confidence": 84.0}, "--confidence: got 84; a share between 0 and 1, such as 0.84"),
        ({"max_power_w": 20.0, "confidence": 0.0}, "--confidence: got 0; "),
        ({"knee": True, "confidence": math.nan}, "--confidence: got nan"),
    ],
)
def test_an_aim_that_cannot_be_meant_is_refused(path, capsys, aim, words):
    with pytest.raises(BadInput, match=words):
        chosen(path, capsys, **aim)
    assert capsys.readouterr().out == ""


def test_a_slowdown_is_a_multiple_of_the_top_modes_time(path, capsys):
    found = chosen(path, capsys, max_slowdown=1.3, confidence=0.5)

    assert found["aim"] == "max_slowdown"
    assert found["feasible"]
    assert found["chosen"]["step_s"]["value"] <= 1.3 * found["maxn"]["step_s"]["value"]
    assert found["chosen"]["energy_j"]["value"] < found["maxn"]["energy_j"]["value"]


@given(st.floats(1e-9, 1e9))
def test_a_power_limit_is_refused_just_where_it_is_far_off(path, limit_w):
    predictions = _read(path).predictions
    far = (
        limit_w > UNIT_SLIP_FACTOR * np.median(predictions.power_w)
        or limit_w < predictions.power_w.min() / UNIT_SLIP_FACTOR
    )

    refused = False
    try:
        choose_for_aim(predictions, ChoiceAim("--max-power-w", limit_w, 0.84), 0)
    except BadInput:
        refused = True

    assert refused == far


# pareto ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("against", ["power", "energy"])
def test_the_front_is_written_as_a_table(path, tmp_path, capsys, against):
    out = tmp_path / "front.csv"

    pareto(path, against=against, out=out)

    rows = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
    said = capsys.readouterr().out
    assert f"{len(rows)} of 630 modes lie on the front of time and {against}" in said
    assert f"written: {out}" in said
    times, costs = (
        [float(row[f"{name}"]) for row in rows] for name in ("step_s", {"power": "power_w"}.get(against, "energy_j"))
    )
    assert times == sorted(times)
    assert costs == sorted(costs, reverse=True)
    assert sum(int(row["knee"]) for row in rows) == 1
    for row in rows:
        assert float(row["power_w_low90"]) < float(row["power_w"]) < float(row["power_w_high90"])


def test_the_terminal_shows_ends_knee_and_maxn_of_a_long_front(path, capsys):
    pareto(path)
    said = capsys.readouterr().out
    pareto(path, as_json=True)
    told = json.loads(capsys.readouterr().out)

    def shown(point: dict[str, Any]) -> str:
        return "/".join(f"{value:g}" for value in point["mode"].values())

    assert len(told["front"]) > 20
    for point in (told["front"][0], told["front"][-1], told["knee"], told["maxn"]):
        assert shown(point) in said
    assert "knee" in said
    assert "MAXN" in said


def test_table_page_and_model_are_files_of_their_own(path, tmp_path):
    with pytest.raises(BadInput, match=r"--html: got .*; another file than --out"):
        pareto(path, out=tmp_path / "f", html=tmp_path / "f")
    with pytest.raises(BadInput, match=r"--out: .*another file than the model"):
        pareto(path, out=path)


def test_a_front_is_against_power_or_energy(path):
    with pytest.raises(UnknownName, match="--against: got 'time'; known: power, energy"):
        pareto(path, against="time")


def test_a_board_of_one_mode_has_a_front_of_one(tmp_path, capsys):
    one = model(rows=(629,))
    single = Modes(one.candidates.knobs[629:])
    save_model(tmp_path / "m", BoardModel(one.about, one.measurements, single, one.knowledge))

    pareto(tmp_path / "m", against="energy", html=tmp_path / "f.html", as_json=True)

    assert len(json.loads(capsys.readouterr().out)["front"]) == 1
    assert (tmp_path / "f.html").stat().st_size > 0


@pytest.mark.slow
def test_the_command_line_ends_with_code_1_where_no_mode_keeps_the_limit_and_2_for_a_mistake(path):
    codes = {}
    for option in (("--max-power-w", "20"), ("--max-power-w", "3"), ("--max-power-w", "-3")):
        program = [*FEDGE, "--quiet", "predict", "choose", str(path), *option]
        done = subprocess.run(program, capture_output=True, text=True, check=False)
        codes[option[1]] = done.returncode
        assert "Traceback" not in done.stderr
        assert done.stderr.count("\n") <= 1

    assert codes == {"20": 0, "3": 1, "-3": 2}

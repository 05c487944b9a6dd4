"""The contract of a predictor, on an invented board and in a run. Start it with
``pytest --import-mode=prepend test_own_predictor.py``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from own_predictor import OwnPredictor

from fedge.devices.catalogue import find
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.types import Measurement, Modes

SPEC = find("orin-nano")
KNOBS = np.array([[c, f, g, m] for c in (2, 6) for f in SPEC.cpu_mhz[::6] for g in SPEC.gpu_mhz for m in SPEC.mem_mhz])
MODES = Modes(np.vstack([KNOBS, SPEC.maxn.knobs]).astype(float))
STEP_S = 100.0 / MODES.knobs[:, 2] + 20.0 / MODES.knobs[:, 1]
POWER_W = 4.0 + 0.01 * MODES.knobs[:, 2] + 0.002 * MODES.knobs[:, 1]
"""The invented board's truth."""


def make_predictor() -> OwnPredictor:
    return OwnPredictor(PriorKnowledge(SPEC.maxn))


def measure(rows: list[int]) -> list[Measurement]:
    return [Measurement(MODES[i], 40, float(STEP_S[i]), float(POWER_W[i])) for i in rows]


@pytest.mark.parametrize("rows", [[], [5], [5, 5], [0, 9, 4, 30, 31]])
def test_every_prediction_is_finite_and_positive(rows: list[int]) -> None:
    found = make_predictor().fit(measure(rows)).predict(MODES)

    for column in (found.step_s, found.power_w, found.step_s_sd_log, found.power_w_sd_log):
        assert column.shape == (len(MODES),)
        assert np.isfinite(column).all()
        assert (column > 0).all()


def test_a_measured_mode_is_predicted_as_it_was_measured() -> None:
    rows = [0, 7, 11]

    found = make_predictor().fit(measure(rows * 4)).predict(Modes(MODES.knobs[rows]))

    np.testing.assert_allclose(found.step_s, STEP_S[rows], rtol=0.05)
    np.testing.assert_allclose(found.power_w, POWER_W[rows], rtol=0.05)


def test_rows_belong_to_the_modes_that_were_asked() -> None:
    predictor = make_predictor().fit(measure([0, 9, 4]))

    some = predictor.predict(Modes(MODES.knobs[[5, 0]]))
    np.testing.assert_allclose(some.step_s, predictor.predict(MODES).step_s[[5, 0]])


def test_fitting_starts_anew_each_time_in_any_order() -> None:
    first = make_predictor().fit(measure([0, 9, 4])).predict(MODES).step_s

    again = make_predictor().fit(measure([1, 2])).fit(measure([4, 9, 0])).predict(MODES).step_s

    np.testing.assert_allclose(again, first)


def test_a_run_with_it_finishes(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="a run needs the extra sim")
    import fedge

    run = fedge.run(
        {
            "backend": "local",
            "rounds": 2,
            "fleet": ["orin-nano"],
            "workload": {"task": "none"},
            "data": {"samples": 2000},
            "predictor": "own_predictor:OwnPredictor",
            "plugins": [__file__.replace("test_own_predictor", "own_predictor")],
        },
        folder=tmp_path / "run",
        quiet=True,
    )

    assert run.state == "finished"
    assert run.query("select count(*) as n from clients where status = 'done'", arrow=True).to_pylist() == [{"n": 2}]

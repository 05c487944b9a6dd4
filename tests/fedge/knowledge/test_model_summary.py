"""The facts of a model are those of its file and of its predictor; the physical meaning adds up."""

import dataclasses

import numpy as np
import pytest
from contracts.boards import MAXN, POWER, TIME, coefficients, made_up_table

from fedge.knowledge.model_file import BoardModel, ModelInfo, ModelOrigin, fit_model_predictor, predict_candidates
from fedge.knowledge.model_summary import prediction_label, summarize_model
from fedge.modes import stack_modes
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.physics.time_power_model import compute_step_s
from fedge.types import Measurement


def model(method: str = "physical") -> BoardModel:
    reference = made_up_table(workload="other", path="other.csv")
    modes, rows = reference.modes, (629, 500, 377, 377, 3)
    seen = tuple(Measurement(modes[i], 40, float(reference.step_s[i]), float(reference.power_w[i])) for i in rows)
    about = ModelInfo(method, "b", "net", 16, ModelOrigin("measured", "net.csv", 630, "a" * 64), "the table's modes")
    return BoardModel(about, seen, modes, PriorKnowledge(MAXN, (coefficients(),), (reference,), 1.0))


def facts(made: BoardModel):
    predictor = fit_model_predictor(made)
    return summarize_model(made, predictor, predict_candidates(made, predictor))


def test_the_facts_count_modes_and_not_repeats():
    found = facts(model())

    assert (found.modes, len(found.measurements), found.candidates, found.priors) == (4, 5, 630, 1)
    assert [(one.workload, one.rows, one.name) for one in found.references] == [("other", 630, "other.csv")]


def test_each_measurement_stands_beside_what_the_model_makes_of_its_mode():
    made = model()
    predictions = fit_model_predictor(made).predict(stack_modes(seen.mode for seen in made.measurements))

    found = facts(made)

    assert [known.mode for known in found.predicted] == [seen.mode for seen in made.measurements]
    assert [known.power_w for known in found.predicted] == predictions.power_w.tolist()
    assert [known.step_s_sd_log for known in found.predicted] == predictions.step_s_sd_log.tolist()


def test_the_spread_is_that_of_all_candidates():
    made = model()
    predictions = predict_candidates(made, fit_model_predictor(made))

    found = facts(made)

    assert found.time_spread.median == np.median(predictions.step_s_sd_log)
    assert found.power_spread.p95 == np.percentile(predictions.power_w_sd_log, 95)


def test_the_parts_at_maxn_are_the_models_own_terms():
    meaning = facts(model()).meaning

    time, power = meaning.time_s, meaning.power_w
    assert time["GPU arithmetic"] == pytest.approx(TIME["gpu_s"], rel=0.3)
    assert time["together"] == pytest.approx(compute_step_s(coefficients(), MAXN, stack_modes([MAXN]))[0], rel=0.02)
    assert max(v for k, v in time.items() if k != "together") < time["together"] < sum(time.values()) / 2
    assert power["always on"] == pytest.approx(POWER["static_w"], rel=0.3)
    assert power["together"] == pytest.approx(sum(v for k, v in power.items() if k != "together"))


def test_a_method_without_a_physical_model_has_no_such_meaning():
    class Plain:
        def fit(self, measurements):
            return self

        def predict(self, modes):
            return fit_model_predictor(model()).predict(modes)

    made = model()

    assert summarize_model(made, Plain(), predict_candidates(made, fit_model_predictor(made))).meaning is None


def test_predictions_from_measured_modes_are_calibrated_and_others_estimated():
    about = model().about
    emulated = dataclasses.replace(about, origin=dataclasses.replace(about.origin, label="calibrated", sha256=None))

    assert prediction_label(about) == "calibrated"
    assert prediction_label(emulated) == "estimated"

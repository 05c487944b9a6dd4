"""What was measured without workers, and with one, says how it goes with more."""

from dataclasses import replace

import pytest
from contracts.pipelines import PLAIN

from fedge.costs.input_pipeline.epoch_simulation import simulate_epoch
from fedge.costs.input_pipeline.pipeline_fit import LoaderMeans, fit_pipeline, with_loader
from fedge.costs.input_pipeline.pipeline_model import HostCores, InputPipeline

TRUE = replace(
    PLAIN,
    samples=replace(PLAIN.samples, preprocess_s=0.004),
    host=HostCores(2.0, crowding=0.35),
    step=replace(PLAIN.step, host_share=1.0),
)


def means(pipeline: InputPipeline) -> LoaderMeans:
    """Of a played epoch, in its steady state."""
    played = simulate_epoch(pipeline, 200)
    columns = ("fetch_s", "preprocess_s", "stall_s", "copy_s", "compute_s", "overhead_s")
    loader = pipeline.loader
    return LoaderMeans(
        loader.workers, loader.prefetch, 4, *(float(getattr(played, name)[40:].mean()) for name in columns)
    )


def test_from_none_one_and_two_workers_four_follow():
    model = fit_pipeline([means(with_loader(TRUE, workers)) for workers in (0, 1, 2)], cores=2.0)
    assert model.host.crowding == pytest.approx(0.35, abs=0.1)
    for workers in (1, 2, 4):
        truth = simulate_epoch(with_loader(TRUE, workers), 200)
        said = simulate_epoch(with_loader(model, workers), 200)
        assert said.step_s[40:].mean() == pytest.approx(truth.step_s[40:].mean(), rel=0.08)


def test_crowding_that_was_measured_is_believed_and_the_rest_is_what_a_worker_s_batch_costs():
    costly = replace(TRUE, host=HostCores(2.0), step=replace(TRUE.step, posting_s=0.003, foreign_s=0.002))
    model = fit_pipeline([means(with_loader(costly, workers)) for workers in (0, 1)], cores=2.0, crowding=0.0)
    assert model.step.posting_s == pytest.approx(0.003, rel=0.15)
    assert model.step.foreign_s == pytest.approx(0.002, rel=0.1)
    truth, said = (simulate_epoch(with_loader(one, 2), 200).stall_s[40:].mean() for one in (costly, model))
    assert said == pytest.approx(truth, abs=0.05 * simulate_epoch(with_loader(costly, 0), 50).stall_s.mean())


def test_a_setting_with_workers_alone_is_undone_to_what_it_would_be_without():
    model = fit_pipeline([means(with_loader(TRUE, 2))], cores=2.0)
    assert model.loader.workers == 2
    assert model.samples.preprocess_s == pytest.approx(TRUE.samples.preprocess_s, rel=0.15)
    assert model.step.compute_s == pytest.approx(TRUE.step.compute_s, rel=0.15)


@pytest.mark.parametrize("measured", [1, 2, 4])
def test_from_one_number_of_workers_the_pace_with_others_follows(measured):
    model = fit_pipeline([means(with_loader(TRUE, measured))], cores=2.0)
    for workers in (1, 2, 4):
        truth, said = (simulate_epoch(with_loader(one, workers), 200).step_s[40:].mean() for one in (TRUE, model))
        assert said == pytest.approx(truth, rel=0.05)


def test_taking_a_batch_over_costs_what_the_overhead_grows_by():
    alone = LoaderMeans(0, 2, 4, 0.001, 0.008, 0.009, 0.0, 0.01, 0.0005)
    dearer = LoaderMeans(1, 2, 4, 0.001, 0.008, 0.001, 0.0, 0.01, 0.0009)
    assert fit_pipeline([alone, dearer], 4.0, crowding=0.0).step.handover_s == pytest.approx(0.0004)
    cheaper = replace(dearer, overhead_s=0.0002)
    assert fit_pipeline([alone, cheaper], 4.0, crowding=0.0).step.collate_s == pytest.approx(0.0003)


def test_nothing_measured_is_refused():
    with pytest.raises(ValueError, match="no setting"):
        fit_pipeline([], 2.0)

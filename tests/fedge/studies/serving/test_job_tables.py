"""What a strategy is told beforehand never saw either of the two jobs, by name or by table."""

from dataclasses import replace

import numpy as np
import pytest
from contracts.jobs import modes, pair, seconds, watts

from fedge.costs.cost_profile import CostProfile, load_calibrated_inference, load_calibrated_training
from fedge.studies.serving.job_tables import build_pair_knowledge
from fedge.types import ProfileTable

EVERY = (*load_calibrated_training(), *load_calibrated_inference())


def table(workload: str, batch_size: int = 16, sha256: str = "0" * 64, device: str = "agx-orin") -> ProfileTable:
    return ProfileTable(device, workload, batch_size, modes(), seconds(0.04), watts(10.0), sha256, f"{workload}.csv")


@pytest.mark.parametrize("name", ["resnet50-imagenet", "mobilenetv3l-gld23k"])
def test_a_profile_of_the_jobs_changes_nothing_that_is_believed(name):
    train, infer = table(name), [table(name, 4), table(name, 16)]

    def spoilt(profile: CostProfile) -> CostProfile:
        if profile.workload != name:
            return profile
        worse = replace(profile.coefficients, time=profile.coefficients.time + 9.0)
        return replace(profile, coefficients=worse)

    both = pair()
    honest = build_pair_knowledge(both, train, infer, EVERY).context
    other = build_pair_knowledge(both, train, infer, [spoilt(profile) for profile in EVERY]).context
    assert other.train is not None
    assert honest.train.priors
    assert len(honest.infer) == 2
    for a, b in zip([honest.train, *honest.infer], [other.train, *other.infer], strict=True):
        assert len(a.priors) == len(b.priors) > 0
        assert all(np.array_equal(x.time, y.time) for x, y in zip(a.priors, b.priors, strict=True))


def _worse(profile: CostProfile) -> CostProfile:
    return replace(profile, coefficients=replace(profile.coefficients, time=profile.coefficients.time + 1.0))


def test_what_is_believed_of_training_saw_nothing_of_the_inference_beside_it():
    jobs = pair(), table("vit-b16-cifar10", 32), [table("mobilenetv3l-gld23k", 16)]
    spoilt = [_worse(p) if (p.kind, p.workload) == ("infer", "mobilenetv3l-gld23k") else p for p in EVERY]
    honest, other = (build_pair_knowledge(*jobs, profiles).context.train for profiles in (EVERY, spoilt))
    for x, y in zip(honest.priors, other.priors, strict=True):
        assert np.array_equal(x.time, y.time)


@pytest.mark.parametrize(("train", "infer"), [(None, "resnet50-imagenet"), ("vit-b16-cifar10", "mobilenetv3l-gld23k")])
def test_a_table_that_moves_what_is_believed_is_named_once(train, infer):
    served = [table(infer, size) for size in (1, 4, 16, 32, 64)]
    trained = None if train is None else table(train)
    honest = build_pair_knowledge(pair(), trained, served, EVERY)
    believed = [*([] if honest.context.train is None else [honest.context.train]), *honest.context.infer]
    for profile in EVERY:
        found = build_pair_knowledge(pair(), trained, served, [_worse(p) if p is profile else p for p in EVERY]).context
        again = [*([] if found.train is None else [found.train]), *found.infer]
        moved = any(
            not np.array_equal(x.time, y.time)
            for a, b in zip(believed, again, strict=True)
            for x, y in zip(a.priors, b.priors, strict=True)
        )
        assert moved == any(profile.evidence and profile.evidence.sha256[:12] in name for name in honest.priors)
    assert len(set(honest.priors)) == len(honest.priors)


def test_what_the_priors_saw_is_named():
    seen = build_pair_knowledge(pair(), table("yolov8n-coco"), [table("resnet50-imagenet", 4)], EVERY).priors
    assert any("resnet18-imagenet" in name for name in seen)
    assert any("mobilenetv3l-gld23k infer b16" in name for name in seen)
    assert not any("yolov8n" in name or "resnet50-imagenet" in name for name in seen)


def test_a_board_that_no_catalogue_has_still_gets_priors():
    context = build_pair_knowledge(pair(), table("a", device="mine"), [table("b", 4, device="mine")], EVERY).context
    assert context.train.priors
    assert context.infer[0].priors


def test_without_any_calibration_there_is_a_ground_without_priors():
    context = build_pair_knowledge(pair(), table("a"), [table("b", 4)], ()).context
    assert (context.train.priors, context.infer[0].priors) == ((), ())

"""A fleet entry's ``loader``: what is refused before a run, with a reason, and how it is labelled."""

from __future__ import annotations

import pytest

from experiments.spec.experiment_checks import build_labels
from experiments.spec.resource_checks import check_loader
from fedge.errors import BadInput
from fedge.experiment import Experiment, FleetEntry, LoaderSpec, ServingSpec

SERVING = ServingSpec(cost="mobilenetv3l-gld23k", rate_hz=5, latency_s=2)


def _experiment(entry: FleetEntry, backend: str = "local") -> Experiment:
    return Experiment(fleet=(FleetEntry(device="nano"), entry), backend=backend)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("more", "backend", "why"),
    [
        ({}, "fleet", "hold their stalls already"),
        ({"truth": "table:here.csv"}, "local", "measured table"),
    ],
)
def test_a_loader_that_the_boards_cannot_have_is_refused(more: dict[str, object], backend: str, why: str) -> None:
    entry = FleetEntry(device="agx-xavier", loader=LoaderSpec(workers=1), **more)  # type: ignore[arg-type]

    with pytest.raises(BadInput, match=rf"fleet\[1\]\.loader.*{why}"):
        check_loader(_experiment(entry, backend))


def test_a_loader_may_stand_beside_a_service() -> None:
    entry = FleetEntry(device="agx-xavier", loader=LoaderSpec(workers=1), serving=SERVING)

    check_loader(_experiment(entry))

    assert {"loader", "serving"} <= set(build_labels(_experiment(entry))["agx-xavier"])


def test_an_unknown_storage_is_told_with_its_field() -> None:
    entry = FleetEntry(device="agx-xavier", loader=LoaderSpec(workers=1, storage="floppy"))

    with pytest.raises(BadInput, match=r"fleet\[1\]\.loader\.storage.*floppy"):
        check_loader(_experiment(entry))


def test_a_loader_is_labelled_estimated_and_boards_without_one_say_nothing() -> None:
    experiment = _experiment(FleetEntry(device="agx-xavier", loader=LoaderSpec(workers=1, cached=0.5)))

    told = build_labels(experiment)

    assert "loader" not in told["nano"]
    assert told["agx-xavier"]["loader"] == {
        "label": "estimated",
        "source": "pipeline model: 1 worker, the boards' own storage, images of 0.25 megapixel, 50% in the page cache",
    }

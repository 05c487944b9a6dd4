"""The what-if cards: one for the same turn wherever it helps, its time and its energy, seen and expected apart."""

from __future__ import annotations

from experiments.report.characterisation.characterisation_page import MAX_OTHER_PLACES, build_advice_section
from fedge.characterisation.confidence_interval import Estimate
from fedge.characterisation.tuning_advice import TuningAdvice


def _advice(
    workload: str, saving: float, *, quantity: str = "e2e_s", seen: bool = True, knob: str = "gpu_mhz"
) -> TuningAdvice:
    then = 100.0 * (1.0 - saving)
    return TuningAdvice(
        board="nano-1", workload=workload, kind="train", knob=knob, now=1377.0, then=905.25, quantity=quantity,
        present=100.0, expected=Estimate(then, then - 1, then + 1, 9 if seen else 0), why="because", label="estimated",
        point=workload, setting="batch 16",
    )  # fmt: skip


def test_time_and_energy_of_a_turn_are_on_one_card_with_the_other_workloads() -> None:
    found = [_advice("net", 0.3), _advice("net", 0.2, quantity="energy_j"), _advice("<b>", 0.1)]
    html = build_advice_section(found, {}, 3).html
    assert html.count("<article>") == 1
    assert "GPU clock 1377 → 905.25 MHz" in html
    assert "30.0\xa0% less time per epoch, 20.0\xa0% less energy per epoch" in html
    assert "The same: &lt;b&gt;, nano-1, training: 10.0\xa0% less time per epoch." in html


def test_what_was_seen_and_what_is_expected_are_on_cards_of_their_own() -> None:
    assert (
        build_advice_section([_advice("net", 0.3), _advice("other", 0.2, seen=False)], {}, 2).html.count("<article>")
        == 2
    )


def test_many_places_are_counted_and_so_are_many_cards() -> None:
    places = [_advice(f"net-{i}", 0.5 - 0.01 * i) for i in range(MAX_OTHER_PLACES + 3)]
    assert "; and 2 more." in build_advice_section(places, {}, 9).html
    cards = [_advice("net", 0.3, knob=f"knob-{i}") for i in range(10)]
    assert "1 more is in findings.json." in build_advice_section(cards, {}, 9).html

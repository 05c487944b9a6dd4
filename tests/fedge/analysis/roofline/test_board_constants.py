"""A board's constants follow its clocks, and a network gets the factors of those around it in intensity.

Fitting finds again what made the tables, whatever few rows say, and for a batch size that it never saw.
"""

from dataclasses import replace

import numpy as np
import pytest
from contracts.roofline_boards import NETWORKS, SPEC, TRUTH, modes, table, tables

from fedge.analysis.roofline.board_constants import (
    activation_intensity,
    compute_rooflines,
    fit_constants,
    interpolate_factors,
)
from fedge.analysis.roofline.roofline_model import batch_energy_j, build_roofline_batch, compute_batch_times
from fedge.errors import BadInput
from fedge.modes import stack_modes
from fedge.types import Floats

TOP = SPEC.maxn


def test_each_constant_follows_its_own_clock():
    gpu, mem, cpu = (replace(TOP, **{knob: 0.5 * getattr(TOP, knob)}) for knob in ("gpu_mhz", "mem_mhz", "cpu_mhz"))
    lines = compute_rooflines(TRUTH, stack_modes([TOP, gpu, mem, cpu]))
    extra = lines.overheads
    assert lines.tau_f / lines.tau_f[0] == pytest.approx([1, 2, 1, 1])
    assert lines.tau_m / lines.tau_m[0] == pytest.approx([1, 1, 2, 1])
    assert extra.copy_s / extra.copy_s[0] == pytest.approx([1, 1, 1, 2])
    assert extra.kernel_s / extra.kernel_s[0] == pytest.approx([1, 2, 1, 1])
    assert extra.launch_s[3] > 1.8 * extra.launch_s[0]
    assert (lines.pi_0_w[1:] < lines.pi_0_w[0]).all()


def test_an_unseen_network_gets_factors_between_its_neighbours_and_never_beyond_them():
    light, heavy = TRUTH.networks
    at = [interpolate_factors(TRUTH, i)["tau_f"] for i in (0.01, light.intensity, 12.0, heavy.intensity, 1e4)]
    assert at[0] == pytest.approx(light.factors["tau_f"]) == at[1]
    assert at[1] > at[2] > at[3]
    assert at[3] == pytest.approx(heavy.factors["tau_f"]) == at[4]


def errors(fitted_to: list, name: str, batch_size: int) -> tuple[float, float]:
    """Median error of time and of power on a table without noise."""
    network, truth = NETWORKS[name], table(name, batch_size)
    lines = compute_rooflines(fit_constants(fitted_to, NETWORKS, SPEC), modes(), activation_intensity(network))
    batch = build_roofline_batch(network, batch_size)
    seconds = compute_batch_times(lines, batch).total_s
    watts = batch_energy_j(lines, batch, seconds) / seconds

    def off(found: Floats, true: Floats) -> float:
        return float(np.median(np.abs(found / true - 1.0)))

    return off(seconds, truth.step_s), off(watts, truth.power_w)


@pytest.mark.slow
def test_a_batch_size_that_was_left_out_is_met_within_two_percent():
    seen = [one for one in tables(np.random.default_rng(1)) if (one.workload, one.batch_size) != ("heavy", 16)]
    time_off, power_off = errors(seen, "heavy", 16)
    assert time_off < 0.02
    assert power_off < 0.02


@pytest.mark.slow
def test_rows_in_which_something_else_ran_do_not_bend_the_fit():
    rng = np.random.default_rng(2)
    disturbed = []
    for one in tables(rng, (1, 16)):
        hit = rng.random(len(one.step_s)) < 0.15
        disturbed.append(replace(one, step_s=np.where(hit, one.step_s * rng.uniform(1.3, 3.0, len(hit)), one.step_s)))
    time_off, power_off = errors(disturbed, "light", 16)
    assert time_off < 0.03
    assert power_off < 0.05


def test_what_was_fitted_is_labelled_and_says_to_what():
    found = fit_constants([table("light", 4)], NETWORKS, SPEC)
    assert found.label == "calibrated"
    assert found.source == f"{len(modes())} rows of light at batch 4"
    assert found.maxn == TRUTH.maxn
    assert [one.network for one in found.networks] == ["light"]
    assert found.time_sd_log < 0.01


def test_a_table_of_an_unknown_network_is_refused():
    with pytest.raises(BadInput, match="other, whose layers are not known"):
        fit_constants([replace(table("light", 4), workload="other")], NETWORKS, SPEC)

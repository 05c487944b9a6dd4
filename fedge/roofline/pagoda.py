"""Pagoda's own model: five constants for every mode by itself, fitted to what several batches took and drew in it.

Time and energy are fitted as those of a micro-benchmark's kernels are (``sweep``), with the measured times in the
energy. No overheads, and nothing is shared between modes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedge.errors import BadInput
from fedge.layers.network import NetworkCost
from fedge.roofline.surface import Rooflines
from fedge.roofline.sweep import energies, paces
from fedge.types import Label, ProfileTable


def fit_per_mode(
    tables: Sequence[ProfileTable], networks: Mapping[str, NetworkCost], label: Label = "calibrated"
) -> Rooflines:
    """Rooflines of the modes that all ``tables`` have, row by row; raises ``BadInput`` where they differ."""
    first = tables[0]
    if any(not np.array_equal(table.modes.knobs, first.modes.knobs) for table in tables):
        raise BadInput("tables", "tables with other modes", "tables that all hold the same modes in the same order")
    works = [networks[table.workload].work(table.batch_size) for table in tables]
    step_s = np.stack([table.step_s for table in tables])
    joules = step_s * np.stack([table.power_w for table in tables])
    tau_f, tau_m = paces(works, step_s)
    energy = np.stack([energies(works, seconds, spent) for seconds, spent in zip(step_s.T, joules.T, strict=True)])
    eps_f, eps_m, pi_0_w = energy.T
    return Rooflines(tau_f, tau_m, eps_f, eps_m, pi_0_w, label)

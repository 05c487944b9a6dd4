"""Imports logs of tegrastats, as JetPack 4, 5 and 6 print them: power per rail, a line per sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from fedge.errors import BadInput
from fedge.profiles.importers import Imported
from fedge.profiles.importers.power_log import log_of, measured_in, rails_of
from fedge.profiles.importers.stamps import leading
from fedge.profiles.importers.steps import Steps
from fedge.tegrastats import rails_in

INPUTS = ("VDD_IN", "POM_5V_IN")
"""Rails that are a module's whole input, so that they are the total on boards that fedge does not know, too."""
_STAMPING = 'tegrastats --interval 100 | while read -r l; do echo "$(date +%s.%N) $l"; done'


def from_log(
    where: str, text: str, steps: Steps, device: str, workload: str, total_power: str | None = None
) -> Imported:
    """The modes of ``steps`` with the power logged meanwhile.

    ``total_power`` is the board's formula of its total, e.g. ``"VDD_GPU_SOC + VDD_CPU_CV"``; None for a board that is
    not known, whose input rail is taken. Every line has to begin with its time: JetPack 5 and 6 print one, JetPack 4
    does not. Raises ``BadInput`` for lines without a time, for a log without rails and for one of another board.
    """
    lines = [(line, rails) for line in text.splitlines() if (rails := rails_in(line))]
    if not lines:
        right = "lines with power per rail; newer tegrastats prints it to root only (sudo)"
        raise BadInput(where, "no power in any line", right)
    samples = list(zip(_times(where, [line for line, _ in lines]), [rails for _, rails in lines], strict=True))
    notes = []
    if total_power is None:
        total_power = _input_rail(where, lines[0][1])
        notes.append(f"the board is not in the catalogue: {total_power} is taken for the module's total")
    notes.append(f"power is {total_power}, from {len(samples)} samples")
    return measured_in(where, log_of(where, samples, rails_of(total_power), notes), steps, device, workload)


def _times(where: str, lines: Sequence[str]) -> list[float]:
    """Of each line; those with whole seconds are spread over their second, in their order."""
    stamps = [leading(line) for line in lines]
    times = [stamp for stamp in stamps if stamp is not None]
    if len(times) < len(lines):
        right = f"a time before every line, e.g. {_STAMPING} > FILE"
        raise BadInput(where, f"{len(lines) - len(times)} of {len(lines)} lines without a time", right)
    shared = Counter(at_s for at_s, whole in times if whole)
    before: Counter[float] = Counter()
    spread = []
    for at_s, whole in times:
        spread.append(at_s + (before[at_s] + 0.5) / shared[at_s] if whole else at_s)
        before[at_s] += 1
    return spread


def _input_rail(where: str, rails: Mapping[str, float]) -> str:
    for rail in INPUTS:
        if rail in rails:
            return rail
    right = "--out BOARD/train/WORKLOAD.csv with a board of the catalogue, which says how its rails make the total"
    raise BadInput(where, f"rails {', '.join(rails)}, none of which is the module's input", right)

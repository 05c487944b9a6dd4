"""Import of tegrastats logs of JetPack 4, 5 and 6: power per rail, one line per sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from fedge.devices.sensing.power_formula import rails_in_formula
from fedge.devices.sensing.tegrastats_line import parse_rails_mw
from fedge.devices.tables.importers import ImportedRows
from fedge.devices.tables.importers.power_log import build_power_log, import_runs
from fedge.devices.tables.importers.steps_file import StepsFile
from fedge.devices.tables.importers.timestamps import parse_leading_time
from fedge.errors import BadInput

INPUT_RAILS = ("VDD_IN", "POM_5V_IN")
"""Rails that measure a module's whole input, used as total power for boards that are not in the catalogue."""
_TIMESTAMP_COMMAND = 'tegrastats --interval 100 | while read -r l; do echo "$(date +%s.%N) $l"; done'


def import_tegrastats_log(where: str, text: str, steps: StepsFile, total_power: str | None = None) -> ImportedRows:
    """Import the modes of a steps file with the power that tegrastats logged meanwhile.

    Every line must start with a time: JetPack 5 and 6 print one, JetPack 4 does not. ``total_power`` is a formula such
    as ``"VDD_GPU_SOC + VDD_CPU_CV"``; None takes the input rail.

    Raises:
        BadInput: Lines have no time, or the log has no rails or those of another board.
    """
    lines = [(line, rails) for line in text.splitlines() if (rails := parse_rails_mw(line))]
    if not lines:
        right = "lines with power per rail; newer tegrastats prints it to root only (sudo)"
        raise BadInput(where, "no power in any line", right)
    samples = list(zip(_parse_times_s(where, [line for line, _ in lines]), [rails for _, rails in lines], strict=True))
    notes = []
    if total_power is None:
        total_power = _find_input_rail(where, lines[0][1])
        notes.append(f"the board is not in the catalogue: {total_power} is taken for the module's total")
    notes.append(f"power is {total_power}, from {len(samples)} samples")
    return import_runs(where, build_power_log(where, samples, rails_in_formula(total_power), notes), steps)


def _parse_times_s(where: str, lines: Sequence[str]) -> list[float]:
    """Return the time of each line; lines with whole seconds are spread evenly over their second."""
    stamps = [parse_leading_time(line) for line in lines]
    times = [stamp for stamp in stamps if stamp is not None]
    if len(times) < len(lines):
        right = f"a time before every line, e.g. {_TIMESTAMP_COMMAND} > FILE"
        raise BadInput(where, f"{len(lines) - len(times)} of {len(lines)} lines without a time", right)
    shared = Counter(at_s for at_s, whole in times if whole)
    before: Counter[float] = Counter()
    spread = []
    for at_s, whole in times:
        spread.append(at_s + (before[at_s] + 0.5) / shared[at_s] if whole else at_s)
        before[at_s] += 1
    return spread


def _find_input_rail(where: str, rails: Mapping[str, float]) -> str:
    for rail in INPUT_RAILS:
        if rail in rails:
            return rail
    right = "--out BOARD/train/WORKLOAD.csv with a board of the catalogue, which says how its rails make the total"
    raise BadInput(where, f"rails {', '.join(rails)}, none of which is the module's input", right)

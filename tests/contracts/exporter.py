"""What every exporter does with a run's rows; a test class inherits it, makes the exporter and reads back what it told.

``tests/experiments/cli/conftest.py`` makes rows for reports; these are for exporters: two kinds of boards, one that
fails.
"""

import itertools
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedge.experiment import Experiment, FleetEntry
from fedge.telemetry.store import Row
from fedge.telemetry.store_records import ClientRow, EventRow, RoundRow
from server.exporters import Exporter
from server.exporters.run_metrics import build_collector

ROUND_S = 20.0
FEW = settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors, HealthCheck.too_slow],
)
Figures = dict[str, list[tuple[int, float]]]
"""By name: step and value, in the order of the steps."""


def fleet_of(boards: int = 2, rounds: int = 3) -> Experiment:
    fleet = (FleetEntry(device="nano", count=boards - 1), FleetEntry(device="xavier-nx"))
    return Experiment(name="office", rounds=rounds, fleet=fleet)


def client_row(number: int, board: str, device: str, place: int, failed: bool = False) -> ClientRow:
    """A board that works for 8 s + 1 s per place, ``number`` watts above 10; figures are None where it failed."""
    work_s, start_s = 0.0 if failed else 8.0 + place, (number - 1) * ROUND_S
    power_w = None if failed else 10.0 + number
    return ClientRow(
        number, board, "" if failed else device, "failed" if failed else "done", "no answer" if failed else None,
        start_s, start_s + work_s + 2.0, 22.0, 1.0, work_s, 1.0, 8.0 - place, True, "", 2, 710.4, 460.8, 1600.0,
        100, 0, 0.0, 0.0, 800, None if failed else work_s / 100, 1.1 * work_s / 100, 0.1, power_w, 9.0, 0.1, 2.0,
        80.0, 1.0, 90.0 + place, 4.0, 120.0, 8.0, 70.0, 30.0, 50.0, 40.0, 0.5, 0.9,
        None if failed else 40.0 + number, False, None, None, 0.3 / number, 0.1,
    )  # fmt: skip


def round_row(number: int, boards: int, failed: int = 0, accuracy: float | None = None) -> RoundRow:
    end_s = number * ROUND_S
    return RoundRow(
        number, end_s - ROUND_S, end_s, ROUND_S, 22.0, "nano-1", boards, boards - failed, 0, failed, 100.0, 70.0, 60.0,
        16.0, 200.0, 160.0, 1.0 / number, 1 - 0.5 / number if accuracy is None else accuracy,
    )  # fmt: skip


def round_of(number: int, boards: int = 2, accuracy: float | None = None) -> list[Row]:
    """A round's rows in the order in which a run writes them; in the second one a board fails."""
    devices = [("nano", f"nano-{i}") for i in range(1, boards)] + [("xavier-nx", "xavier-nx-1")]
    failed = number == 2
    clients = [client_row(number, b, d, p, failed and p == 0) for p, (d, b) in enumerate(devices)]
    events = [EventRow(number * ROUND_S, number, "nano-1", "failed", "no answer")] if failed else []
    return [*clients, *events, round_row(number, boards, int(failed), accuracy)]


def rows_of(rounds: int = 3, boards: int = 2) -> list[Row]:
    return [row for number in range(1, rounds + 1) for row in round_of(number, boards)]


def expected(experiment: Experiment, rows: list[Row]) -> Figures:
    """What the rows say, by the figures that every exporter tells."""
    figures: Figures = {}
    for told in build_collector(experiment).collect_rounds(rows):
        for name, value in told.figures.items():
            figures.setdefault(name, []).append((told.round, value))
    return figures


class ExporterContract:
    """A test class inherits it and says how the exporter is made, and how what it told is read."""

    def make(self, experiment: Experiment, folder: Path) -> Exporter:
        raise NotImplementedError

    def read(self, folder: Path) -> Figures:
        raise NotImplementedError

    def told(self, folder: Path, *portions: list[Row], experiment: Experiment | None = None) -> Figures:
        """What can be read after one session with these portions."""
        exporter = self.make(experiment or fleet_of(), folder)
        for rows in portions:
            exporter.append(rows)
        exporter.close()
        return self.read(folder)

    def same(self, got: Figures, right: Figures) -> bool:
        """Equal but for single precision."""
        assert got.keys() == right.keys()
        return all(
            [step for step, _ in got[name]] == [step for step, _ in right[name]]
            and all(math.isclose(a, b, rel_tol=1e-6) for (_, a), (_, b) in zip(got[name], right[name], strict=True))
            for name in right
        )

    def test_every_round_is_told_as_the_rows_say(self, tmp_path):
        assert self.same(self.told(tmp_path, rows_of()), expected(fleet_of(), rows_of()))

    @FEW
    @given(st.lists(st.integers(0, len(rows_of())), max_size=5))
    def test_however_the_rows_are_portioned_the_same_is_told(self, tmp_path_factory, cuts):
        rows, folder = rows_of(), tmp_path_factory.mktemp("run")
        places = [0, *sorted(cuts), len(rows)]
        portions = [rows[a:b] for a, b in itertools.pairwise(places)]

        assert self.same(self.told(folder, *portions), expected(fleet_of(), rows))

    def test_a_round_without_its_own_row_is_not_told(self, tmp_path):
        rows = [*round_of(1), *round_of(2)[:-1]]

        assert self.same(self.told(tmp_path, rows), expected(fleet_of(), round_of(1)))

    def test_a_second_session_goes_on_and_a_round_played_again_is_there_once(self, tmp_path):
        self.told(tmp_path, round_of(1), round_of(2))

        told = self.told(tmp_path, round_of(2), round_of(3))

        assert self.same(told, expected(fleet_of(), rows_of()))

    def test_a_run_told_twice_as_a_whole_is_there_once(self, tmp_path):
        self.told(tmp_path, rows_of())

        assert self.same(self.told(tmp_path, rows_of()), expected(fleet_of(), rows_of()))

    def test_a_model_that_diverged_is_told_too(self, tmp_path):
        told = self.told(tmp_path, round_of(1, accuracy=math.nan))

        [(step, accuracy)] = told["round/accuracy"]
        assert step == 1
        assert math.isnan(accuracy)

    def test_a_large_fleet_is_told_by_kind(self, tmp_path):
        experiment = fleet_of(65)

        told = self.told(tmp_path, round_of(1, 65), experiment=experiment)

        assert not [name for name in told if name.startswith("board_")]
        # The 64 Nanos work for 8 s to 71 s, at 11 W.
        assert told["kind_work_s/nano"] == [(1, pytest.approx(39.5))]
        assert told["kind_power_w/xavier-nx"] == [(1, pytest.approx(11.0))]

    def test_closing_twice_and_closing_without_a_row_are_no_mistakes(self, tmp_path):
        exporter = self.make(fleet_of(), tmp_path)
        exporter.close()
        exporter.close()

    def test_after_the_end_rows_are_refused(self, tmp_path):
        exporter = self.make(fleet_of(), tmp_path)
        exporter.append(round_of(1))
        exporter.close()

        with pytest.raises(ValueError, match="closed"):
            exporter.append(round_of(2))

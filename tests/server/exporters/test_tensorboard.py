"""TensorBoard's own reader finds every figure of a run."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from contracts.exporter import ExporterContract, Figures, expected, fleet_of, round_of, rows_of

from fedge.experiment import Experiment
from server.exporters import Exporter
from server.exporters.tensorboard import TensorBoard

pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")


def reader_of(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0})
    reader.Reload()
    return reader


class TestTensorBoard(ExporterContract):
    def make(self, experiment: Experiment, folder: Path) -> Exporter:
        return TensorBoard(experiment, folder)

    def read(self, folder: Path) -> Figures:
        reader = reader_of(folder / "tensorboard")
        return {name: [(e.step, e.value) for e in reader.Scalars(name)] for name in reader.Tags()["scalars"]}

    def test_a_file_that_a_crash_cut_short_hides_no_later_round(self, tmp_path):
        self.told(tmp_path, round_of(1), round_of(2))
        [file] = (tmp_path / "tensorboard").iterdir()
        file.write_bytes(file.read_bytes()[:-7])

        assert self.same(self.told(tmp_path, round_of(2), round_of(3)), expected(fleet_of(), rows_of()))

    def test_the_time_of_an_event_is_the_fleets_clock(self, tmp_path):
        self.told(tmp_path, rows_of())

        times = [event.wall_time for event in reader_of(tmp_path / "tensorboard").Scalars("round/accuracy")]
        assert times == [20.0, 40.0, 60.0]

    def test_the_experiment_is_there_as_text_once_with_the_labels_of_its_figures(self, tmp_path):
        self.told(tmp_path, round_of(1))
        self.told(tmp_path, round_of(2))

        reader = reader_of(tmp_path / "tensorboard")
        [text] = reader.Tensors("experiment")
        [figures] = reader.Tensors("figures")
        assert "name: office" in text.tensor_proto.string_val[0].decode()
        assert "- nano: estimated" in figures.tensor_proto.string_val[0].decode()
        assert "_hparams_/session_start_info" in reader.Tags()["tensors"]

    def test_a_folder_of_ones_own_is_written_to(self, tmp_path):
        exporter = TensorBoard(fleet_of(), tmp_path / "run", out=str(tmp_path / "elsewhere"))
        exporter.append(round_of(1))
        exporter.close()

        assert math.isclose(reader_of(tmp_path / "elsewhere").Scalars("round/loss")[0].value, 1.0)

    def test_neither_torch_nor_tensorflow_is_imported_for_it(self, tmp_path):
        code = (
            "import sys; from pathlib import Path; sys.path.insert(0, 'tests')\n"
            "from contracts.exporter import fleet_of, round_of\n"
            "from server.exporters.tensorboard import TensorBoard\n"
            f"e = TensorBoard(fleet_of(), Path({str(tmp_path)!r})); e.append(round_of(1)); e.close()\n"
            "print(sorted({'tensorflow', 'torch'} & set(sys.modules)))"
        )
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

        assert ran.stdout == "[]\n"

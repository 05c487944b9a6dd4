"""The board at hand as a whole: what a lost thermometer costs, which is nothing."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedge.devices.local_board import LocalBoard, load_local_settings, read_settings
from fedge.errors import BadInput, SensorLost
from fedge.types import SensorSample


class Sensor:
    """Says ``sample``, or is lost."""

    def __init__(self, sample: SensorSample | None) -> None:
        self._sample = sample

    def read(self) -> SensorSample:
        if self._sample is None:
            raise SensorLost("VDD_IN cannot be read")
        return self._sample


@pytest.mark.parametrize(
    ("sample", "hottest_c"),
    [
        (SensorSample(0.0, 5.0, temperatures_c={"cpu": 47.5, "gpu": 46.0}), 47.5),
        (SensorSample(0.0, 5.0, temperatures_c={"cpu": 0.0}), 0.0),
        (SensorSample(0.0, 5.0), None),
        (None, None),
    ],
)
def test_the_hottest_temperature_is_told_where_it_can_be_read(sample, hottest_c):
    nobody: Any = SimpleNamespace()
    here = LocalBoard(nobody, Sensor(sample), nobody, nobody, nobody)

    assert here.hottest_c() == hottest_c


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "node.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_name_is_enough(tmp_path):
    settings = read_settings(written(tmp_path, "board: nano-3\n"))

    assert settings.board == "nano-3"
    assert settings.power_socket == "/run/fedge/powerd.sock"
    assert settings.place.holder == "run on nano-3"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "at least 'board: NAME'"),
        (
            "board: nano\nsocket: /x\n",
            "node.yaml: socket: got an unknown key; did you mean power_socket or .* known here: board, device",
        ),
        ("board: 'two words'\n", "node.yaml: board: got 'two words'"),
        ("board: nano\nsample_hz: 100\n", "node.yaml: sample_hz: got 100"),
        ("board: [", "text that is not YAML"),
        ("just text", "at least 'board: NAME'"),
        ("", "at least 'board: NAME'"),
    ],
)
def test_what_is_wrong_is_named(text, message, tmp_path):
    with pytest.raises(BadInput, match=message):
        read_settings(written(tmp_path, text))


def test_a_person_at_a_board_needs_no_file():
    assert load_local_settings().board


TELEMETRY = "board: nano-3\ntelemetry: {url: 'https://fleet:9443/telemetry', ca: /ca, certificate: /c, key: /k}\n"


def test_telemetry_is_off_unless_it_is_asked_for(tmp_path):
    assert read_settings(written(tmp_path, "board: nano-3\n")).telemetry is None
    found = read_settings(written(tmp_path, TELEMETRY))
    assert found.telemetry.spool_mb == 64
    assert found.live_dir == found.state_dir / "live"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("https", "http", "telemetry.url: got 'http://fleet:9443/telemetry'"),
        ("key: /k", "kee: /k", "telemetry.k"),
        ("https://fleet", "https://user:word@fleet", "telemetry.url"),
    ],
)
def test_what_is_wrong_with_telemetry_is_named(old, new, message, tmp_path):
    with pytest.raises(BadInput, match=message):
        read_settings(written(tmp_path, TELEMETRY.replace(old, new)))

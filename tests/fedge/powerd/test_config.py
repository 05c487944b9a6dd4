"""The daemon's file: strict, and every mistake told with what would be right."""

import json
import os

import pytest

from fedge.powerd.config import FIELDS, BadConfig, Config, load, parse

EVERYTHING = {
    "floor": {"cores": 3, "cpu_khz": 500000},
    "emc": "cap",
    "emc_table_hz": [204000000, 1600000000],
    "hottest_c": 80,
    "needed_zones": ["CPU-therm"],
    "extras": ["fan", "drop-caches"],
    "group": "lab",
    "socket": "/run/other.sock",
    "state": "/var/lib/other",
}


def test_everything_in_a_file_is_taken():
    assert parse(json.dumps(EVERYTHING)) == Config(
        3,
        500000,
        "cap",
        (204000000, 1600000000),
        80.0,
        ("CPU-therm",),
        ("drop-caches", "fan"),
        "lab",
        "/run/other.sock",
        "/var/lib/other",
    )
    assert set(EVERYTHING) == set(FIELDS)


def test_an_empty_file_is_all_defaults_with_every_extra_off():
    assert parse("{}") == Config()
    assert Config().extras == ()
    assert (Config().floor_cores, Config().floor_cpu_khz, Config().group) == (2, 400000, "fedge")


@pytest.mark.parametrize("limit_c", [40, 110])
def test_both_ends_of_the_permitted_temperatures_are_taken(limit_c):
    assert parse(json.dumps({"hottest_c": limit_c})).hottest_c == limit_c


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('{"flor": {}}', "known: floor, emc"),
        ('{"floor": {"gpu": 1}}', "known: floor.cores, floor.cpu_khz"),
        ('{"floor": 2}', "cores"),
        ('{"floor": {"cores": 0}}', "at least 1"),
        ('{"floor": {"cores": true}}', "whole number"),
        ('{"emc": "off"}', '"lock"'),
        ('{"emc_table_hz": [2, 1]}', "rise"),
        ('{"emc_table_hz": 2}', "list"),
        ('{"hottest_c": 39.5}', "from 40 to 110"),
        ('{"hottest_c": 110.5}', "from 40 to 110"),
        ('{"hottest_c": NaN}', "from 40 to 110"),
        ('{"hottest_c": "95"}', "from 40 to 110"),
        ('{"needed_zones": [""]}', "needed_zones[0]"),
        ('{"extras": ["reboot"]}', "known: drop-caches, fan, lock-min"),
        ('{"group": ""}', "group"),
        ('{"socket": "powerd.sock"}', "begins with /"),
        ('{"group": "a", "group": "b"}', "twice"),
        ("[]", "one JSON object"),
    ],
)
def test_a_mistake_is_refused_with_the_field_and_what_is_right(text, word):
    with pytest.raises(BadConfig) as caught:
        parse(text)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_json_or_no_text_names_itself(tmp_path):
    path = tmp_path / "powerd.json"
    for content in (b"{", b"\xff\xfe", b"[" * 50000):
        path.write_bytes(content)
        with pytest.raises(BadConfig, match=r"powerd\.json"):
            load(path, needed=True)


def test_a_missing_file_is_all_defaults_unless_it_was_asked_for(tmp_path):
    assert load(tmp_path / "none.json", needed=False) == Config()
    with pytest.raises(BadConfig, match="no such file"):
        load(tmp_path / "none.json", needed=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only a root daemon has to distrust others")
def test_a_root_daemon_obeys_no_file_that_others_can_write(tmp_path):
    path = tmp_path / "powerd.json"
    path.write_text("{}")
    path.chmod(0o646)
    with pytest.raises(BadConfig, match="others than root"):
        load(path, needed=True)
    path.chmod(0o644)
    assert load(path, needed=True) == Config()

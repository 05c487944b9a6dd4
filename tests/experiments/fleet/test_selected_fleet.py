"""What is wrong with an inventory, told before any board is touched."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from experiments.fleet.inventory import Inventory, parse_inventory, read_inventory
from experiments.fleet.key_folder import create_keys
from experiments.fleet.selected_fleet import find_example_hosts, find_problems

NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fleet") / "keys"
    create_keys(folder, ["fleet.lan", "10.1.2.3"], NOW, 365)
    return folder


def fleet(keys: Path, server: dict[str, Any] | None = None, board: dict[str, Any] | None = None) -> Inventory:
    """A fleet that has nothing wrong, with changes."""
    paths = {"superlink_certificate": "server.crt", "superlink_key": "server.key", "superlink_ca_certificate": "ca.crt"}
    ours = {key: str(keys / name) for key, name in paths.items()}
    theirs = {"supernode_superlink": "fleet.lan:9443", "supernode_ca_certificate": str(keys / "ca.crt")}
    listed = {
        "_meta": {"hostvars": {"hub": {**ours, **(server or {})}, "nano-1": {**theirs, **(board or {})}}},
        "server": {"hosts": ["hub"]},
        "boards": {"children": ["jetpack4"]},
        "jetpack4": {"hosts": ["nano-1"]},
    }
    return parse_inventory(listed, Path("inventory.yml"))


def told(found: Inventory, now: datetime = NOW) -> str:
    return "\n".join(str(problem) for problem in find_problems(found, Path("/nowhere"), now))


def test_a_fleet_with_everything_has_no_problem(keys):
    assert told(fleet(keys)) == ""
    assert told(fleet(keys, board={"supernode_superlink": "10.1.2.3:9443", "worker_torch": ""})) == ""


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("fleet.lan", ("host:port",)),
        (
            "192.168.1.10:9443",
            ("192.168.1.10:9443, but", "10.1.2.3", "every board would refuse it", "--renew --host 192.168.1.10"),
        ),
        ("", ("supernode_superlink of nano-1: got nothing",)),
    ],
)
def test_the_server_s_certificate_has_to_name_the_host_that_boards_dial(keys, address, words):
    text = told(fleet(keys, board={"supernode_superlink": address}))

    assert [word for word in words if word not in text] == []


def test_certificates_that_ended_or_have_not_begun_are_named(keys):
    assert "a certificate that ended on" in told(fleet(keys), NOW + timedelta(days=400))
    assert told(fleet(keys), NOW + timedelta(days=4000)).count("a certificate that ended on") == 2
    assert "a certificate that begins on" in told(fleet(keys), NOW - timedelta(days=2))


def test_a_server_of_another_ca_and_a_file_that_is_no_certificate_are_named(keys, tmp_path):
    create_keys(tmp_path / "other", ["fleet.lan"], NOW, 365)
    (tmp_path / "none.crt").write_text("nothing", encoding="utf-8")

    for name, words in {"other/ca.crt": "did not sign", "none.crt": "holds no certificate"}.items():
        assert words in told(fleet(keys, board={"supernode_ca_certificate": str(tmp_path / name)}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("worker_torch", "/not/there/torch.whl"),
        ("worker_wheels", ["/not/there/dataclasses.whl"]),
        ("python_runtime_wheelhouse", "wheels/board"),
    ],
)
def test_a_file_that_is_not_there_is_named_with_its_host(keys, key, value):
    text = told(fleet(keys, board={key: value}))

    assert f"{key} of nano-1" in text
    assert "where nothing is" in text


@pytest.mark.parametrize("value", ["1192.0.2.1", "192.0.2.1.5", "192.0.3.1", "999.0.2.1", "192.0.02.1"])
def test_what_only_looks_like_the_example_s_address_is_taken(keys, value):
    assert told(fleet(keys, board={"note": value})) == ""


@pytest.mark.parametrize("value", ["https://host/torch.whl", "", "{{ wheels }}/torch.whl"])
def test_what_is_no_file_of_this_machine_is_not_looked_for(keys, value):
    assert told(fleet(keys, board={"worker_torch": value})) == ""


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ansible_host", "192.0.2.21"),
        ("supernode_superlink", "192.0.2.10:9443"),
        ("worker_torch", "/secure/fedge/torch.whl"),
        ("jetson_base_time_servers", ["192.0.2.1"]),
        ("superlink_extra_index", "https://192.0.2.1/torch-cpu"),
    ],
)
def test_what_is_still_the_example_s_is_named_once(keys, key, value):
    text = told(fleet(keys, board={key: value}))

    assert text.count(f"{key} of nano-1") == 1
    assert "the example's" in text


def test_what_the_server_needs_is_asked_for(keys):
    assert "superlink_key of hub: got nothing" in told(fleet(keys, {"superlink_key": None}))


def test_a_variable_with_many_of_the_example_s_values_is_one_line(keys):
    many = [f"192.0.2.{i}" for i in range(1, 6)]
    text = told(fleet(keys, board={"jetson_base_time_servers": many}))

    assert text.count("jetson_base_time_servers") == 1
    assert "'192.0.2.1' and 4 more" in text


def test_hosts_with_the_example_s_addresses_are_named_for_every_command(keys):
    assert find_example_hosts(fleet(keys, board={"supernode_superlink": "192.0.2.10:9443"})) == []
    (problem,) = find_example_hosts(fleet(keys, board={"ansible_host": "192.0.2.21"}))

    assert "ansible_host of nano-1" in problem.where


@pytest.mark.fleet
@pytest.mark.slow
def test_the_example_is_nothing_but_placeholders(project_root):
    pytest.importorskip("ansible", reason="the extra `fleet` is not installed")
    folder = project_root / "ansible"
    found = read_inventory(folder / "inventory.example.yml", folder)
    told_ = find_problems(found, folder, NOW)

    assert {"ansible_host", "worker_torch"} <= {problem.where.split()[1] for problem in told_}
    assert all("the example's" in problem.right for problem in told_)
    (hosts,) = find_example_hosts(found)
    assert f"{found.server.name}, {found.boards[0].name} and {len(found.boards) - 1} more" in hosts.where

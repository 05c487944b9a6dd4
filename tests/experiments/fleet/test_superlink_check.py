"""Which ways to a SuperLink an experiment may name."""

from datetime import UTC, datetime

import pytest

from experiments.backends.launcher import check_runnable as check_experiment
from experiments.fleet.key_folder import create_keys
from experiments.fleet.superlink_check import check_superlink
from fedge.errors import BadInput
from fedge.experiment import Experiment, SuperlinkSpec


@pytest.mark.parametrize("address", ["127.0.0.1:8000", "localhost:8000", "[::1]:8000", "127.0.0.2:1"])
def test_loopback_may_go_without_encryption(address):
    check_superlink(SuperlinkSpec(address=address))


@pytest.mark.parametrize("address", ["192.168.1.10:8000", "fleet.lan:8000", "0.0.0.0:8000", "127.0.0.1.evil.org:1"])
def test_plain_text_on_a_network_is_refused(address):
    with pytest.raises(BadInput, match=r"superlink.address: got .* without a CA; superlink.root_certificates"):
        check_superlink(SuperlinkSpec(address=address))


@pytest.mark.parametrize("address", ["", "fleet.lan", ":8000", "fleet.lan:", "fleet.lan:http", "fleet.lan:70000"])
def test_an_address_without_host_or_port_is_refused(address):
    with pytest.raises(BadInput, match=r"superlink\.address: .*host:port"):
        check_superlink(SuperlinkSpec(address=address))


def test_a_ca_on_disk_makes_any_address_fine(tmp_path):
    create_keys(tmp_path / "keys", ["fleet.lan"], datetime.now(UTC), days=1)

    check_superlink(SuperlinkSpec(address="fleet.lan:9444", root_certificates=str(tmp_path / "keys" / "ca.crt")))


@pytest.mark.parametrize(("name", "reason"), [("none.crt", "No such file"), ("keys/ca.key", "it holds no certificate")])
def test_a_ca_that_is_none_is_refused_before_the_run(tmp_path, name, reason):
    create_keys(tmp_path / "keys", ["fleet.lan"], datetime.now(UTC), days=1)
    superlink = {"address": "fleet.lan:9444", "root_certificates": str(tmp_path / name)}
    experiment = Experiment.model_validate({"backend": "fleet", "fleet": [{"device": "nano"}], "superlink": superlink})

    with pytest.raises(BadInput, match=f"superlink.root_certificates: .*{reason}"):
        check_experiment(experiment)

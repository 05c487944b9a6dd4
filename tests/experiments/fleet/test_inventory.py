"""The inventory as Ansible reads it."""

import subprocess
from pathlib import Path

import pytest
import yaml

from experiments.fleet import inventory
from fedge.errors import BadInput


@pytest.mark.parametrize(
    ("listed", "word"),
    [
        ({"boards": {"hosts": ["a"]}}, "'server'"),
        ({"server": {"hosts": ["a", "b"]}, "boards": {"hosts": ["c"]}}, r"2 hosts \(a, b\)"),
        ({"server": {"hosts": ["a"]}}, "'boards'"),
    ],
)
def test_a_fleet_needs_one_server_and_a_board(listed, word):
    with pytest.raises(BadInput, match=word):
        inventory.parse_inventory(listed, Path("inventory.yml"))


def test_no_inventory_says_what_to_copy(tmp_path):
    with pytest.raises(BadInput, match=r"inventory\.example\.yml"):
        inventory.read_inventory(tmp_path / "inventory.yml", tmp_path)


@pytest.mark.fleet
@pytest.mark.slow
class TestRead:
    """With Ansible's own program."""

    @pytest.fixture(autouse=True)
    def needs_ansible(self) -> None:
        pytest.importorskip("ansible", reason="the extra `fleet` is not installed")

    def write(self, folder: Path, content: object) -> Path:
        path = folder / "inventory.yml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
        return path

    def test_groups_and_their_variables_are_ansible_s(self, tmp_path):
        (tmp_path / "group_vars").mkdir()
        (tmp_path / "group_vars" / "boards.yml").write_text("ansible_user: admin\n", encoding="utf-8")
        boards = {
            "children": {"old": {"hosts": {"nano-1": {"ansible_host": "10.0.0.1"}}}, "new": {"hosts": {"thor-1": {}}}}
        }
        path = self.write(tmp_path, {"server": {"hosts": {"hub": {}}}, "boards": boards})
        found = inventory.read_inventory(path, tmp_path)

        assert found.server.name == "hub"
        assert set(found.board_names) == {"nano-1", "thor-1"}
        assert {board.text("ansible_user") for board in found.boards} == {"admin"}

    def test_a_limit_is_ansible_s(self, tmp_path):
        path = self.write(tmp_path, {"server": {"hosts": {"hub": {}}}, "boards": {"hosts": {"a": {}, "b": {}}}})

        assert inventory.match_hosts(inventory.read_inventory(path, tmp_path), tmp_path, "boards:!a") == ("b",)

    @pytest.mark.parametrize(
        ("limit", "word"), [("c", "'c'"), ("a,c", "'c'"), ("@nowhere", "nowhere"), ("a:!a", "a:!a")]
    )
    def test_a_limit_that_means_nobody_is_the_users_mistake(self, tmp_path, limit, word):
        path = self.write(tmp_path, {"server": {"hosts": {"hub": {}}}, "boards": {"hosts": {"a": {}, "b": {}}}})
        found = inventory.read_inventory(path, tmp_path)

        with pytest.raises(BadInput, match=f"--limit: got .*{word}"):
            inventory.match_hosts(found, tmp_path, limit)

    def test_a_file_in_a_vault_is_opened_and_a_single_value_is_left_to_ansible(self, tmp_path, monkeypatch):
        (tmp_path / "password").write_text("pass", encoding="utf-8")
        monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(tmp_path / "password"))
        vault = inventory.find_program("ansible-vault")
        single = subprocess.run(
            [vault, "encrypt_string", "hunter2", "--name", "superlink_key"], capture_output=True, text=True, check=True
        )
        text = "server:\n  hosts:\n    hub:\n" + "".join(f"      {line}\n" for line in single.stdout.splitlines())
        path = self.write(tmp_path, text + "boards: {hosts: {a: {}}}\n")
        (tmp_path / "group_vars").mkdir()
        whole = tmp_path / "group_vars" / "server.yml"
        whole.write_text("superlink_user: fedge-hub\n", encoding="utf-8")
        subprocess.run([vault, "encrypt", str(whole)], capture_output=True, check=True)
        server = inventory.read_inventory(path, tmp_path).server

        assert server.text("superlink_user") == "fedge-hub"
        assert server.text("superlink_key") == inventory.SEALED

    def test_a_file_that_is_none_is_refused_with_ansible_s_words(self, tmp_path):
        with pytest.raises(BadInput, match="an inventory that Ansible refuses"):
            inventory.read_inventory(self.write(tmp_path, "server: [}"), tmp_path)

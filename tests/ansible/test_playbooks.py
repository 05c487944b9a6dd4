"""The playbooks: every variable is known, every file is there, and what site.yml makes remove.yml takes away."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
ANSIBLE = ROOT / "ansible"
ROLES = sorted(path.name for path in (ANSIBLE / "roles").iterdir() if path.is_dir())
FILES = {"copy", "template", "file", "unarchive", "lineinfile", "get_url"}
"""Modules that make files."""
LEFT = {"/etc/fstab"}
"""A file of the system's, in which fedge has a line; see below for that line."""


def _yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _tasks(node: Any) -> Iterator[dict[str, Any]]:
    """Every task, those inside blocks too."""
    if isinstance(node, list):
        for item in node:
            yield from _tasks(item)
    elif isinstance(node, dict):
        yield node
        for key in ("tasks", "pre_tasks", "post_tasks", "block", "rescue", "always", "handlers"):
            yield from _tasks(node.get(key, []))


@cache
def _role_tasks(role: str) -> tuple[dict[str, Any], ...]:
    folder = ANSIBLE / "roles" / role
    paths = [*sorted(folder.glob("tasks/*.yml")), *sorted(folder.glob("handlers/*.yml"))]
    return tuple(task for path in paths for task in _tasks(_yaml(path)))


@cache
def _playbook(name: str) -> tuple[dict[str, Any], ...]:
    return tuple(_brought_in(tuple(_tasks(_yaml(ANSIBLE / f"{name}.yml")))))


def _brought_in(tasks: tuple[dict[str, Any], ...]) -> Iterator[dict[str, Any]]:
    """The tasks in order, with those of the files and of the power daemon's list that they bring in."""
    for task in tasks:
        yield task
        file = task.get("ansible.builtin.import_tasks") or task.get("ansible.builtin.include_tasks")
        role = task.get("ansible.builtin.import_role", {})
        if file and file.startswith("tasks/"):
            yield from _brought_in(tuple(_tasks(_yaml(ANSIBLE / file))))
        elif role.get("tasks_from") == "restored":
            yield from _tasks(_yaml(ANSIBLE / "roles" / role["name"] / "tasks" / "restored.yml"))


@cache
def _defaults(role: str) -> dict[str, Any]:
    path = ANSIBLE / "roles" / role / "defaults" / "main.yml"
    return (_yaml(path) or {}) if path.is_file() else {}


def _own_names(tasks: tuple[dict[str, Any], ...]) -> set[str]:
    """What tasks themselves give a value."""
    names = set()
    for task in tasks:
        names |= {task[key] for key in ("register",) if key in task}
        names |= set(task.get("vars", {})) | set(task.get("ansible.builtin.set_fact", {}))
    return names


def _text(role: str) -> str:
    folder = ANSIBLE / "roles" / role
    paths = [path for part in ("tasks", "templates", "handlers") for path in sorted((folder / part).glob("*"))]
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


@pytest.mark.parametrize("role", ROLES)
def test_every_variable_that_a_role_uses_has_a_value(role):
    used = set(re.findall(rf"(?<![/\w.-]){role}_[a-z0-9_]+", _text(role)))

    assert used
    assert used <= set(_defaults(role)) | _own_names(_role_tasks(role))


@pytest.mark.parametrize("role", ROLES)
def test_no_role_reads_another_roles_variables(role):
    text, others = _text(role), [name for name in ROLES if name != role]

    assert not re.findall(rf"(?<![/\w.-])(?:{'|'.join(others)})_[a-z0-9_]+", text)


@pytest.mark.parametrize("role", ROLES)
def test_every_variable_of_a_role_is_used(role):
    assert not [name for name in _defaults(role) if not re.search(rf"\b{name}\b", _text(role))]


def _groups(node: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, group in node.items():
        yield name, group or {}
        yield from _groups((group or {}).get("children") or {})


@cache
def _inventory() -> dict[str, dict[str, Any]]:
    """Groups that are named twice hold what both places say."""
    found: dict[str, dict[str, Any]] = {}
    for name, group in _groups(_yaml(ANSIBLE / "inventory.example.yml")):
        found[name] = found.get(name, {}) | group
    return found


def test_the_example_has_a_server_and_boards_of_four_jetpacks():
    groups = _inventory()

    assert set(groups["boards"]["children"]) == {"jetpack4", "jetpack5", "jetpack6", "jetpack7"}
    assert all(groups[name]["hosts"] for name in ("server", *groups["boards"]["children"]))


def test_the_example_sets_only_variables_that_a_role_or_ansible_knows():
    known = {name for role in ROLES for name in _defaults(role)}
    vars_of = [group.get("vars") or {} for group in _inventory().values()]
    vars_of += [host or {} for group in _inventory().values() for host in (group.get("hosts") or {}).values()]
    named = {name for names in vars_of for name in names}

    assert named
    assert {name for name in named if not name.startswith("ansible_")} <= known | {"monitoring_enabled"}


def test_the_settings_that_the_roles_write_are_settings_that_the_programs_know():
    from experiments.backends.dashboard_target import DashboardSettings
    from fedge.devices.local_board import TelemetrySettings

    service = next(task for task in _role_tasks("board_page") if task.get("name") == "Write its settings")
    written = next(task for task in _role_tasks("supernode") if task.get("name") == "Write the board's settings")

    assert set(service["vars"]["board_page_own"]) <= set(DashboardSettings.model_fields)
    assert set(written["vars"]["supernode_told_by"]) <= set(TelemetrySettings.model_fields)
    filled = {
        key: value.replace("{{ supernode_superlink }}", "server:9443")
        for key, value in written["vars"]["supernode_told_by"].items()
    }
    TelemetrySettings.model_validate(filled)


def test_a_board_needs_telling_nothing_where_no_key_of_the_ca_is_named():
    of_site = next(play for play in _playbook("site") if play.get("hosts") == "boards")["roles"]

    assert _defaults("telemetry")["telemetry_ca_key"] == ""
    for roles in (of_site, _upgraded_roles()):
        (entry,) = [role for role in roles if role["role"] == "supernode"]
        assert entry["vars"]["supernode_telemetry"] == "{{ (telemetry_ca_key | default('')) | length > 0 }}"


def test_the_key_of_the_ca_stays_on_the_control_node():
    uses = [task for role in ROLES for task in _role_tasks(role) if "--ca-key={{ telemetry_ca_key" in str(task)]

    assert [task["delegate_to"] for task in uses] == ["localhost"]
    assert all(task["become"] is False for task in uses)


def test_the_example_gives_a_value_to_everything_that_has_none_by_itself():
    groups = _inventory()
    given = set(groups["all"]["vars"]) | {name for host in groups["server"]["hosts"].values() for name in host}

    for name in ("supernode_superlink", "supernode_ca_certificate", "superlink_certificate", "superlink_key"):
        assert not _defaults(name.partition("_")[0])[name]
        assert name in given


def test_the_boards_settings_of_the_example_are_settings_that_the_programs_know():
    from fedge.devices.local_board import NodeSettings
    from fedge.powerd import config

    hosts = [host or {} for group in _inventory().values() for host in (group.get("hosts") or {}).values()]
    power = [host["powerd_settings"] for host in hosts if "powerd_settings" in host]
    node = [host["supernode_settings"] for host in hosts if "supernode_settings" in host]

    assert power
    assert node
    for settings in node:
        NodeSettings.model_validate({"board": "board-1"} | settings)
    source = Path(config.__file__).read_text(encoding="utf-8")
    assert all(f'"{key}"' in source for settings in power for key in settings)


@pytest.mark.parametrize("role", ROLES)
def test_every_template_and_every_list_of_tasks_that_a_role_names_is_there(role):
    folder = ANSIBLE / "roles" / role
    for task in _role_tasks(role):
        template = task.get("ansible.builtin.template", {}).get("src", "")
        names = (
            [template.replace("{{ item.unit }}", item["unit"]) for item in task["loop"]]
            if "item" in template
            else [template]
        )
        assert all((folder / "templates" / name).is_file() for name in names if name and "{{" not in name)
        included = task.get("ansible.builtin.include_tasks")
        assert included is None or (folder / "tasks" / included).is_file()


@pytest.mark.parametrize("package", ["powerd", "worker"])
def test_the_files_that_a_board_is_sent_are_the_whole_package(package):
    """The roles send *.py of one folder: a folder inside it or another kind of file would be left behind."""
    folder = ROOT / "fedge" / package
    others = [path for path in folder.rglob("*") if "__pycache__" not in path.parts and path.suffix != ".py"]

    assert (ROOT / "fedge" / "__init__.py").is_file()
    assert list(folder.glob("*.py"))
    assert not others
    assert f"'/fedge/{package}/*.py'" in _text(package)


def test_every_role_that_the_playbooks_name_is_there_and_upgrade_does_what_site_does():
    of_site = next(play for play in _playbook("site") if play.get("hosts") == "boards")["roles"]

    assert {entry["role"] for entry in of_site} | {"superlink", "board_page", "monitoring"} == set(ROLES)
    assert of_site == _upgraded_roles()


def _upgraded_roles() -> list[dict[str, Any]]:
    """The roles of an upgrade, as a play that names them has them."""
    (block,) = [task["block"] for task in _playbook("upgrade")[0]["tasks"] if "block" in task]
    imported = [task for task in block if "ansible.builtin.import_role" in task]
    assert all(set(task["ansible.builtin.import_role"]) == {"name"} for task in imported)
    return [
        {"role": task["ansible.builtin.import_role"]["name"], **({"vars": task["vars"]} if "vars" in task else {})}
        for task in imported
    ]


def test_boards_are_upgraded_one_at_a_time_and_the_first_that_fails_ends_it_with_what_it_had():
    play = _playbook("upgrade")[0]
    (rescue,) = [task["rescue"] for task in play["tasks"] if "block" in task]

    assert play["serial"] == 1
    assert play["max_fail_percentage"] == 0
    assert "ansible.builtin.fail" in rescue[-1]


def _made(role: str) -> set[str]:
    """The paths of everything that a role makes on a host, loops unrolled."""
    paths = set()
    for task in _role_tasks(role):
        if task.get("delegate_to") or task.get("ansible.builtin.file", {}).get("state") == "absent":
            continue
        module = next((name for name in task if name.removeprefix("ansible.builtin.") in FILES), None)
        arguments = [task[module]] if module else []
        targets = [arg.get("dest") or arg.get("path") for arg in arguments]
        targets += [task[name]["creates"] for name in task if isinstance(task[name], dict) and "creates" in task[name]]
        paths |= {path for target in targets for path in _unrolled(target, task)}
    return paths


def _unrolled(target: str, task: dict[str, Any]) -> Iterator[str]:
    items = task["loop"] if isinstance(task.get("loop"), list) else [None]
    for item in items:
        values = item if isinstance(item, dict) else {"": item}
        path = target
        for key, value in values.items():
            path = path.replace("{{ item" + (f".{key}" if key else "") + " }}", str(value))
        known = _defaults("superlink") | _defaults("monitoring") | (task.get("vars") or {})
        for name, value in known.items():
            path = path.replace("{{ " + name + " }}", str(value))
        yield path


def _removed() -> set[str]:
    listed = {path for task in _playbook("remove") for path in (task.get("loop") or []) if isinstance(path, str)}
    single = {task[key]["path"] for task in _playbook("remove") for key in task if key == "ansible.builtin.file"}
    raw = {word for task in _playbook("remove") for word in str(task.get("ansible.builtin.raw", "")).split()}
    defaults = {re.sub(r"\{\{ \w+ \| default\('([^']+)'\) \}\}", r"\1", path) for path in listed | single}
    return {path for path in defaults | raw if path.startswith("/")}


@pytest.mark.parametrize("role", ROLES)
def test_every_file_and_folder_that_a_role_makes_is_removed_again(role):
    removed = _removed()
    kept = {path for path in _made(role) if not any(path == up or path.startswith(f"{up}/") for up in removed)}

    assert kept <= LEFT


def test_a_line_in_a_file_of_the_systems_is_taken_out_again():
    def lines(tasks: tuple[dict[str, Any], ...]) -> dict[str, str]:
        arguments = [task.get("ansible.builtin.lineinfile", {}) for task in tasks]
        return {one["path"]: one["regexp"] for one in arguments if one.get("path") in LEFT}

    made = lines(tuple(task for role in ROLES for task in _role_tasks(role)))

    assert set(made) == LEFT
    assert lines(_playbook("remove")) == made


def test_the_folders_that_systemd_makes_for_the_units_are_removed_again():
    removed = _removed()
    for unit in (ANSIBLE / "roles").glob("*/templates/*.service.j2"):
        text = unit.read_text(encoding="utf-8")
        wanted = [f"/var/lib/{name}" for name in re.findall(r"^StateDirectory=(.+)$", text, re.MULTILINE)]
        wanted += [f"/run/{name}" for name in re.findall(r"^RuntimeDirectory=(.+)$", text, re.MULTILINE)]
        assert wanted
        assert set(wanted) <= removed


def _named(kind: str, tasks: tuple[dict[str, Any], ...]) -> set[str]:
    found: set[str] = set()
    for task in tasks:
        if f"ansible.builtin.{kind}" in task and "{{ item }}" in task[f"ansible.builtin.{kind}"]["name"]:
            found |= set(task["loop"]) if isinstance(task["loop"], list) else set()
        elif f"ansible.builtin.{kind}" in task:
            found.add(task[f"ansible.builtin.{kind}"]["name"])
    return found - {"{{ superlink_user }}", "{{ remove_user }}"}


@pytest.mark.parametrize("kind", ["user", "group"])
def test_the_users_and_groups_that_roles_make_are_removed_again(kind):
    made = {name for role in ROLES for name in _named(kind, _role_tasks(role))}

    assert made
    assert made == _named(kind, _playbook("remove"))


def _order(name: str, *titles: str) -> list[int]:
    """Where in the playbook the tasks of these names stand."""
    names = [task.get("name", "") for task in _playbook(name)]
    return [names.index(title) for title in titles]


def test_a_board_whose_power_state_cannot_be_put_back_loses_nothing():
    ends, asserts, removes = _order(
        "remove",
        "End it, which puts back what it found",
        "Go on only when the state found is back",
        "Remove the units, the files and the folders",
    )

    assert ends < asserts < removes


def _set(name: str, state: str) -> list[str]:
    """The services that a playbook sets to ``state``, in the order in which it does."""
    found = []
    for task in _playbook(name):
        service = task.get("ansible.builtin.systemd_service", {})
        if service.get("state") == state:
            found += [service["name"].replace("{{ item }}", item) for item in task.get("loop", [""])]
    return found


def _units() -> set[str]:
    """The units of fedge that are to run on a board or the server all the time."""
    made = {path for role in ROLES for path in _made(role) if path.startswith("/etc/systemd/system/fedge-")}
    return {Path(path).name for path in made} - {"fedge-firewall.service"}


def test_what_up_starts_is_every_unit_there_is_and_what_stands_before_the_superlink():
    assert set(_set("up", "started")) == _units() | {"nginx.service"}


def test_every_service_that_up_starts_is_stopped_and_kept_from_starting_by_down_and_by_remove():
    for name in ("down", "remove"):
        assert set(_set("up", "started")) <= set(_set(name, "stopped"))
        stops = [
            task["ansible.builtin.systemd_service"]
            for task in _playbook(name)
            if "loop" in task or "when" in task
            if task.get("ansible.builtin.systemd_service", {}).get("state") == "stopped"
        ]
        assert stops
        assert all(stop["enabled"] is False for stop in stops)


@pytest.mark.parametrize("name", ["down", "remove"])
def test_the_clients_are_stopped_first_and_the_power_daemon_after_everything_else_of_the_board(name):
    stopped = _set(name, "stopped")
    boards = [unit for unit in stopped[: stopped.index("fedge-superlink.service")] if unit != "jtop.service"]

    assert boards == [
        "fedge-superexec.service",
        "fedge-ready.service",
        "fedge-supernode.service",
        "fedge-worker.service",
        "fedge-telemetry.service",
        "fedge-powerd.service",
    ]


def test_the_power_daemon_is_up_before_the_clients_that_ask_it():
    started = _set("up", "started")

    assert started.index("fedge-superlink.service") < started.index("fedge-powerd.service")
    assert started.index("fedge-powerd.service") < started.index("fedge-supernode.service")
    assert started[-1] == "fedge-superexec.service"


def test_the_power_daemon_is_started_only_where_it_owes_something_so_that_a_second_down_changes_nothing():
    starts = [
        task for task in _playbook("down") if task.get("ansible.builtin.systemd_service", {}).get("state") == "started"
    ]

    assert [task["when"] for task in starts] == ["powerd_owed.stat.exists"]


@pytest.mark.parametrize("name", ["up", "down", "collect", "remove"])
def test_a_host_that_could_not_keeps_nothing_from_the_others_and_is_named_at_the_end(name):
    *plays, last = _yaml(ANSIBLE / f"{name}.yml")
    works = [play for play in plays if play.get("become")]

    assert {play["hosts"] for play in works} == {"boards", "server"}
    for play in works:
        (work,) = play["tasks"]
        assert work["block"][0]["ansible.builtin.import_tasks"] == "tasks/reachable.yml"
        assert work["rescue"][0]["ansible.builtin.import_tasks"] == "tasks/why.yml"
    assert last["hosts"] == "boards:server"
    assert "{{ inventory_hostname }}" in last["tasks"][0]["ansible.builtin.fail"]["msg"]


@pytest.mark.fleet
@pytest.mark.slow
def test_a_fleet_of_boards_that_all_cannot_be_reached_still_has_its_server_done(tmp_path, elsewhere):
    """Played: Ansible ends with the first play in which every host failed."""
    dead = "ansible_host=127.0.0.1 ansible_port=9 ansible_ssh_common_args='-o ConnectTimeout=2'"
    inventory = tmp_path / "inventory"
    inventory.write_text(f"[boards]\nnano-1 {dead}\nNano-2.lan {dead}\n[server]\nlink {dead}\n", encoding="utf-8")
    command = [_tool("ansible-playbook"), "-i", str(inventory), "down.yml"]
    said = subprocess.run(command, cwd=ANSIBLE, env=elsewhere, capture_output=True, text=True, check=False)

    assert said.returncode != 0
    for host in ("nano-1", "Nano-2.lan", "link"):
        assert f"{host} is not down: it cannot be reached over ssh" in said.stdout


def test_peoples_runs_stay_unless_they_are_asked_for():
    server = next(play for play in _yaml(ANSIBLE / "remove.yml") if play["hosts"] == "server" and "vars" in play)
    removing = {
        task["name"]: task["when"]
        for task in _tasks(server["tasks"])
        if task.get("ansible.builtin.file", {}).get("path") in {"/var/lib/fedge-link", "{{ remove_runs_at }}"}
        and task["ansible.builtin.file"]["state"] == "absent"
    }

    assert server["vars"]["remove_runs"] is False
    assert len(removing) == 2
    assert all("remove_runs | bool or remove_found_runs.matched == 0" in when for when in removing.values())


def test_a_board_is_unregistered_only_after_it_has_lost_its_key():
    removed, unregistered = _order(
        "remove", "Remove the units, the files and the folders", "Take the board's key away from the SuperLink"
    )

    assert removed < unregistered


def test_a_board_that_is_locked_out_loses_its_key_also_if_nginx_fails():
    (play,) = _yaml(ANSIBLE / "revoke.yml")

    assert [task["name"] for task in play["tasks"][-1]["always"]] == ["Take its key away from the SuperLink"]


@pytest.mark.parametrize("role", ["jetson_base", "superlink", "monitoring"])
def test_a_package_is_noted_before_it_is_installed_and_where_remove_looks(role):
    texts = [str(task) for task in _role_tasks(role)]
    noted = [
        i
        for i, task in enumerate(_role_tasks(role))
        if task.get("ansible.builtin.lineinfile", {}).get("path", "").endswith("/packages")
    ]
    installed = [
        i
        for i, text in enumerate(texts)
        if "apt-get install" in text and "ansible.builtin.shell" in _role_tasks(role)[i]
    ]

    assert len(noted) == len(installed) > 0
    assert all(note < install for note, install in zip(noted, installed, strict=True))
    for i in noted:
        assert f"cat {_role_tasks(role)[i]['ansible.builtin.lineinfile']['path']}" in str(_playbook("remove"))


def test_secrets_stay_out_of_the_logs_and_out_of_others_hands():
    secret = re.compile(r"server\.key|/etc/fedge/keys/(node|superexec)$|/etc/fedge/app/superexec")
    for role in ("supernode", "superlink"):
        for task in _role_tasks(role):
            made = {
                path
                for name in ("creates", "dest")
                for module in task.values()
                if isinstance(module, dict)
                for path in [module.get(name, "")]
            }
            if any(secret.search(str(path)) for path in made):
                assert task.get("no_log") is True, task["name"]
    modes = {
        str(task["ansible.builtin.copy"]["mode"])
        for role in ("supernode", "superlink")
        for task in _role_tasks(role)
        if secret.search(str(task.get("ansible.builtin.copy", {}).get("dest", "")))
    }
    assert modes == {"0400"}


def test_every_file_that_is_made_says_who_may_read_it():
    for role in ROLES:
        for task in _role_tasks(role):
            for module in ("copy", "template"):
                arguments = task.get(f"ansible.builtin.{module}")
                assert arguments is None or "mode" in arguments, task["name"]


def test_boards_are_registered_after_they_have_their_keys_and_before_their_supernodes_start():
    names = [task.get("name") for task in _tasks(_yaml(ANSIBLE / "roles" / "supernode" / "tasks" / "main.yml"))]
    key, registered, restarted, started = map(
        names.index, ("Read the public half", "Register the boards", "Restart now what has changed", "Start them")
    )

    assert key < registered < restarted < started


def test_one_board_alone_is_registered_at_a_server_that_is_not_in_the_play():
    tasks = _yaml(ANSIBLE / "roles" / "supernode" / "tasks" / "register.yml")

    assert tasks[0]["delegate_to"] == "{{ groups['server'] | first }}"
    # The modules' Python on the server is known only to the server's own plays.
    assert "ansible.builtin.raw" in tasks[0]
    assert tasks[0]["run_once"] is True


def test_runs_that_remove_keeps_are_those_that_site_gives_back():
    closed = next(task for task in _playbook("remove") if task.get("name") == "Close the folders around them")
    back = next(task for task in _role_tasks("superlink") if task.get("name") == "Give kept runs back")

    assert closed["ansible.builtin.file"]["owner"] == "root"
    assert f"superlink_kept.stat.mode == '{closed['ansible.builtin.file']['mode']}'" in back["when"]
    assert "superlink_kept.stat.uid == 0" in back["when"]


@pytest.mark.parametrize("program", ["/usr/lib/fedge-server/flower", "/usr/lib/fedge-server/nodes.py"])
def test_whoever_gives_the_superlink_commands_starts_what_site_puts_there(program):
    assert program in _made("superlink")
    for path in ("tasks/unregister.yml", "roles/supernode/tasks/register.yml", "probe.py"):
        assert program[1:] in (ANSIBLE / path).read_text(encoding="utf-8")


def test_flowers_commands_say_nothing_to_third_parties():
    text = (ANSIBLE / "roles" / "superlink" / "templates" / "flower.j2").read_text(encoding="utf-8")

    assert "FLWR_TELEMETRY_ENABLED=0" in text
    assert "FLWR_DISABLE_UPDATE_CHECK=1" in text


def _tool(name: str) -> str:
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if found is None:
        pytest.skip(
            f"{name} is not on the path: ansible-core 2.19 or newer and ansible-lint, in an environment of their own"
        )
    return found


@pytest.fixture
def elsewhere(tmp_path: Path) -> dict[str, str]:
    """What ansible writes for itself goes into the test's folder."""
    return dict(os.environ) | {"ANSIBLE_HOME": str(tmp_path), "HOME": str(tmp_path), "ANSIBLE_NOCOLOR": "1"}


@pytest.mark.fleet
@pytest.mark.slow
def test_the_linter_finds_nothing_at_its_strictest(tmp_path, elsewhere):
    copy = tmp_path / "ansible"
    shutil.copytree(ANSIBLE, copy, ignore=shutil.ignore_patterns(".ansible", "__pycache__"))
    program = _tool("ansible-lint")
    elsewhere["PATH"] = f"{Path(program).parent}{os.pathsep}{elsewhere['PATH']}"
    said = subprocess.run([program, "--offline"], cwd=copy, env=elsewhere, capture_output=True, text=True, check=False)

    assert said.returncode == 0, said.stdout + said.stderr


def _shell_of(name: str, root: Path) -> str:
    """The shell text of a task of upgrade.yml, with its folders below another root."""
    (task,) = [task for task in _tasks(_yaml(ANSIBLE / "upgrade.yml")) if task.get("name") == name]
    text = task["ansible.builtin.command"]["argv"][-1]
    return re.sub(r"(?<![\w/])/(?=usr/lib/fedge|etc/)", f"{root}/", text)


def test_an_upgrade_that_was_cut_off_leaves_the_earlier_version_for_the_next_one(tmp_path):
    systemctl = tmp_path / "bin" / "systemctl"
    systemctl.parent.mkdir()
    systemctl.write_text("#!/bin/sh\n")
    systemctl.chmod(0o755)
    keep, put_back = _shell_of("Keep what the board has", tmp_path), _shell_of("Put back what the board had", tmp_path)
    folders = [
        tmp_path / "usr/lib/fedge-node",
        *(tmp_path / f"usr/lib/fedge-{one}/fedge" for one in ("powerd", "worker")),
    ]
    folders += [tmp_path / "etc/fedge", tmp_path / "etc/systemd/system"]

    def run(text: str) -> int:
        env = {**os.environ, "PATH": f"{systemctl.parent}:{os.environ['PATH']}"}
        return subprocess.run(["/bin/sh", "-euc", text], env=env, check=False).returncode

    def install(version: str) -> None:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            file = folder / "fedge-supernode.service"
            file.unlink(missing_ok=True)
            file.write_text(version)

    def installed() -> set[str]:
        return {(folder / "fedge-supernode.service").read_text() for folder in folders}

    install("first")
    assert run(keep) == 0
    install("half of the second")  # and cut off here
    assert run(keep) == 0
    install("third")
    assert run(put_back) == 0
    assert installed() == {"first"}
    assert run(put_back) == 3
    assert run(keep) == 0
    install("fourth")
    assert run(put_back) == 0
    assert installed() == {"first"}

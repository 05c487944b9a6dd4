"""Whatever the user gets wrong is one line with file, field, what was got and what would be right; nothing is left."""

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from contracts.crashing import disk_full
from contracts.launching import SMALL, Launcher, Outcome

from experiments.backends import launcher
from experiments.spec.experiment_loader import load_experiment
from fedge.errors import BadInput

HEAD = "cores,cpu_khz,gpu_hz,mem_hz,batch_size,time_ms,power_w\n"
ROW = "4,1479000,921600000,1600000000,16,100,9\n"


@dataclass(frozen=True, slots=True)
class Refusals:
    """Starts runs that must be refused, and sees that they are refused cleanly."""

    fedge: Launcher
    folder: Path

    def __call__(self, *overrides: str, config: str = SMALL) -> str:
        """The message, without the names of program and file, and without ``--set``."""
        path = self.folder / "exp.yaml"
        path.write_text(config, encoding="utf-8")
        out = self.folder / "out"
        sets = [word for override in overrides for word in ("--set", override)]
        outcome = self.fedge("run", path, *sets, "--folder", out)
        assert outcome.code == 2
        assert outcome.out == ""
        assert not out.exists()
        return outcome.message.removeprefix("fedge: ").removeprefix("--set ").removeprefix(f"{path}: ")


@pytest.fixture
def fedge(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Launcher:
    monkeypatch.chdir(tmp_path)
    return Launcher(monkeypatch, capsys)


@pytest.fixture
def refused(fedge: Launcher, tmp_path: Path) -> Refusals:
    return Refusals(fedge, tmp_path)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("bogus=1", "bogus: got an unknown key; known here: name, seed, rounds, backend, superlink, fleet, "),
        ("policy.bogus=1", "policy.bogus: got an unknown key; known here: name, power_w, "),
        ("fleet.0.bogus=1", "fleet[0].bogus: got an unknown key; known here: device, count, "),
        ("fleet.1.link.bogus=1", "fleet[1].link.bogus: got an unknown key; known here: down_mbps, "),
        ("exploration.bogus=1", "exploration.bogus: got an unknown key; known here: share, probe_s, slack, "),
        ("rounds=x", "rounds: got 'x'; a whole number"),
        ("rounds=1.5", "rounds: got 1.5; a whole number"),
        ("rounds=0", "rounds: got 0; from 1 to 100000"),
        ("rounds=null", "rounds: got nothing; a whole number"),
        ("rounds=.inf", "rounds: got inf; a finite number"),
        ("seed=-1", "seed: got -1; 0 or more"),
        ("seed=true", "seed: got true; a number"),
        ("fleet.0.count=yes", "fleet[0].count: got true; a number"),
        ("backend=cloud", "backend: got 'cloud'; 'local', 'sim', 'fleet' or 'flower'"),
        ("name=a/b", "name: got 'a/b'; a name of letters, digits, '.', '_' and '-' that begins with a letter or digit"),
        ("fleet=[]", "fleet: got []; at least 1 of them"),
        ("fleet=nano", "fleet: got 'nano'; a list, such as [a, b]"),
        ("fleet=null", "fleet: got nothing; a list, such as [a, b]"),
        ("fleet.0=3", "fleet[0]: got 3; a name, or a mapping with some of device, count, "),
        ("fleet.0={count: 2}", "fleet[0].device: got nothing; this key is needed"),
        ("fleet.0.device=3", "fleet[0].device: got 3; text, in quotes where YAML would read something else"),
        ("fleet.0.count=many", "fleet[0].count: got 'many'; a whole number"),
        ("fleet.0.link=3", "fleet[0].link: got 3; a mapping with some of down_mbps, "),
        ("fleet.0.ambient_c=1000", "fleet[0].ambient_c: got 1000; from -40 to 85"),
        ("policy=3", "policy: got 3; a name, or a mapping with some of name, power_w, "),
        ("data.alpha=0", "data.alpha: got 0; more than 0"),
        (
            "data.partition=foo",
            "data.partition: got 'foo'; known: dirichlet, iid, natural, shards, your own module:NAME",
        ),
        ("strategy.options={a: [1]}", "strategy.options.a: got [1]; a number, text, true or false"),
        ("strategy.wraps=3", "strategy.wraps: got 3; a mapping with some of name, options, wraps"),
        ("plugins=mine.py", "plugins: got 'mine.py'; a list, such as [a, b]"),
        ("workload=" + "x" * 90, f"workload: got '{'x' * 56}...; a mapping with some of task, "),
    ],
)
def test_a_wrong_key_or_value_is_named_in_plain_words(refused, override, message):
    said = refused(override)

    assert said == message or (message.endswith((", ", "x")) and said.startswith(message))
    assert "input should" not in said
    assert "valid" not in said


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("fleet.0.device=tx9", "fleet[0].device: got 'tx9'; did you mean tx2? known: agx-orin-32gb, "),
        ("fleet.0.device=gone.yaml", "fleet[0].device: "),
        ("fleet.0.truth=foo", "fleet[0].truth: got 'foo'; `model`, or `table:PATH` of a measured table"),
        ("fleet.1.device=nano", "fleet: got two boards called 'nano-1'; boards of a name of their own"),
        ("workload.batch_size=1000000", "workload.batch_size: got 1000000; from 1 to "),
        ("policy=nope", "policy.name: got 'nope'; known: balanced, "),
        ("policy=nowhere:f", "policy.name: got 'nowhere:f'; an importable module:NAME (No module named 'nowhere')"),
        ("policy=os:sep", "policy.name: got 'os:sep'; a function or a class"),
        ("policy=preset", "policy.name: got 'preset'; preset:NAME, a preset of the boards, e.g. preset:MAXN"),
        ("policy=preset:5W", "policy.name: preset of xavier-nx: got '5W'; known: MODE_15W_2CORE, "),
        ("predictor=nope", "predictor: got 'nope'; known: "),
        ("predictor=os:sep", "predictor: got 'os:sep'; a function or a class, not a str"),
        ("strategy=Nope", "strategy.name: got 'Nope'; known: Bulyan, "),
        ("strategy=os:sep", "strategy.name: got 'os:sep'; a function or a class, not a str"),
        ("strategy.options.bogus=1", "strategy.options.bogus: got 1; known: "),
        (
            "strategy.options.fraction_train=0.5",
            "strategy.options.fraction_train: got 0.5; no such option: `selection` says",
        ),
        ("workload.task=nope", "workload.task: got 'nope'; did you mean none? known: "),
        ("workload.task=os:sep", "workload.task: got 'os:sep'; a class to be called as Class(data_dir=, download=)"),
        ("workload.cost=nope", "workload.cost: got 'nope'; known: "),
        ("fleet.0.count=9999", "fleet: got 10000 clients; from 1 to 1"),
    ],
)
def test_an_unknown_name_is_named_with_the_known_ones(refused, override, message):
    assert refused(override).startswith(message)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("fastest-within-power", "power_w: got nothing; fastest-within-power needs it, "),
        ("{name: fastest-within-power, power_w: 0.5}", "power_w: got 0.5 W; a limit that a board can keep: "),
        (
            "{name: fastest, fleet_power_w: 0.001}",
            "fleet_power_w: got 0.001 W; a limit that a board can keep: ",
        ),
        ("{name: fastest, round_energy_j: 0.001}", "round_energy_j: got 0.001 J; a limit that a board can keep: "),
        ("{name: balanced, deadline_s: 0.001}", "deadline_s: got 0.001 s; a limit that a board can keep: "),
        ("{name: least-energy, deadline_s: 0.001}", "deadline_s: got 0.001 s; a limit that a board can keep: "),
        ("{name: balanced, deadline_s: 26}", "deadline_s: got 26 s; a limit that a board can keep: "),
        ("{name: fastest-within-power, power_w: -3}", "power_w: got -3; more than 0"),
        ("{name: fastest-within-power, power_w: '9'}", "power_w: got '9'; a number, without quotation marks"),
        ("{name: fastest-within-power, power_w: a lot}", "power_w: got 'a lot'; a number"),
        ("{name: fastest-within-power, power_w: 9, time_weight: 1}", "time_weight: got 1; fastest-within-power takes "),
        ("least-energy-within-deadline", "deadline_s: got nothing; least-energy-within-deadline needs it, "),
        ("fastest", "fleet_power_w: got nothing; fastest needs it or round_energy_j, for example --set policy.fleet_"),
        ("energy-budget", "budget_j: got nothing; energy-budget needs it, "),
        ("{name: least-energy, power_w: 3}", "power_w: got 3; least-energy takes deadline_s, max_slowdown, "),
        ("{name: maxn, power_w: 3}", "power_w: got 3; maxn takes no options"),
        ("{name: balanced, time_weight: 2}", "time_weight: got 2; from 0 to 1"),
        ("{name: balanced, confidence: 1}", "confidence: got 1; more than 0 and less than 1"),
    ],
)
def test_a_policy_with_impossible_numbers_is_refused(refused, policy, message):
    assert refused(f"policy={policy}").startswith(f"policy.{message}")


def test_the_least_limit_that_the_message_names_is_accepted(refused, fedge, tmp_path):
    named = re.findall(r"from ([0-9.]+) s", refused("policy={name: balanced, deadline_s: 1}"))
    least = min(named, key=float)

    assert fedge("run", tmp_path / "exp.yaml", "--set", f"policy.deadline_s={least}", "--dry-run").code == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "got no such file; the path of a table (CSV)"),
        ("", "got no header; columns cores,cpu_khz,"),
        (HEAD + ROW.replace(",100,", ",nan,"), "line 2, time_ms: got 'nan'; a number above 0"),
        (HEAD + ROW.replace(",16,", ",32,"), "batch size: got 16; known: 32"),
        (HEAD + ROW.replace(",9\n", ",9000\n"), "power_w: got 9000 W as the top; watts: "),
    ],
)
def test_a_bad_table_is_named_with_its_field_and_line(refused, tmp_path, content, message):
    table = tmp_path / "table.csv"
    if content is not None:
        table.write_text(content, encoding="utf-8")

    assert refused("fleet.0.truth=table:table.csv").startswith(f"fleet[0].truth: {table}: {message}")


def test_another_boards_table_is_refused(refused, tmp_path):
    (tmp_path / "mine.csv").write_text(HEAD + ROW, encoding="utf-8")
    message = refused("fleet=[agx-orin]", "fleet.0.truth=table:mine.csv")

    assert "mine.csv: mem_hz: got 1600 MHz; what agx-orin-64gb has, from 204 to 3199; is it" in message


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["network=resnet43"], "network.model: got 'resnet43'; did you mean resnet34"),
        (["network=resnet34", "cost=resnet18-imagenet"], "cost: got 'resnet18-imagenet'; no cost beside a network"),
        (["network.model=vit_b_16", "network.input=[3,100,100]"], "network.input: got 3x100x100"),
    ],
)
def test_a_network_that_cannot_be_is_refused(refused, overrides, message):
    assert refused(*(f"workload.{override}" for override in overrides)).startswith(f"workload.{message}")


def test_a_key_that_stands_twice_is_refused(refused):
    message = refused(config="fleet: [nano]\nrounds: 1\nfleet: [tx2]\n")

    assert "line 3: got text that is not YAML; the key 'fleet' stands here twice" in message


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("", "got an empty file; a mapping of keys such as fleet, policy, rounds"),
        ("- nano\n", "got a list; a mapping of keys"),
        ("fleet: [nano\nrounds: 2\n", "line 1: got text that is not YAML; "),
        ("fleet:\n\tcount: 1\n", "line 2: got text that is not YAML; "),
        ("rounds: 2\n", "fleet: got nothing; this key is needed"),
        ("1: 2\nfleet: [nano]\n", "[1]: got 1; keys that are text"),
    ],
)
def test_a_file_that_is_no_experiment_is_refused(refused, config, message):
    assert refused(config=config).startswith(message)


def test_a_missing_file_a_folder_and_bytes_are_no_experiment(fedge, tmp_path):
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    for name, reason in (("gone.yaml", "no such file"), (".", "got a folder"), ("bytes.yaml", "not UTF-8")):
        outcome = fedge("run", tmp_path / name)
        assert outcome.code == 2
        assert reason in outcome.message
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("nokey", "--set: got 'nokey'; key=value, for example --set policy=maxn"),
        ("=3", "--set: got '=3'; key=value"),
        ("fleet.7.count=1", "fleet.7: got '7'; a place from 0 to 1"),
        ("fleet.x.count=1", "fleet.x: got 'x'; a place from 0 to 1"),
        ("rounds.x=1", "rounds.x: got int; a mapping or a list to go into"),
        ("rounds=[", "rounds: got text that is not YAML; "),
    ],
)
def test_an_override_that_fits_nowhere_is_refused(refused, override, message):
    assert refused(override).startswith(message)


def test_absent_data_is_found_before_the_run_folder_is_made(refused, tmp_path):
    said = refused("workload.task=mnist-cnn", "data.download=false", f"data.dir={tmp_path / 'data'}")

    assert said.startswith(f"data.dir: got no MNIST in {tmp_path / 'data'} (downloading is switched off); put train-")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.py", None, "the path of an existing Python file"),
        ("notes.txt", "", "the path of an existing Python file"),
        ("json.py", "", "a file of another name: there is a module 'json' already"),
        ("plugin_with_typo.py", "def f(:\n", "a Python file that can be imported (SyntaxError: invalid syntax"),
        (
            "plugin_that_fails.py",
            "1 / 0\n",
            "a Python file that can be imported (ZeroDivisionError: division by zero (",
        ),
    ],
)
def test_a_plugin_that_cannot_be_used_is_named(refused, tmp_path, name, content, message, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    if content is not None:
        (tmp_path / name).write_text(content, encoding="utf-8")

    assert refused(f"plugins=[{name}]").startswith(f"plugins[0]: got {tmp_path / name}; {message}")


def test_a_task_of_the_users_that_breaks_is_named(refused, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "broken_task.py").write_text("def task(data_dir, download):\n    raise ValueError('no\\ndisk')\n")

    said = refused("plugins=[broken_task.py]", "workload.task=broken_task:task")
    assert "fails: ValueError: no disk (broken_task.py, line 2); a working task" in said


def _config(folder: Path) -> Path:
    path = folder / "exp.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return path


def test_an_out_folder_that_is_taken_or_cannot_be_is_refused(fedge, tmp_path):
    config = _config(tmp_path)
    for out, right in (
        (tmp_path, "new or empty"),
        (config, "can be written (Not a directory)"),
        (config / "sub", "can be written (Not a directory)"),
    ):
        outcome = fedge("run", config, "--folder", out)
        assert outcome.code == 2
        assert outcome.message.startswith(f"fedge: --folder: got {out}; a folder that ")
        assert right in outcome.message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_out_folder_without_permission_is_refused(fedge, tmp_path):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)

    outcome = fedge("run", _config(tmp_path), "--folder", locked / "run")
    assert outcome.code == 2
    assert "(Permission denied)" in outcome.message


def test_an_out_folder_that_turns_out_unwritable_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(launcher, "write_text", disk_full)
    with pytest.raises(BadInput, match=r"--folder: got .*; a folder that can be written \(No space left on device\)"):
        launcher.start_run(load_experiment(_config(tmp_path)), tmp_path / "run", lambda: None)


@pytest.mark.parametrize("command", ["resume", "report"])
def test_what_is_no_run_is_neither_resumed_nor_reported(fedge, tmp_path, command):
    config = _config(tmp_path)
    for path, hint in ((tmp_path, ""), (tmp_path / "gone", ""), (config, f"; `fedge run {config}` makes one, and ")):
        outcome = fedge(command, path)
        assert outcome.code == 2
        assert outcome.message.startswith(f"fedge: {path}: got ")
        assert f"the folder of a run{hint}" in outcome.message
    assert [path.name for path in tmp_path.iterdir()] == ["exp.yaml"]


def test_an_experiment_that_is_not_there_is_answered_with_the_names_of_those_that_are(fedge):
    outcome = fedge("run", "quickstartt")
    assert outcome.code == 2
    assert outcome.message.startswith(
        "fedge: quickstartt: got no such file; did you mean quickstart? a YAML file, or a name: fleet40, "
    )
    assert "quickstart, " in outcome.message
    assert "sweep" not in outcome.message, "no experiments"
    assert "arena" not in outcome.message


@pytest.mark.parametrize("command", ["resume", "report"])
def test_a_damaged_run_yaml_is_named(fedge, tmp_path, command):
    record = yaml.safe_load(SMALL) | {"rounds": "many"}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(record), encoding="utf-8")

    outcome = fedge(command, tmp_path)
    assert outcome.code == 2
    assert outcome.message == f"fedge: {tmp_path / 'run.yaml'}: rounds: got 'many'; a whole number"


def test_bad_tables_are_not_calibrated(fedge, tmp_path):
    tables = {
        "gone.csv": (None, "no such file"),
        "columns.csv": ("a,b\n1,2\n", "no column cores"),
        "zero.csv": (HEAD + ROW.replace(",100,", ",0,"), "line 2, time_ms: got '0'"),
        "units.csv": (HEAD + ROW.replace("1479000", "1479"), "cpu_khz: got 1.479 MHz as the top"),
        "short.csv": (HEAD + ROW, "at least 20"),
    }
    for name, (content, message) in tables.items():
        if content is not None:
            (tmp_path / name).write_text(content, encoding="utf-8")
        outcome = fedge("calibrate", tmp_path / name)
        assert outcome.code == 2
        assert str(tmp_path / name) in outcome.message
        assert message in outcome.message
    assert not (tmp_path / "calibrated").exists()


@pytest.mark.parametrize(
    "arguments",
    [("devices", "show", "NOPE"), ("devices", "modes", "NOPE"), ("devices", "modes", "nano", "--preset", "NOPE")],
)
def test_an_unknown_board_or_preset_is_named(fedge, arguments):
    outcome = fedge(*arguments)
    assert outcome.code == 2
    assert ": got 'NOPE'; known: " in outcome.message


@pytest.mark.parametrize(
    "arguments",
    [("run",), ("run", "x.yaml", "--bogus"), ("run", "x.yaml", "--seed", "x"), ("report",), ("calibrate",), ("nope",)],
)
def test_a_wrong_command_line_shows_its_usage(fedge, arguments):
    outcome: Outcome = fedge(*arguments)
    assert outcome.code == 2
    assert outcome.err.startswith("Usage: fedge")
    assert outcome.out == ""


def test_a_wrong_value_of_an_option_is_not_blamed_on_the_file(fedge, tmp_path):
    (tmp_path / "exp.yaml").write_text(SMALL, encoding="utf-8")

    for override, field in (("rounds=ten", "rounds"), ("fleet.0.device=tx9", "fleet[0].device")):
        outcome = fedge("run", tmp_path / "exp.yaml", "--set", override)
        assert outcome.message.startswith(f"fedge: --set {field}: got ")


def test_a_file_of_another_ending_is_suggested(fedge, tmp_path):
    (tmp_path / "exp.yaml").write_text(SMALL, encoding="utf-8")

    outcome = fedge("run", tmp_path / "exp.yml")

    assert outcome.message == f"fedge: {tmp_path / 'exp.yml'}: got no such file; do you mean {tmp_path / 'exp.yaml'}?"

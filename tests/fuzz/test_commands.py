"""Commands that read a file of others answer a hostile one with one printable line and an exit code."""

import pytest
from contracts.launching import Launcher
from contracts.store_rows import client_row, round_row
from fuzz.targets import TASK_YAML

from fedge.telemetry.store import RunTables

DEEP = b"[" * 100_000
NUMBER = b'{"version": ' + b"9" * 5_000 + b"}"


@pytest.fixture
def folder(tmp_path):
    """A run folder."""
    (tmp_path / "run.yaml").write_bytes(TASK_YAML)
    tables = RunTables(tmp_path)
    tables.append([round_row(1), client_row(1)])
    tables.close()
    return tmp_path


@pytest.mark.parametrize("data", [DEEP, NUMBER, b"\xff\xfe", b'"\\ud800"'], ids=["deep", "number", "bytes", "half"])
@pytest.mark.parametrize(
    ("file", "command"),
    [
        ("summary.json", ("report", "{folder}")),
        ("store/VERSION", ("query", "{folder}", "select * from rounds")),
        ("store/clients/000001.parquet", ("replay", "{folder}", "--policy", "maxn")),
        ("run.yaml", ("report", "{folder}")),
        ("layers.json", ("layers", "{folder}/layers.json")),
        ("model.safetensors", ("predict", "choose", "{folder}/model.safetensors", "--knee")),
        ("\x1b[31m.yaml", ("run", "{folder}/\x1b[31m.yaml")),
    ],
    ids=lambda value: None if isinstance(value, str) else value[0],
)
def test_a_hostile_file_is_answered_in_one_line(folder, monkeypatch, capsys, file, command, data):
    (folder / file).write_bytes(data)

    outcome = Launcher(monkeypatch, capsys)(*(part.format(folder=folder) for part in command))

    if outcome.code == 0:  # a summary that is JSON but none of a run's has no figures
        assert (file, data) == ("summary.json", NUMBER)
    else:
        assert outcome.code in {1, 2}
        assert outcome.message.isprintable()
        assert len(outcome.message) < 1_000

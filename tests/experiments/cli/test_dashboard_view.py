"""``fedge board``: what it takes for a run, an address or settings, and what it refuses in one line."""

import signal
import subprocess
import time
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from contracts.launching import FEDGE
from contracts.live_server import post
from contracts.processes import wait_for

from experiments.backends.dashboard_target import find_run_folder, parse_address, read_settings
from experiments.backends.sim_backend import find_free_port
from experiments.cli.dashboard_view import announce_page, board
from fedge import phases
from fedge.errors import BadInput
from fedge.telemetry.live_records import TelemetryBatch, encode_batch
from fedge.types import Trace


def test_no_phase_is_under_way_once_the_page_is_served():
    begun: list[str] = []

    def listen(name: str, *, announce: bool) -> None:
        begun.append(name)

    phases.add_listener(listen)
    try:
        announce_page("http://127.0.0.1:8400/", opened=False)
    finally:
        phases.remove_listener(listen)

    assert begun[-1:] == [""]


def test_an_address_may_carry_its_token():
    assert parse_address("http://box:8400/#token=abc") == ("http://box:8400", "abc")
    assert parse_address("https://box/board/") == ("https://box/board", None)


@pytest.mark.parametrize("text", ["ftp://box", "http://", "http://me:secret@box", "http://box?x=1", "file:///etc"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(BadInput):
        parse_address(text)


def test_a_wrong_address_does_not_tell_its_token():
    with pytest.raises(BadInput) as refused:
        parse_address("ftp://box#token=geheim")
    assert "geheim" not in str(refused.value)


def test_a_run_may_be_there_or_come(tmp_path):
    run = tmp_path / "run"
    assert find_run_folder(run) == run
    run.mkdir()
    assert find_run_folder(run) == run
    (run / "other").touch()
    with pytest.raises(BadInput, match="other things"):
        find_run_folder(run)
    (run / "run.yaml").touch()
    assert find_run_folder(run) == run
    with pytest.raises(BadInput, match="not a file"):
        find_run_folder(run / "run.yaml")
    with pytest.raises(BadInput, match="does not exist"):
        find_run_folder(tmp_path / "no" / "run")


def test_nothing_to_show_is_refused():
    with pytest.raises(BadInput, match="RUN_OR_ADDRESS"):
        board(None)


def test_settings_are_read(tmp_path):
    path = tmp_path / "board.yaml"
    path.write_text("store: /var/lib/fedge/fleet\nruns: /srv/runs\nport: 9000\n", encoding="utf-8")
    settings = read_settings(path)
    assert (settings.store, settings.runs, settings.port) == (Path("/var/lib/fedge/fleet"), Path("/srv/runs"), 9000)
    assert settings.host == "127.0.0.1"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "without settings"),
        ("runs: x", "store: got nothing"),
        ("store: x\nport: 0", "port: got 0"),
        ("store: x\nhost_name: y", "host_name"),
        ("store: [", "text that is not YAML"),
        ("- store", "without settings"),
    ],
)
def test_wrong_settings_are_one_line_that_names_the_field(tmp_path, text, where):
    path = tmp_path / "board.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=where) as refused:
        read_settings(path)
    assert "\n" not in str(refused.value)


def test_a_missing_settings_file_is_named(tmp_path):
    with pytest.raises(BadInput, match="no such file"):
        read_settings(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("asked", "where"),
    [
        ({"source": "runs/x", "serve": Path("b.yaml")}, "runs/x, with --serve"),
        ({"serve": Path("b.yaml"), "host": "0.0.0.0"}, "--listen"),
        ({"serve": Path("b.yaml"), "port": 8400}, "--port"),
        ({"source": "runs/x", "relay_token_file": Path("t")}, "--relay-token-file"),
    ],
)
def test_options_that_would_be_left_out_of_account_are_refused(asked, where):
    with pytest.raises(BadInput, match=where):
        board(**asked)


def test_a_run_of_a_newer_version_is_refused_at_once(tmp_path):
    (tmp_path / "run.yaml").touch()
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "VERSION").write_text('{"version": 99}', encoding="utf-8")
    with pytest.raises(BadInput, match="version 99"):
        find_run_folder(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_page_ends_at_once_and_without_a_word(number, tmp_path):
    command = [*FEDGE, "board", str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        url = urlsplit(process.stdout.readline().strip())
        reader = HTTPConnection(str(url.hostname), url.port, timeout=20)
        reader.request("GET", "/api/stream")
        assert reader.getresponse().readline() == b"event: snapshot\n"
        begun_s = time.monotonic()
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
        took_s = time.monotonic() - begun_s
        reader.close()
    assert process.returncode == 0
    expected = ("fedge: board, ", "fedge: note: there is no run in ")  # a sign of life; what the page waits for
    assert [line for line in errors.splitlines() if not line.startswith(expected)] == []
    assert took_s < 10, "an open page does not keep it"


@pytest.mark.slow
def test_a_fleets_service_that_is_stopped_has_kept_everything(tmp_path):
    settings = tmp_path / "board.yaml"
    settings.write_text(
        f"store: {tmp_path}/fleet\ningest: {tmp_path}/i.sock\nport: {find_free_port()}\n", encoding="utf-8"
    )
    command = [*FEDGE, "board", "--serve", str(settings)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        now_s = time.time()
        said = TelemetryBatch(1, "a", "s", 1, Trace((now_s,), (1.0,), (5.0,), *(((None,),) * 7)))
        assert wait_for(lambda: _posted(tmp_path / "i.sock", encode_batch(said))) == 200
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert [line for line in errors.splitlines() if not line.startswith("fedge: board, ")] == []  # signs of life
    assert "a" in (tmp_path / "fleet" / "intake.json").read_text(encoding="utf-8")
    assert not (tmp_path / "i.sock").exists()
    assert len(list((tmp_path / "fleet" / "store" / "samples").glob("*.parquet"))) == 1


def _posted(path: Path, body: bytes) -> int:
    try:
        return post(path, body, "a")[0]
    except OSError:
        return 0

"""The board page's and the index's applications: what they serve, to whom, and what they send beside it."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from contracts.board_runs import begin
from starlette.testclient import TestClient

from fedge.errors import BadInput
from server.dashboard.http_server import ViewFeed, ViewSource
from server.dashboard.run_source import RunSource
from server.dashboard.security import Access, build_access
from server.dashboard.views import BoardHistory, FleetView, RoundView
from server.dashboard.web_app import build_dashboard_app, build_index_app

TOKEN = "a-token-of-some-length"
HERE = "http://127.0.0.1:8400"


def client_of(source: ViewSource, access: Access | None = None, base: str = HERE) -> TestClient:
    app = build_dashboard_app(
        ViewFeed(source), access or build_access("127.0.0.1", 8400, None), lambda view: b"fedge_up 1\n"
    )
    return TestClient(app, base_url=base, raise_server_exceptions=False)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    begin(tmp_path / "run", 3, played=1)
    with client_of(RunSource(tmp_path / "run")) as opened:
        yield opened


def test_the_page_and_its_files_come_from_here(client):
    page = client.get("/")
    assert page.status_code == 200
    for name in (
        "board.js",
        "board.css",
        "charts.js",
        "entrance.js",
        "panel.js",
        "tiles.js",
        "timeline.js",
        "words.js",
    ):
        assert client.get(f"/static/{name}").status_code == 200
    assert "http://" not in page.text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page.text


def test_figures_are_json_and_not_sent_twice(client):
    first = client.get("/api/view")
    assert first.json()["summary"]["round"] == 1
    assert [board["name"] for board in first.json()["boards"]] == ["nano-1", "xavier-nx-1", "agx-orin-64gb-1"]
    assert client.get("/api/view", headers={"if-none-match": first.headers["etag"]}).status_code == 304
    assert client.get("/api/boards/nano-1").json()["board"]["name"] == "nano-1"
    assert len(client.get("/api/rounds/1").json()["bars"]) == 3
    assert client.get("/metrics").text == "fedge_up 1\n"


def test_a_board_and_a_round_are_answered_to_whom_has_not_asked_for_the_view(tmp_path):
    begin(tmp_path / "run", 3, played=1)
    for path in ("/api/boards/nano-1", "/api/rounds/1"):
        with client_of(RunSource(tmp_path / "run")) as client:
            assert client.get(path).status_code == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/boards/nobody", 404),
        ("/api/boards/%3Cscript%3E", 404),
        ("/api/rounds/99", 404),
        ("/api/rounds/one", 422),
        ("/api/nothing", 404),
        ("/static/../app.py", 404),
        ("/static/%2e%2e/app.py", 404),
        ("/docs", 404),
        ("/openapi.json", 404),
        ("/telemetry", 404),
    ],
)
def test_what_is_not_there_is_refused(client, path, status):
    assert client.get(path).status_code == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", ["/", "/api/view", "/api/login", "/api/boards/nano-1", "/metrics"])
def test_nothing_can_be_changed(client, method, path):
    assert client.request(method, path).status_code == 405


def test_every_answer_carries_the_headers_of_safety(client):
    for path in ("/", "/static/board.js", "/api/view", "/api/nothing", "/metrics"):
        headers = client.get(path).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers
    assert client.get("/api/boards/nano-1").headers["cache-control"] == "no-store"


def test_a_name_that_was_made_to_point_here_is_refused(client):
    for path in ("/", "/api/view", "/static/board.js"):
        assert client.get(path, headers={"host": "evil.example:8400"}).status_code == 421


def test_another_sites_page_gets_nothing(client):
    assert client.get("/api/view", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert client.get("/api/view", headers={"sec-fetch-site": "same-origin"}).status_code == 200


def test_with_a_token_figures_need_it_and_the_page_itself_does_not(tmp_path):
    begin(tmp_path / "run", 3, played=1)
    access = build_access("192.168.1.5", 8400, TOKEN)
    with client_of(RunSource(tmp_path / "run"), access, "http://192.168.1.5:8400") as client:
        closed = ("/api/view", "/api/stream", "/api/boards/nano-1", "/api/rounds/1", "/metrics", "/api/login")
        assert {path: client.get(path).status_code for path in closed} == dict.fromkeys(closed, 401)
        page = client.get("/")
        assert page.status_code == client.get("/static/board.js").status_code == 200
        assert "nano-1" not in page.text
        bearer = {"authorization": f"Bearer {TOKEN}"}
        assert client.get("/metrics", headers=bearer).status_code == 200
        assert client.get("/api/login", headers={"authorization": "Bearer wrong"}).status_code == 401
        cookie = client.get("/api/login", headers=bearer).headers["set-cookie"]
        assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/"))
        assert TOKEN not in cookie
        assert client.get("/api/view").status_code == 200, "the cookie is enough from now on"


class Failing:
    """A source whose store cannot be read."""

    def view(self) -> FleetView:
        return FleetView()

    def history(self, board: str) -> BoardHistory | None:
        raise OSError("the disk is gone")

    def round(self, number: int) -> RoundView | None:
        raise ValueError("nothing to read")


def test_a_question_that_cannot_be_answered_ends_nothing():
    with client_of(Failing()) as client:
        for path in ("/api/boards/nano-1", "/api/rounds/1"):
            assert client.get(path).status_code == 503
            assert "disk" not in client.get(path).text
        assert json.loads(client.get("/api/view").text)["boards"] == []


class Folders:
    """Two runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self) -> dict[str, Path]:
        return {path.name: path for path in self.folder.iterdir()}

    def list_rows(self) -> list[dict[str, Any]]:
        return [{"name": name} for name in sorted(self.find())]

    def render_comparison(self, folders: Sequence[Path]) -> str:
        if not folders:
            raise BadInput("report", "no run folder", "one or more")
        return "<!doctype html>" + ", ".join(folder.name for folder in folders)


def index_client(folder: Path, access: Access | None = None, base: str = HERE) -> TestClient:
    for name, boards in (("first", 3), ("second", 6)):
        begin(folder / name, boards, played=1)
    app, _ = build_index_app(Folders(folder), access or build_access("127.0.0.1", 8400, None))
    return TestClient(app, base_url=base, raise_server_exceptions=False)


def test_every_run_has_a_row_and_a_page_of_its_own(tmp_path):
    client = index_client(tmp_path)
    assert [run["name"] for run in client.get("/api/runs").json()["runs"]] == ["first", "second"]
    for name, boards in (("first", 3), ("second", 6)):
        page = client.get(f"/runs/{name}")
        assert (page.status_code, str(page.url)) == (200, f"http://127.0.0.1:8400/runs/{name}/")
        assert len(client.get(f"/runs/{name}/api/view").json()["boards"]) == boards
        assert client.get(f"/runs/{name}/static/board.js").status_code == 200
    for name in ("runs.js", "entrance.js", "words.js", "board.css"):
        assert client.get(f"/static/{name}").status_code == 200
    for path in ("/api/runs", "/runs/first/api/view", "/api/compare?run=first"):
        assert client.get(path, headers={"sec-fetch-site": "cross-site"}).status_code == 403
    for path in ("/", "/api/runs", "/runs/first/", "/runs/first/api/view", "/runs/nobody/"):
        assert "unsafe" not in client.get(path).headers["content-security-policy"]


@pytest.mark.parametrize("name", ["nobody", "..", "%2e%2e", "first%2F..", ""])
def test_what_is_no_run_has_no_page(tmp_path, name):
    assert index_client(tmp_path / "runs").get(f"/runs/{name}/api/view").status_code == 404


def test_chosen_runs_are_compared(tmp_path):
    client = index_client(tmp_path)
    answer = client.get("/api/compare?run=first&run=second&run=nobody")
    assert answer.text == "<!doctype html>first, second"
    assert "script-src 'unsafe-inline'" in answer.headers["content-security-policy"]
    assert client.get("/api/compare").status_code == 409


def test_with_a_token_every_figure_needs_it_also_below_a_run_s_name(tmp_path):
    client = index_client(tmp_path, build_access("192.168.1.5", 8400, TOKEN), "http://192.168.1.5:8400")
    closed = ("/api/runs", "/api/compare?run=first", "/runs/first/api/view", "/runs/first/api/stream")
    closed += ("/runs/first/api/boards/nano-1", "/runs/first/api/login")
    assert {path: client.get(path).status_code for path in closed} == dict.fromkeys(closed, 401)
    assert client.get("/").status_code == client.get("/runs/first/").status_code == 200
    assert client.get("/api/login", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 204
    assert client.get("/api/runs").status_code == client.get("/runs/first/api/view").status_code == 200

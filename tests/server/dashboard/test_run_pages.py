"""The index of runs: its rows, every run's page below it, comparisons, and who may read them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from contracts.board_runs import begin
from starlette.testclient import TestClient

from fedge.errors import BadInput
from server.dashboard.security import Access, build_access
from server.dashboard.web_app import build_index_app

TOKEN = "a-token-of-some-length"


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


def client_of(folder: Path, access: Access | None = None, base: str = "http://127.0.0.1:8400") -> TestClient:
    for name, boards in (("first", 3), ("second", 6)):
        begin(folder / name, boards, played=1)
    app, _ = build_index_app(Folders(folder), access or build_access("127.0.0.1", 8400, None))
    return TestClient(app, base_url=base, raise_server_exceptions=False)


def test_every_run_has_a_row_and_a_page_of_its_own(tmp_path: Path) -> None:
    client = client_of(tmp_path)
    assert [run["name"] for run in client.get("/api/runs").json()["runs"]] == ["first", "second"]
    for name, boards in (("first", 3), ("second", 6)):
        page = client.get(f"/runs/{name}")
        assert (page.status_code, str(page.url)) == (200, f"http://127.0.0.1:8400/runs/{name}/")
        assert len(client.get(f"/runs/{name}/api/view").json()["boards"]) == boards
        assert client.get(f"/runs/{name}/static/board.js").status_code == 200
    for name in ("runs.js", "entrance.js", "words.js", "board.css"):
        assert client.get(f"/static/{name}").status_code == 200


@pytest.mark.parametrize("name", ["nobody", "..", "%2e%2e", "first%2F..", ""])
def test_what_is_no_run_has_no_page(tmp_path: Path, name: str) -> None:
    assert client_of(tmp_path / "runs").get(f"/runs/{name}/api/view").status_code == 404


def test_chosen_runs_are_compared(tmp_path: Path) -> None:
    client = client_of(tmp_path)
    answer = client.get("/api/compare?run=first&run=second&run=nobody")
    assert answer.text == "<!doctype html>first, second"
    assert "script-src 'unsafe-inline'" in answer.headers["content-security-policy"]
    assert client.get("/api/compare").status_code == 409


def test_every_other_answer_carries_the_headers_of_safety(tmp_path: Path) -> None:
    client = client_of(tmp_path)
    for path in ("/", "/api/runs", "/runs/first/", "/runs/first/api/view", "/runs/nobody/"):
        assert "unsafe" not in client.get(path).headers["content-security-policy"]


def test_with_a_token_every_figure_needs_it_also_below_a_run_s_name(tmp_path: Path) -> None:
    client = client_of(tmp_path, build_access("192.168.1.5", 8400, TOKEN), "http://192.168.1.5:8400")
    closed = ("/api/runs", "/api/compare?run=first", "/runs/first/api/view", "/runs/first/api/stream")
    closed += ("/runs/first/api/boards/nano-1", "/runs/first/api/login")
    assert {path: client.get(path).status_code for path in closed} == dict.fromkeys(closed, 401)
    assert client.get("/").status_code == client.get("/runs/first/").status_code == 200
    assert client.get("/api/login", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 204
    assert client.get("/api/runs").status_code == client.get("/runs/first/api/view").status_code == 200


def test_another_sites_page_gets_nothing_of_a_run(tmp_path: Path) -> None:
    client = client_of(tmp_path)
    for path in ("/api/runs", "/runs/first/api/view", "/api/compare?run=first"):
        assert client.get(path, headers={"sec-fetch-site": "cross-site"}).status_code == 403

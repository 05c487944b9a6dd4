"""Another page as a source: what it says is shown, what it cannot say becomes a line."""

import itertools
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from contracts.board_runs import begin
from contracts.live_server import make_keys
from contracts.served_page import served_page

from fedge.errors import RunFailed
from server.dashboard.http_server import ViewFeed
from server.dashboard.relay_source import CA_ADVICE, PERIOD_S, RelaySource
from server.dashboard.run_source import RunSource
from server.dashboard.views import VIEW_JSON, FleetView, RunInfo

TOKEN = "a-token-of-some-length"


@contextmanager
def page_of(folder: Path, token: str | None = None) -> Iterator[str]:
    with served_page(ViewFeed(RunSource(folder), period_s=0.01), token) as port:
        yield f"http://127.0.0.1:{port}"


def relay(url: str, token: str | None = None) -> RelaySource:
    """Asks again whenever it is looked at."""
    ticks = itertools.count(step=PERIOD_S)
    return RelaySource(url, token, lambda: next(ticks))


def test_a_relayed_page_shows_the_same(tmp_path):
    begin(tmp_path / "run", 3, played=1)
    own = RunSource(tmp_path / "run")
    with page_of(tmp_path / "run") as url:
        source = relay(url)
        assert source.view() == own.view()
        again = source.view()
        assert source.view() is again, "nothing changed, so nothing was sent"
        assert source.history("nano-1") == own.history("nano-1")
        assert source.round(1) == own.round(1)
        assert source.history("../view") is None
        assert source.round(9) is None


def test_a_page_that_is_gone_becomes_a_line_and_its_figures_stay(tmp_path):
    begin(tmp_path / "run", 3, played=1)
    with page_of(tmp_path / "run") as url:
        source = relay(url)
        before = source.view()
    after = source.view()
    assert "does not answer" in after.problem
    assert after.boards == before.boards
    with pytest.raises(RunFailed):
        source.history("nano-1")


def test_a_server_without_such_a_view_becomes_a_line(tmp_path):
    begin(tmp_path / "run", 3, played=1)
    with page_of(tmp_path / "run") as url:
        assert relay(f"{url}/runs").view().problem == f"{url}/runs: it answered 404"


def test_the_other_pages_token_is_needed_and_never_told(tmp_path):
    begin(tmp_path / "run", 3, played=1)
    with page_of(tmp_path / "run", TOKEN) as url:
        assert relay(url, TOKEN).view().summary.round == 1
        wrong = relay(url, "another-token-of-length").view()
        assert "token" in wrong.problem
        assert "another" not in wrong.problem


def test_a_page_behind_a_ca_of_its_own_is_believed_when_that_is_named(tmp_path, monkeypatch):
    keys = make_keys(tmp_path / "keys")
    view = VIEW_JSON.dump_json(FleetView(run=RunInfo(name="behind TLS")))

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(view)))
            self.end_headers()
            self.wfile.write(view)

        def log_message(self, *_: object) -> None:
            return

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server.crt", keys / "server.key")
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        server.handle_error = lambda *_: None
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        url = f"https://127.0.0.1:{server.server_address[1]}"
        assert relay(url).view().problem == f"{url}: {CA_ADVICE}"
        monkeypatch.setenv("SSL_CERT_FILE", str(keys / "ca.crt"))
        found = relay(url).view()
        server.shutdown()
    assert (found.problem, found.run.name) == ("", "behind TLS")

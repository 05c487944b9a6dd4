"""``fedge fleet provision | up | down | upgrade | logs``: one playbook each, with live view and summary."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from experiments.cli.command_output import check_folder, make_console, make_progress_console
from experiments.fleet import selected_fleet
from experiments.fleet.inventory import format_names
from experiments.fleet.key_folder import read_signer
from experiments.fleet.playbook_progress import PlaybookProgress, summarize_playbook
from experiments.fleet.playbook_runner import PlaybookCall, PlaybookOutcome, execute_playbook
from experiments.fleet.revocation import REVOCATIONS, revoke_certificates
from experiments.fleet.selected_fleet import FleetOptions, SelectedFleet
from experiments.fleet.server_connection import list_logins
from experiments.report.quantities import data_size, duration
from experiments.report.tables import print_lines
from fedge.errors import BadInput

DONE, FAILED = 0, 1
MAX_HOSTS_NAMED = 6


def provision_fleet(options: FleetOptions, check: bool) -> int:
    """Provision server and boards, or with ``check`` only report the pending changes; return the exit code.

    The inventory is checked first.
    """
    fleet = selected_fleet.read_checked_fleet(options)
    return run_playbook("provision", fleet, replace(fleet.build_call("site.yml"), check=check))


def run_plain_playbook(name: str, playbook: str, options: FleetOptions) -> int:
    """Run a playbook without options of its own; return the exit code."""
    fleet = selected_fleet.read_fleet(options)
    return run_playbook(name, fleet, fleet.build_call(playbook))


def remove_fleet(options: FleetOptions, agreed: Callable[[str], bool]) -> int:
    """Remove everything from the fleet after a confirmation that names the hosts; return the exit code.

    ``agreed`` asks a question and returns whether the user agrees.
    """
    fleet = selected_fleet.read_fleet(options)
    if not agreed(removal_question(fleet)):
        print_lines(make_console(), ["nothing was removed"])
        return FAILED
    return run_playbook("remove", fleet, fleet.build_call("remove.yml"))


def revoke_board(options: FleetOptions, board: str) -> int:
    """Lock a board out: revoke its certificates, and have the server refuse them and its key; return the exit code."""
    fleet = selected_fleet.read_fleet(options)
    console, problem = make_console(), None
    try:
        revoked = _revoke_certificates(fleet, board)
    except BadInput as error:  # its key is taken away all the same
        revoked, problem = [], error
    print_lines(console, revoked)
    call = replace(fleet.build_call("revoke.yml"), variables={"revoke_board": board})
    code = run_playbook("revoke", fleet, call)
    if problem is not None:
        raise problem
    if board in fleet.inventory.board_names:
        print_lines(console, [f"remove {board} from {fleet.inventory.path}, so that nobody provisions it again"])
    return code


def _revoke_certificates(fleet: SelectedFleet, board: str) -> list[str]:
    """Write the list of revoked certificates; return what was done, nothing for a fleet without telemetry."""
    plan = selected_fleet.InventoryContext(fleet.inventory, fleet.options.playbooks, datetime.now(UTC))
    keys = [plan.resolve_file(text) for text in plan.list_board_values("telemetry_ca_key")]
    if not keys:
        return []
    server = fleet.inventory.server
    certificate = plan.resolve_file(server.text("superlink_ca_certificate"))
    named = server.text("superlink_revocations")
    if named and not selected_fleet.is_local_file(named):
        raise BadInput("superlink_revocations", named, "the path of a file")
    listed = plan.resolve_file(named) if named else certificate.with_name(REVOCATIONS)
    ca = read_signer(certificate, keys[0])
    count = revoke_certificates(ca, folder=keys[0].parent, listed=listed, board=board, now=plan.now)
    return [f"{board}: {count} certificate{'s' if count > 1 else ''} revoked, listed in {listed}"]


def removal_question(fleet: SelectedFleet) -> str:
    """Return the question that names the hosts and what they lose."""
    server = fleet.inventory.server.name
    hosts = [name for name in (server, *fleet.boards) if name in fleet.hosts]
    also = f" On {server} the SuperLink's database goes too; the runs stay, for root alone." if server in hosts else ""
    return f"Remove fedge from {format_names(hosts, MAX_HOSTS_NAMED)}?{also}"


def fetch_logs(options: FleetOptions, out: Path, since: str | None) -> int:
    """Fetch logs and traces since a time such as "2 hours ago" (None: one day); return the exit code.

    Every host gets its own folder in ``out``.
    """
    check_folder("--folder", out)
    fleet = selected_fleet.read_fleet(options)
    given = {"collect_to": str(out.resolve()), **({"collect_since": since} if since else {})}
    code = run_playbook("logs", fleet, replace(fleet.build_call("collect.yml"), variables=given))
    console = make_console()
    hosts = (name for name in (fleet.inventory.server.name, *fleet.boards) if name in fleet.hosts)
    print_lines(console, describe_fetched_logs(out, tuple(hosts)))
    return code


def describe_fetched_logs(out: Path, hosts: tuple[str, ...]) -> Iterator[str]:
    """Yield a line per host with number and size of its files in the folder."""
    for host in hosts:
        files = [path for path in sorted((out / host).rglob("*")) if path.is_file()]
        if files:
            amount = data_size(sum(path.stat().st_size for path in files))
            yield f"{host}: {len(files)} {'file' if len(files) == 1 else 'files'}, {amount}, in {out / host}"


def log_path(environ: Mapping[str, str], name: str, now_s: float, pid: int) -> Path:
    """Return the path of the log with Ansible's full output, one file per command in the user's state folder."""
    state = environ.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now_s))
    return Path(state) / "fedge" / f"{name}-{stamp}-{pid}.log"


def run_playbook(name: str, fleet: SelectedFleet, call: PlaybookCall) -> int:
    """Run a playbook, show its progress and print a summary; return the exit code."""
    return DONE if follow_playbook(name, fleet, call).code == 0 else FAILED


def follow_playbook(name: str, fleet: SelectedFleet, call: PlaybookCall) -> PlaybookOutcome:
    """Run a playbook, show its progress, print a summary and return the outcome."""
    console, started_s = make_console(), time.monotonic()
    log = log_path(os.environ, name, time.time(), os.getpid())
    try:
        with PlaybookProgress(name, make_progress_console(stderr=False)) as progress:
            outcome = execute_playbook(call, log, progress.update)
    except KeyboardInterrupt:
        stays = "stopped; what was done until then stays, and the same command goes on from there"
        print_lines(console, [f"{stays}; log: {log}"])
        raise
    took = f"took {duration(int(time.monotonic() - started_s), 1)}; all of Ansible's output: {log}"
    print_lines(console, [*summarize_outcome(outcome, fleet, check=call.check), took])
    return outcome


def summarize_outcome(outcome: PlaybookOutcome, fleet: SelectedFleet, *, check: bool) -> list[str]:
    """Return the closing lines: the summary, or why no host was contacted."""
    boards, logins = frozenset(fleet.boards), list_logins(fleet.inventory)
    lines = summarize_playbook(outcome.state, check=check, boards=boards, logins=logins)
    if outcome.code != 0 and not outcome.state.failures_by_host:
        return [f"Ansible ended with code {outcome.code}: {outcome.words or 'see its output'}"]
    return lines

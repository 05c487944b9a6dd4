"""The ``fedge fleet`` commands: provision and operate a fleet of real boards, its keys, proxy and firewall."""

from __future__ import annotations

import functools
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli import command_options as cli
from experiments.cli.command_options import command_group
from experiments.cli.command_output import (
    Outputs,
    ask_confirmation,
    check_output,
    print_line,
    write_error,
    write_output,
)
from fedge.atomic_files import write_text
from fedge.errors import BadInput

if TYPE_CHECKING:
    from experiments.fleet.selected_fleet import FleetOptions

fleet = command_group("A fleet of real boards, from bare boards to a run.")

Inventory = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The fleet's inventory; by default $FEDGE_INVENTORY, or inventory.yml: in ansible/ of the checkout, "
        "otherwise here.",
    ),
]
Playbooks = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The folder of the playbooks; fedge's own by default.")
]
Limit = Annotated[
    str | None,
    typer.Option(metavar="HOSTS", help="Only these hosts, as Ansible's --limit; all by default."),
]


@fleet.command("keys")
def keys(
    folder: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write: the keys.")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|ADDRESS", help="How boards reach the server; may be repeated. Loopback is included."
        ),
    ] = None,
    days: Annotated[
        int | None, typer.Option(min=1, help="Validity of the server's certificate in days; by default 365.")
    ] = None,
    renew: Annotated[bool, typer.Option("--renew", help="Make a new server certificate with the existing CA.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only show the certificates; exit code 1 if one expires within 30 days.")
    ] = False,
) -> None:
    """Make a CA and the server's certificate, or renew the latter.

    An existing CA is never overwritten.

    Example: fedge fleet keys --folder ../fleet-keys --host fleet.lan
    """
    from experiments.fleet import key_folder as command
    from experiments.fleet.key_folder import SERVER_DAYS

    if check and (renew or host or days):
        raise BadInput("--check", "other options beside it", "--check alone: it changes nothing")
    now = datetime.now(UTC)
    if check:
        found = command.inspect_keys(folder)
    else:
        found = (command.renew_server_certificate if renew else command.create_keys)(
            folder, host or [], now, days or SERVER_DAYS
        )
    print_line(f"{found.folder}: {found}")
    ending = command.list_expiring(found, now)
    for line in ending:
        write_error(line)
    if check and ending:
        raise typer.Exit(1)


@fleet.command("provision")
def provision(
    dry_run: cli.DryRun = False,
    inventory: Inventory = None,
    playbooks: Playbooks = None,
    limit: Limit = None,
) -> None:
    """Install everything on the server and the boards.

    A second run changes nothing. The inventory is checked before any host is contacted.

    Example: fedge fleet provision --dry-run
    """
    from experiments.cli import fleet_playbook as command

    _exit_with(command.provision_fleet(_build_options(inventory, playbooks, limit), dry_run))


@fleet.command("up")
def up(inventory: Inventory = None, playbooks: Playbooks = None, limit: Limit = None) -> None:
    """Start the services of the server, then those of the boards.

    Example: fedge fleet up
    """
    from experiments.cli import fleet_playbook as command

    _exit_with(command.run_plain_playbook("up", "up.yml", _build_options(inventory, playbooks, limit)))


@fleet.command("status")
def status(
    out: cli.OutFile = None,
    inventory: Inventory = None,
    playbooks: Playbooks = None,
    limit: Limit = None,
    as_json: cli.AsJson = False,
) -> None:
    """Show the state of each board, with a remedy for every problem.

    The hosts are queried now; nothing is changed. Exit code 1 if there is a problem.

    Example: fedge fleet status --limit nano-1
    """
    from experiments.cli.fleet_status import report_status

    _exit_with(0 if report_status(_build_options(inventory, playbooks, limit), Outputs(as_json, out)) else 1)


@fleet.command("board")
def board(
    port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Port to listen on; by default a free one.")
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in the browser of this machine.")] = False,
    inventory: Inventory = None,
    playbooks: Playbooks = None,
) -> None:
    """Show the dashboard of the server on this machine, through ssh.

    The printed address is valid until Ctrl-C.

    Example: fedge fleet board --open
    """
    from experiments.backends.sim_backend import find_free_port
    from experiments.cli.dashboard_view import announce_page
    from experiments.fleet import selected_fleet, server_connection
    from fedge.child_processes import handle_signals

    member = selected_fleet.read_fleet(_build_options(inventory, playbooks)).inventory.server
    server, page = server_connection.build_connection(member), server_connection.find_dashboard_address(member)
    if server.command_prefix[0] == "sh":
        # If this machine is the server, no tunnel is needed.
        if not server_connection.probe_page(page.host, page.port):
            raise server_connection.no_page_error(server)
        announce_page(f"http://{page.host}:{page.port}/", open_it)
        return
    local_port = port or find_free_port()
    with suppress(KeyboardInterrupt), handle_signals(), server_connection.open_tunnel(server, page, local_port) as wait:
        announce_page(f"http://127.0.0.1:{local_port}/ is the page of {server.name}, until Ctrl-C", open_it)
        wait()


@fleet.command("run")
def run(
    *,
    config: cli.Experiment,
    override: cli.Overrides = None,
    folder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write; by default runs/<name>-<time>.")
    ] = None,
    dry_run: cli.DryRun = False,
    inventory: Inventory = None,
    playbooks: Playbooks = None,
) -> None:
    """Run an experiment on the server and fetch its run folder.

    It is checked on this machine first. Ctrl-C stops the run and fetches its results so far.

    Example: fedge fleet run exp.yaml --set rounds=20
    """
    from experiments.cli import fleet_launch

    options = _build_options(inventory, playbooks)
    _exit_with(fleet_launch.run_on_fleet(config, override or [], folder, options, dry_run=dry_run))


@fleet.command("profile")
def profile(
    *,
    workload: Annotated[
        str, typer.Option(metavar="NAME", help="The workload, as for `fedge profile`; a task file (.py) is copied.")
    ],
    budget_s: cli.ProfilingBudget = None,
    limit_s: cli.MaxModeTime = None,
    modes: cli.ProfiledModes = "50",
    explorer: cli.ModeExplorer = "active",
    batch_size: cli.BatchSize = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait, within the budget, for boards that a run works with.")
    ] = False,
    seed: cli.Seed = 0,
    folder: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder to write: the tables, one subfolder per board.")
    ] = Path("profiles"),
    inventory: Inventory = None,
    playbooks: Playbooks = None,
    limit: Limit = None,
) -> None:
    """Profile every board, side by side, and fetch the tables.

    A board that fails is a row with its reason. The same command goes on where a board has stopped.

    Example: fedge fleet profile --workload resnet18-cifar10 --budget-s 600
    """
    from experiments.cli.command_output import make_console
    from experiments.cli.fleet_profile import profile_fleet, profile_table

    given = {
        "workload": workload,
        "budget-s": budget_s,
        "max-mode-s": limit_s,
        "modes": modes,
        "explorer": explorer,
        "batch-size": batch_size,
        "seed": seed,
        "wait": wait or None,
    }
    code, rows = profile_fleet(_build_options(inventory, playbooks, limit), given, folder)
    profile_table(rows).print(make_console())
    _exit_with(code)


@fleet.command("logs")
def logs(
    folder: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write: one subfolder per host.")] = Path(
        "collected"
    ),
    since: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help='Start of the period, such as "2 hours ago"; by default one day ago.'),
    ] = None,
    inventory: Inventory = None,
    playbooks: Playbooks = None,
    limit: Limit = None,
) -> None:
    """Fetch the hosts' logs and the boards' traces.

    Example: fedge fleet logs --since "2 hours ago"
    """
    from experiments.cli import fleet_playbook as command

    _exit_with(command.fetch_logs(_build_options(inventory, playbooks, limit), folder, since))


@fleet.command("upgrade")
def upgrade(inventory: Inventory = None, playbooks: Playbooks = None, limit: Limit = None) -> None:
    """Provision the boards again, one after the other.

    The first board that fails gets its earlier version back and ends the command.

    Example: fedge fleet upgrade --limit boards
    """
    from experiments.cli import fleet_playbook as command

    _exit_with(command.run_plain_playbook("upgrade", "upgrade.yml", _build_options(inventory, playbooks, limit)))


@fleet.command("revoke")
def revoke(
    *,
    board: Annotated[str, typer.Argument(metavar="BOARD", help="Name of the board.")],
    inventory: Inventory = None,
    playbooks: Playbooks = None,
) -> None:
    """Lock a board out, such as a stolen one: its key and its telemetry certificate.

    The server refuses both from then on. The board need not be reachable, nor in the inventory.

    Example: fedge fleet revoke nano-1
    """
    from experiments.cli import fleet_playbook as command

    _exit_with(command.revoke_board(_build_options(inventory, playbooks), board))


@fleet.command("down")
def down(
    *,
    remove: Annotated[
        bool,
        typer.Option(
            "--remove", help="Also remove everything, keys and the SuperLink's database included; runs are kept."
        ),
    ] = False,
    yes: cli.Yes = False,
    inventory: Inventory = None,
    playbooks: Playbooks = None,
    limit: Limit = None,
) -> None:
    """Stop the services; --remove uninstalls everything.

    The power daemons are stopped last: they restore the boards' original power modes.

    Example: fedge fleet down --limit nano-1
    """
    from experiments.cli import fleet_playbook as command

    options = _build_options(inventory, playbooks, limit)
    if remove:
        remedy = "--yes as well: keys and the database are removed, runs are kept"
        agreed = (lambda _question: True) if yes else functools.partial(ask_confirmation, without_terminal=remedy)
        _exit_with(command.remove_fleet(options, agreed))
    else:
        _exit_with(command.run_plain_playbook("down", "down.yml", options))


def _build_options(inventory: Path | None, playbooks: Path | None, limit: str | None = None) -> FleetOptions:
    from experiments.fleet.selected_fleet import build_options

    return build_options(inventory, playbooks, limit)


def _exit_with(code: int) -> None:
    if code:
        raise typer.Exit(code)


@fleet.command("proxy")
def proxy(
    *,
    keys: Annotated[
        Path, typer.Option(metavar="DIR", help="The server's folder with server.crt, server.key and ca.crt.")
    ] = Path("/etc/fedge/tls"),
    listen: Annotated[
        list[str] | None, typer.Option(metavar="ADDRESS", help="Address to listen on; by default every IPv4 address.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port to listen on (for the boards).")] = 9443,
    superlink_port: Annotated[int, typer.Option(help="The SuperLink's port on loopback.")] = 8000,
    management: Annotated[
        list[str] | None,
        typer.Option(metavar="CIDR", help="Network that may start, stop and list runs; by default none."),
    ] = None,
    management_port: Annotated[int, typer.Option(help="The port for that network.")] = 9444,
    telemetry: Annotated[
        Path | None,
        typer.Option(metavar="SOCKET", help="Socket of the board service for telemetry; by default none."),
    ] = None,
    revocations: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The server's copy of ca.crl, of `fedge fleet revoke`; by default none."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="File to write; by default it is printed.")] = None,
) -> None:
    """Print the nginx configuration between boards and the SuperLink.

    It forwards only the requests that boards may send to a SuperLink on loopback.

    Example: fedge fleet proxy --keys /etc/fedge/tls --out fedge.conf
    """
    from experiments.fleet.nginx_proxy import ALL_ADDRESSES, NginxProxy, build_configuration

    addresses = tuple(listen) if listen else ALL_ADDRESSES
    networks = tuple(management or ())
    text = build_configuration(
        NginxProxy(
            keys,
            superlink_port=superlink_port,
            fleet_port=port,
            addresses=addresses,
            management=networks,
            control_port=management_port,
            telemetry=telemetry,
            revocations=revocations,
        )
    )
    _print_or_write(text, out)


@fleet.command("firewall")
def firewall(
    account: Annotated[
        list[str], typer.Option(metavar="NAME", help="Account that may reach the SuperLink; may be repeated.")
    ],
    superlink_port: Annotated[int, typer.Option(help="The SuperLink's port on loopback.")] = 8000,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="File to write; by default it is printed.")] = None,
) -> None:
    """Print the nftables rules between the server's accounts and runs.

    They prevent every other account of the server from starting, stopping and listing runs.

    Example: fedge fleet firewall --account fedge --out fedge.nft
    """
    from experiments.fleet.nginx_proxy import build_firewall_rules

    _print_or_write(build_firewall_rules(account, superlink_port), out)


def _print_or_write(text: str, out: Path | None) -> None:
    """Print a configuration, or write it to a new file or over an earlier one of its own kind."""
    if out is None:
        typer.echo(text, nl=False)
        return
    check_output("--out", out, text.partition(";")[0])
    write_output("--out", out, lambda path: write_text(path, text))

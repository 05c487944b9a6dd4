"""The ``fedge fleet`` commands: provision and operate a fleet of real boards, its keys, proxy and firewall."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

fleet = typer.Typer(
    help="A fleet of real boards, from bare boards to a run.", no_args_is_help=True, rich_markup_mode=None
)

Inventory = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="The fleet's inventory; $FEDGE_INVENTORY or inventory.yml next to the playbooks."
    ),
]
Playbooks = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The folder of the playbooks; the checkout's ansible/ by default.")
]
Limit = Annotated[
    str | None,
    typer.Option(metavar="HOSTS", help="Only these hosts, as Ansible's --limit; all by default."),
]


@fleet.command("keys")
def keys(
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the keys.")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|ADDRESS", help="How boards reach the server; may be repeated. Loopback is included."
        ),
    ] = None,
    days: Annotated[int | None, typer.Option(min=1, help="How long the server's certificate holds; 365.")] = None,
    renew: Annotated[bool, typer.Option("--renew", help="A new server certificate from the CA that is there.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only say what is there; exit code 1 if it ends within 30 days.")
    ] = False,
) -> None:
    """Make a CA and the server's certificate, or renew the latter.

    A CA that is there is never overwritten.
    """
    from experiments.fleet import key_folder as command
    from experiments.fleet.certificates import SERVER_DAYS
    from fedge.errors import BadInput

    if check and (renew or host or days):
        raise BadInput("--check", "other options beside it", "--check alone: it changes nothing")
    now = datetime.now(UTC)
    if check:
        found = command.inspect_keys(out)
    else:
        found = (command.renew_server_certificate if renew else command.create_keys)(
            out, host or [], now, days or SERVER_DAYS
        )
    typer.echo(f"{found.folder}: {found}")
    ending = command.list_expiring(found, now)
    for line in ending:
        typer.echo(line, err=True)
    if check and ending:
        raise typer.Exit(1)


@fleet.command("provision")
def provision(
    check: Annotated[bool, typer.Option("--check", help="Change nothing; say what would change.")] = False,
    inventory: Inventory = None,
    playbooks: Playbooks = None,
    limit: Limit = None,
) -> None:
    """Put everything on the server and the boards.

    Doing it again changes nothing. The inventory is checked before any host is touched.
    """
    from experiments.cli import fleet_playbook as command
    from experiments.cli.fleet_options import build_options

    _exit_with(command.provision_fleet(build_options(inventory, playbooks, limit), check))


@fleet.command("up")
def up(inventory: Inventory = None, playbooks: Playbooks = None, limit: Limit = None) -> None:
    """Start the services of the server, then those of the boards."""
    from experiments.cli import fleet_playbook as command
    from experiments.cli.fleet_options import build_options

    _exit_with(command.run_plain_playbook("up", "up.yml", build_options(inventory, playbooks, limit)))


@fleet.command("status")
def status(
    out: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="The same, for a program to read.")] = None,
    inventory: Inventory = None,
    playbooks: Playbooks = None,
    limit: Limit = None,
) -> None:
    """Show each board, and what to do about what is wrong.

    The hosts are asked now, and nothing is changed. Exit code 1 when anything is wrong.
    """
    from experiments.cli.fleet_options import build_options
    from experiments.cli.fleet_status import report_status

    _exit_with(0 if report_status(build_options(inventory, playbooks, limit), out) else 1)


@fleet.command("board")
def board(
    port: Annotated[int | None, typer.Option(min=1, max=65_535, help="The port here; a free one by default.")] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser of this machine.")] = False,
    inventory: Inventory = None,
    playbooks: Playbooks = None,
) -> None:
    """Show the page of the server here, through ssh.

    The address is printed, and holds until Ctrl-C.
    """
    from experiments.cli.fleet_dashboard import open_fleet_dashboard as command
    from experiments.cli.fleet_options import build_options

    command(build_options(inventory, playbooks), port, open_it)


@fleet.command("run")
def run(
    *,
    config: Annotated[Path, typer.Argument(metavar="EXP.yaml", help="The experiment's YAML file.")],
    override: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a field; may be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder here; runs/<name>-<time> by default.")] = None,
    inventory: Inventory = None,
    playbooks: Playbooks = None,
) -> None:
    """Run an experiment on the server and fetch its run folder.

    It is checked here first. Ctrl-C stops it there, and fetches what it has until then.
    """
    from experiments.cli import fleet_launch
    from experiments.cli.fleet_options import build_options

    _exit_with(fleet_launch.run_on_fleet(config, override or [], out, build_options(inventory, playbooks)))


@fleet.command("logs")
def logs(
    out: Annotated[Path, typer.Option(metavar="DIR", help="A folder; each host gets one in it.")] = Path("collected"),
    since: Annotated[
        str | None, typer.Option(metavar="TEXT", help='How far back, such as "2 hours ago"; one day by default.')
    ] = None,
    inventory: Inventory = None,
    playbooks: Playbooks = None,
    limit: Limit = None,
) -> None:
    """Fetch the hosts' logs and the boards' traces."""
    from experiments.cli import fleet_playbook as command
    from experiments.cli.fleet_options import build_options

    _exit_with(command.fetch_logs(build_options(inventory, playbooks, limit), out, since))


@fleet.command("upgrade")
def upgrade(inventory: Inventory = None, playbooks: Playbooks = None, limit: Limit = None) -> None:
    """Provision the boards again, one after the other.

    The first that fails ends it.
    """
    from experiments.cli import fleet_playbook as command
    from experiments.cli.fleet_options import build_options

    _exit_with(command.run_plain_playbook("upgrade", "upgrade.yml", build_options(inventory, playbooks, limit)))


@fleet.command("down")
def down(
    *,
    remove: Annotated[
        bool, typer.Option("--remove", help="Take everything away too, keys and the SuperLink's database; runs stay.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without a question.")] = False,
    inventory: Inventory = None,
    playbooks: Playbooks = None,
    limit: Limit = None,
) -> None:
    """Stop the services; --remove takes everything away.

    The power daemons are stopped last: they restore the boards' original power modes.
    """
    from experiments.cli import fleet_playbook as command
    from experiments.cli.fleet_options import build_options

    options = build_options(inventory, playbooks, limit)
    if remove:
        _exit_with(command.remove_fleet(options, _ask_confirmation if not yes else lambda _question: True))
    else:
        _exit_with(command.run_plain_playbook("down", "down.yml", options))


def _ask_confirmation(question: str) -> bool:
    """Return the user's answer to a question; False without a terminal."""
    from fedge.errors import BadInput

    if not sys.stdin.isatty():
        raise BadInput("--remove", "no terminal to ask at", "--yes beside it: keys and the database go, runs stay")
    return typer.confirm(question)


def _exit_with(code: int) -> None:
    """End the command with an exit code."""
    if code:
        raise typer.Exit(code)


@fleet.command("proxy")
def proxy(
    *,
    keys: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the server keeps server.crt, server.key and ca.crt.")
    ] = Path("/etc/fedge/tls"),
    listen: Annotated[
        list[str] | None, typer.Option(metavar="ADDRESS", help="Where boards come in; every IPv4 address by default.")
    ] = None,
    port: Annotated[int, typer.Option(help="The boards' port.")] = 9443,
    superlink_port: Annotated[int, typer.Option(help="The SuperLink's port on loopback.")] = 8000,
    management: Annotated[
        list[str] | None,
        typer.Option(metavar="CIDR", help="A network that may start, stop and list runs; none by default."),
    ] = None,
    management_port: Annotated[int, typer.Option(help="The port for that network.")] = 9444,
    telemetry: Annotated[
        Path | None,
        typer.Option(metavar="SOCKET", help="Where the board service receives telemetry; by default it does not."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Written instead of printed.")] = None,
) -> None:
    """Print the nginx configuration between boards and the SuperLink.

    It passes boards only what boards may ask of a SuperLink on loopback.
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
        )
    )
    _print_or_write(text, out)


@fleet.command("firewall")
def firewall(
    account: Annotated[
        list[str], typer.Option(metavar="NAME", help="An account that may reach the SuperLink; may be repeated.")
    ],
    superlink_port: Annotated[int, typer.Option(help="The SuperLink's port on loopback.")] = 8000,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Written instead of printed.")] = None,
) -> None:
    """Print the nftables rules between the server's accounts and runs.

    They keep every other account of the server from starting, stopping and listing runs.
    """
    from experiments.fleet.firewall import build_firewall_rules

    _print_or_write(build_firewall_rules(account, superlink_port), out)


def _print_or_write(text: str, out: Path | None) -> None:
    """Print a configuration, or write it to a new file or over an earlier one of its own kind."""
    from experiments.cli.command_output import check_output
    from fedge.errors import BadInput

    if out is None:
        typer.echo(text, nl=False)
        return
    check_output("--out", out, text.partition(";")[0])
    made = out.with_name(f".{out.name}.new")
    try:
        made.write_text(text, encoding="utf-8")
        made.replace(out)
    except OSError as error:
        raise BadInput("--out", f"{out} ({error.strerror})", "a file that you may write") from error
    finally:
        made.unlink(missing_ok=True)

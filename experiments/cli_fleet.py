"""``fedge fleet``: a fleet of real boards from bare boards to a run, its keys, its proxy, its firewall."""

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
    typer.Option(metavar="FILE", help="The fleet's inventory; $FEDGE_INVENTORY or inventory.yml beside the playbooks."),
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
    from experiments.fleet import keys as command
    from experiments.fleet.certificates import SERVER_DAYS
    from fedge.errors import BadInput

    if check and (renew or host or days):
        raise BadInput("--check", "other options beside it", "--check alone: it changes nothing")
    now = datetime.now(UTC)
    if check:
        found = command.inspect(out)
    else:
        found = (command.renew if renew else command.make)(out, host or [], now, days or SERVER_DAYS)
    typer.echo(f"{found.folder}: {found}")
    ending = command.expiring(found, now)
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
    from experiments.commands import fleet_playbook as command

    _end(command.provision(command.fleet_of(inventory, playbooks, limit), check))


@fleet.command("up")
def up(inventory: Inventory = None, playbooks: Playbooks = None, limit: Limit = None) -> None:
    """Start the services of the server, then those of the boards."""
    from experiments.commands import fleet_playbook as command

    _end(command.simple("up", "up.yml", command.fleet_of(inventory, playbooks, limit)))


@fleet.command("status")
def status(
    out: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="The same, for a program to read.")] = None,
    inventory: Inventory = None,
    playbooks: Playbooks = None,
    limit: Limit = None,
) -> None:
    """What each board has and does, and what to do about what is wrong.

    Exit code 1 when anything is.
    """
    from rich.console import Console

    from experiments.commands import fleet_playbook as command
    from experiments.commands.fleet_status import fleet_status

    call, log = command.asking("status", "status.yml", command.fleet_of(inventory, playbooks, limit))
    _end(0 if fleet_status(Console(), call, log, out) else 1)


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
    from experiments.commands import fleet_run
    from experiments.commands.fleet_playbook import fleet_of

    _end(fleet_run.run(config, override or [], out, fleet_of(inventory, playbooks, None)))


@fleet.command("logs")
def logs(
    out: Annotated[Path, typer.Option(metavar="DIR", help="A folder; each board gets one in it.")] = Path("collected"),
    since: Annotated[
        str | None, typer.Option(metavar="TEXT", help='How far back, such as "2 hours ago"; one day by default.')
    ] = None,
    inventory: Inventory = None,
    playbooks: Playbooks = None,
    limit: Limit = None,
) -> None:
    """Fetch the boards' logs and traces."""
    from experiments.commands import fleet_playbook as command

    _end(command.logs(command.fleet_of(inventory, playbooks, limit), out, since))


@fleet.command("upgrade")
def upgrade(inventory: Inventory = None, playbooks: Playbooks = None, limit: Limit = None) -> None:
    """Provision the boards again, one after the other.

    The first that fails ends it.
    """
    from experiments.commands import fleet_playbook as command

    _end(command.simple("upgrade", "upgrade.yml", command.fleet_of(inventory, playbooks, limit)))


@fleet.command("down")
def down(
    *,
    remove: Annotated[
        bool, typer.Option("--remove", help="Take everything away too: keys, runs and the SuperLink's database.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without a question.")] = False,
    inventory: Inventory = None,
    playbooks: Playbooks = None,
    limit: Limit = None,
) -> None:
    """Stop the services; --remove takes everything away.

    The power daemons are stopped last: they put the boards' own power state back.
    """
    from experiments.commands import fleet_playbook as command

    found = command.fleet_of(inventory, playbooks, limit)
    if not remove:
        _end(command.simple("down", "down.yml", found))
        return
    _ask_removal(found.inventory, limit, yes=yes)
    _end(command.simple("remove", "remove.yml", found))


def _ask_removal(inventory: Path, limit: str | None, *, yes: bool) -> None:
    """Go on only with a person's yes; without a person, with --yes alone."""
    from fedge.errors import BadInput

    if yes:
        return
    if not sys.stdin.isatty():
        raise BadInput("--remove", "no terminal to ask at", "--yes beside it: keys, runs and the database go")
    whom = f"{limit} of {inventory}" if limit else f"every host of {inventory}"
    text = f"Remove fedge from {whom}? On the server the runs and the SuperLink's database go too."
    typer.confirm(text, abort=True)


def _end(code: int) -> None:
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
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Written instead of printed.")] = None,
) -> None:
    """The nginx configuration between boards and the SuperLink.

    It passes boards only what boards may ask of a SuperLink on loopback.
    """
    from experiments.fleet.proxy import EVERYWHERE, Proxy, configuration

    addresses = tuple(listen) if listen else EVERYWHERE
    networks = tuple(management or ())
    text = configuration(Proxy(keys, superlink_port, port, addresses, networks, management_port))
    _put(text, out)


@fleet.command("firewall")
def firewall(
    account: Annotated[
        list[str], typer.Option(metavar="NAME", help="An account that may reach the SuperLink; may be repeated.")
    ],
    superlink_port: Annotated[int, typer.Option(help="The SuperLink's port on loopback.")] = 8000,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Written instead of printed.")] = None,
) -> None:
    """The nftables rules between the server's accounts and runs.

    They keep every other account of the server from starting, stopping and listing runs.
    """
    from experiments.fleet.loopback import rules

    _put(rules(account, superlink_port), out)


def _put(text: str, out: Path | None) -> None:
    """Print a configuration, or write it over an earlier one of its own kind."""
    from experiments.commands.outputs import check_output
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

"""``fedge fleet``: the keys of a fleet of real boards, the proxy before its SuperLink, the firewall around it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

fleet = typer.Typer(help="A fleet of real boards: keys, proxy, firewall.", no_args_is_help=True, rich_markup_mode=None)


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
    """Make a CA and the server's certificate, or renew the latter; a CA that is there is never overwritten."""
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
    """The nginx configuration that passes boards only what boards may ask of a SuperLink on loopback."""
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
    """The nftables rules that keep every other account of the server from starting, stopping and listing runs."""
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

"""Protection of a SuperLink: nginx passes on the Fleet API only, a firewall rule names who may command it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedge.errors import BadInput

FLEET_PORT = 9443
"""Default port that boards connect to, the only public one of the server."""
CONTROL_PORT = 9444
"""Default port for control commands from a management network, if there is one."""
SUPERLINK_PORT = 8000
"""Flower's default."""
LARGEST_BODY_MB = 2048
"""Flower's limit on the size of one message."""
LARGEST_TELEMETRY_MB = 1
"""Limit on a telemetry request. A board's batch of samples takes a few kilobytes, so this rejects only misuse."""
SAFE_PATH = re.compile(r"/[A-Za-z0-9._/+-]*")
ALL_ADDRESSES = ("0.0.0.0",)  # noqa: S104  boards come from anywhere; what they may ask for is what is limited

FIRST_LINE = "# Made by `fedge fleet proxy`"
HEAD = """\
{starts}; written again rather than edited.
# Boards talk to this port: TLS ends here, and only what boards ask a SuperLink for is passed on. Flower serves the
# commands that start, stop and list runs beside it, without any account, so they are not passed to boards.
upstream fedge_superlink {{
    server 127.0.0.1:{superlink_port};
}}
"""

# Maps the certificate's subject to the board's name; a subject with anything but one board's name maps to none.
BOARDS = """\
map $ssl_client_s_dn $fedge_board {{
    default "";
    "~^CN=(?<fedge_board_name>[A-Za-z0-9][A-Za-z0-9._-]*)$" $fedge_board_name;
}}
upstream fedge_telemetry {{
    server unix:{socket};
}}
"""

FLEET = """
server {{
{listen}
    server_name _;
{tls}{clients}
    client_max_body_size {body_mb}m;
    location /v1/fleet/ {{
{upstream}
        proxy_pass https://fedge_superlink/v1/fleet/;
    }}
    location = /health {{
{upstream}
        proxy_pass https://fedge_superlink/health;
    }}
{telemetry}    location / {{
        return 403 "Refused: this port is for boards. Start, stop and list runs on the server itself.\\n";
    }}
}}
"""

# Boards present a certificate of the fleet's CA when they send telemetry; SuperNodes present none. A certificate of
# another CA, or a revoked one, is refused for any path with status 403, on which a board keeps its samples until its
# certificate is renewed, whereas 400 would mean that the message itself is wrong.
CLIENTS = """
    ssl_client_certificate {ca};
    ssl_verify_client optional;
    ssl_verify_depth 1;{revocations}
    error_page 495 =403 @stranger;
    location @stranger {{
        return 403 "Refused: this certificate is not by the fleet's CA, has ended, or is revoked.\\n";
    }}"""

# The board's name comes from its certificate and replaces any header that the sender set.
TELEMETRY = """\
    location = /telemetry {{
        if ($ssl_client_verify != SUCCESS) {{
            return 403 "Refused: a board shows its certificate here.\\n";
        }}
        if ($fedge_board = "") {{
            return 403 "Refused: this certificate is not that of a board.\\n";
        }}
        client_max_body_size {telemetry_mb}m;
        client_body_timeout 10s;
        proxy_http_version 1.1;
        proxy_pass_request_headers off;
        proxy_set_header Host localhost;
        proxy_set_header Connection "";
        proxy_set_header Content-Type $content_type;
        proxy_set_header Content-Encoding $http_content_encoding;
        proxy_set_header X-Fedge-Board $fedge_board;
        proxy_read_timeout 10s;
        proxy_pass http://fedge_telemetry/telemetry;
    }}
"""

CONTROL = """
# The management network: whoever is in it may run any code on every board.
server {{
{listen}
    server_name _;
{tls}
    client_max_body_size {body_mb}m;
    error_page 403 = @refused;
    location /v1/control/ {{
{allow}
        deny all;
{upstream}
        proxy_pass https://fedge_superlink/v1/control/;
        proxy_buffering off;
        proxy_read_timeout 1d;
    }}
    location / {{
        return 403;
    }}
    location @refused {{
        return 403 "Refused: this port is for the commands of Flower from {networks}.\\n";
    }}
}}
"""

TLS = """\
    ssl_certificate {certificate};
    ssl_certificate_key {key};
    ssl_protocols TLSv1.2 TLSv1.3;
    ssl_session_tickets off;
    server_tokens off;
    default_type text/plain;
    error_page 497 =400 @plain;
    location @plain {{
        return 400 "Refused: plain text. Use https with the fleet's CA.\\n";
    }}"""

# With a path in proxy_pass, nginx forwards the normalised path that it has matched instead of the raw one, so both
# sides see the same path. The SuperLink must present the fleet's certificate, too: another account of the server that
# takes its port while it is down receives nothing.
UPSTREAM = """\
        proxy_http_version 1.1;
        proxy_ssl_trusted_certificate {ca};
        proxy_ssl_verify on;
        proxy_ssl_name localhost;
        proxy_ssl_protocols TLSv1.2 TLSv1.3;"""


@dataclass(frozen=True, slots=True)
class NginxProxy:
    """Settings of the proxy in front of a SuperLink that listens on loopback.

    Attributes:
        control_port: Port for control commands from ``management``.
    """

    keys: Path
    superlink_port: int = SUPERLINK_PORT
    fleet_port: int = FLEET_PORT
    addresses: tuple[str, ...] = ALL_ADDRESSES
    """Addresses that nginx listens on."""
    management: tuple[str, ...] = ()
    """Networks (CIDR) that may send control commands; if empty, only the server itself may."""
    control_port: int = CONTROL_PORT
    revocations: Path | None = None
    """The CA's list of revoked certificates of boards; None refuses none before its end."""
    telemetry: Path | None = None
    """Socket that accepts the boards' telemetry; None disables telemetry."""


def build_configuration(proxy: NginxProxy) -> str:
    """Return the text of a file for /etc/nginx/conf.d/.

    Raises:
        BadInput: If a port, address or network is invalid or contradicts another.
    """
    _check_proxy(proxy)
    tls = TLS.format(certificate=proxy.keys / "server.crt", key=proxy.keys / "server.key")
    upstream = UPSTREAM.format(ca=proxy.keys / "ca.crt")
    common = {"tls": tls, "upstream": upstream, "body_mb": LARGEST_BODY_MB}
    text = HEAD.format(starts=FIRST_LINE, superlink_port=proxy.superlink_port)
    clients, telemetry = "", ""
    if proxy.telemetry is not None:
        text += BOARDS.format(socket=proxy.telemetry)
        revocations = f"\n    ssl_crl {proxy.revocations};" if proxy.revocations is not None else ""
        clients = CLIENTS.format(ca=proxy.keys / "ca.crt", revocations=revocations)
        telemetry = TELEMETRY.format(telemetry_mb=LARGEST_TELEMETRY_MB)
    listen = _listen_lines(proxy.addresses, proxy.fleet_port)
    text += FLEET.format(listen=listen, clients=clients, telemetry=telemetry, **common)
    if proxy.management:
        networks = [str(parse_network(network)) for network in proxy.management]
        allow = "\n".join(f"        allow {network};" for network in networks)
        listen = _listen_lines(proxy.addresses, proxy.control_port)
        text += CONTROL.format(listen=listen, allow=allow, networks=", ".join(networks), **common)
    return text


def parse_network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """Parse a network in CIDR notation.

    Raises:
        BadInput: If the text is not a network, or is the whole address space.
    """
    right = "a network such as 10.20.0.0/24, without host bits; everybody in it may run code on every board"
    try:
        network = ipaddress.ip_network(_refuse_scope(text))
    except ValueError as error:
        raise BadInput("--management", repr(text), right) from error
    if network.prefixlen == 0:
        raise BadInput("--management", f"{text}, which is everybody", right)
    return network


def _check_proxy(proxy: NginxProxy) -> None:
    paths = {"--keys": proxy.keys, "--telemetry": proxy.telemetry, "--revocations": proxy.revocations}
    for option, path in paths.items():
        if path is not None and not SAFE_PATH.fullmatch(str(path)):
            right = "an absolute path of letters, digits and ._+-, as nginx reads it"
            raise BadInput(option, repr(str(path)), right)
    ports = [proxy.superlink_port, proxy.fleet_port, *([proxy.control_port] if proxy.management else [])]
    wrong = [port for port in ports if not 0 < port < 65536]
    if wrong or len(set(ports)) < len(ports):
        got = ", ".join(str(port) for port in ports)
        raise BadInput("ports", got, "different ports from 1 to 65535 for the SuperLink, the boards and management")


def _listen_lines(addresses: Sequence[str], port: int) -> str:
    return "\n".join(f"    listen {_format_address(address)}:{port} ssl;" for address in addresses)


def _refuse_scope(text: str) -> str:
    """Return the text; raises ``ValueError`` for an IPv6 scope, which may be any text and which nginx does not read."""
    if "%" in text:
        raise ValueError(text)
    return text


def _format_address(text: str) -> str:
    try:
        address = ipaddress.ip_address(_refuse_scope(text))
    except ValueError as error:
        raise BadInput("--listen", repr(text), "an address of this server, such as 192.168.1.10") from error
    return f"[{address}]" if address.version == 6 else str(address)


ACCOUNT = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
FIREWALL_FIRST_LINE = "# Made by `fedge fleet firewall`"
FIREWALL_RULES = """\
{starts}; written again rather than edited.
# The SuperLink takes commands from whoever reaches its port. On this machine that is: {names}.
table inet fedge_control
delete table inet fedge_control
table inet fedge_control {{
    chain output {{
        type filter hook output priority filter; policy accept;
        oif "lo" tcp dport {port} meta skuid != {{ {accounts} }} reject with tcp reset
    }}
}}
"""


def build_firewall_rules(accounts: Sequence[str], port: int) -> str:
    """Build the nftables rules; loading them again replaces the earlier ones.

    Args:
        accounts: User accounts that may connect: the SuperLink's (its ServerApps), nginx's (Debian: www-data) and those
            of users who may start runs.
        port: The SuperLink's port on loopback.

    Raises:
        BadInput: If a name is not a valid account name.
    """
    for account in accounts:
        if not ACCOUNT.fullmatch(account):
            raise BadInput("--account", repr(account), "the name of an account of this machine")
    if not 0 < port < 65536:
        raise BadInput("--superlink-port", str(port), "a port from 1 to 65535")
    allowed = dict.fromkeys(("root", *accounts))
    quoted = ", ".join(f'"{name}"' for name in allowed)
    return FIREWALL_RULES.format(starts=FIREWALL_FIRST_LINE, names=", ".join(allowed), accounts=quoted, port=port)

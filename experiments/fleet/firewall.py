"""Firewall rule that lets only named accounts of the server reach the SuperLink, whose control API has no login."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedge.errors import BadInput

ACCOUNT = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
FIRST_LINE = "# Made by `fedge fleet firewall`"
TEXT = """\
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
    return TEXT.format(starts=FIRST_LINE, names=", ".join(allowed), accounts=quoted, port=port)

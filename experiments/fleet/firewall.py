"""The firewall rule that lets only named accounts of the server reach the SuperLink, whose commands ask for none."""

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
    """The rules for nftables; loading them again replaces them. Raises ``BadInput`` for what is no account's name.

    The accounts are those of the SuperLink (its ServerApps), of nginx (Debian: www-data) and of who may start runs.
    """
    for account in accounts:
        if not ACCOUNT.fullmatch(account):
            raise BadInput("--account", repr(account), "the name of an account of this machine")
    if not 0 < port < 65536:
        raise BadInput("--superlink-port", str(port), "a port from 1 to 65535")
    allowed = dict.fromkeys(("root", *accounts))
    quoted = ", ".join(f'"{name}"' for name in allowed)
    return TEXT.format(starts=FIRST_LINE, names=", ".join(allowed), accounts=quoted, port=port)

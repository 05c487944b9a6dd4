"""One bridge per test fleet, and per host a network namespace with one link to it; nothing leads further."""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from dataclasses import dataclass

HERE = 254
"""The last number of this machine's own address on the bridge."""


@dataclass(frozen=True, slots=True)
class Net:
    """The network of the fleet with this number: 10.99.NUMBER.0/24."""

    number: int

    @property
    def bridge(self) -> str:
        return f"ff{self.number}"

    def address(self, host: int) -> str:
        return f"10.99.{self.number}.{host}"

    def namespace(self, host: int) -> str:
        return f"ff{self.number}-{host}"

    def link(self, host: int) -> str:
        """The end of the host's link that is at the bridge; the other is its ``eth0``."""
        return f"ff{self.number}-{host}"

    # ------------------------------------------------------------------------------------------------------ all of it
    def make(self) -> None:
        ip("link", "add", self.bridge, "type", "bridge")
        ip("address", "add", f"{self.address(HERE)}/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")

    def clean(self) -> None:
        """Take away whatever this fleet, or an earlier one of this number, has left."""
        for name in _named("netns", "list"):
            if name.startswith(f"{self.bridge}-"):
                ip("netns", "delete", name)
        for name in _named("link", "show"):
            if name.startswith(f"{self.bridge}-"):
                with suppress(RuntimeError):  # it may be going with its namespace at this moment
                    ip("link", "delete", name)
        if self.bridge in _named("link", "show"):
            ip("link", "delete", self.bridge)

    def join(self, host: int) -> None:
        """A namespace with one link to the bridge, up."""
        space, link = self.namespace(host), self.link(host)
        ip("netns", "add", space)
        ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
        ip("link", "set", link, "master", self.bridge, "up")
        ip("-n", space, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
        for name in ("lo", "eth0"):
            ip("-n", space, "link", "set", name, "up")

    # ------------------------------------------------------------------------------------------------------- one link
    def cut(self, host: int) -> None:
        ip("link", "set", self.link(host), "down")

    def mend(self, host: int) -> None:
        ip("link", "set", self.link(host), "up")

    def shape(self, host: int, rate: str | None) -> None:
        """Both ways at ``rate``, as tc writes it (``1mbit``); None: as fast as it goes."""
        places = [[f"dev {self.link(host)}"], [f"-n {self.namespace(host)}", "dev eth0"]]
        for place in places:
            options, device = (place[0].split(), place[1]) if len(place) > 1 else ([], place[0])
            have = subprocess.run(["tc", *options, "qdisc", "show", *device.split()], capture_output=True, check=True)
            if rate is not None:
                bucket = ["root", "tbf", "rate", rate, "burst", "32kbit", "latency", "400ms"]
                subprocess.run(["tc", *options, "qdisc", "replace", *device.split(), *bucket], check=True)
            elif b"tbf" in have.stdout:
                subprocess.run(["tc", *options, "qdisc", "delete", *device.split(), "root"], check=True)


def ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def _named(*words: str) -> list[str]:
    told = ip("-j", *words)
    found = json.loads(told) if told.strip() else []
    return [entry.get("ifname") or entry["name"] for entry in found if entry]

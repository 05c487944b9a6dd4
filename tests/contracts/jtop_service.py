"""Runs the jtop service of an unpacked jetson-stats on a recorded tree.

    python jtop_service.py PACKAGE SOCKET TREE

The service's own code reads the chips, serves the socket and keeps time. Replaced are the paths of the power chips, of
its settings and of its socket, its group of users, and the description of the hardware, which needs a Jetson or a PC.
"""

import os
import sys
from types import SimpleNamespace

if __name__ == "__main__":
    package, socket, tree = sys.argv[1:4]
    sys.path.insert(0, package)
    from jtop import service
    from jtop.core import config, power

    find_chips = power.find_all_i2c_power_monitor
    power.find_all_i2c_power_monitor = lambda path: find_chips(tree + path)
    config.get_config_service = lambda *_, **__: f"{tree}/jtop"
    service.JTOP_PIPE = socket
    service.getgrnam = lambda _: SimpleNamespace(gr_gid=os.getgid())
    service.get_hardware = dict
    service.JtopServer(force=True).loop_for_ever()

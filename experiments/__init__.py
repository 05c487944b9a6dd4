"""The launcher: experiments in YAML, their backends, reports, and the ``fedge`` command."""

from fedge.import_path import load_package

# A user's own server.py or clients.py in the working directory would be found instead.
for _name in ("clients", "server"):
    load_package(_name)

"""The launcher: experiments in YAML, backends, reports, and the ``fedge`` command."""

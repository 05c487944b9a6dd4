"""The launcher: experiments in YAML, their backends, reports, and the ``fedge`` command."""

"""Adds the playbooks to the wheel: pyproject.toml cannot give a package another folder than its own."""

from setuptools import setup
from setuptools.command.build_py import build_py

PLAYBOOKS = "fedge_playbooks"
"""Beside the programs, which the playbooks send to hosts, as ``ansible/`` is in a checkout."""


class BuildWithPlaybooks(build_py):
    """Treat ``ansible/`` as the package ``fedge_playbooks``, in a wheel, a source archive and an editable install."""

    def finalize_options(self) -> None:
        """Name the folder; commands share the distribution, so it may be named already."""
        self.distribution.package_dir = {PLAYBOOKS: "ansible"}
        self.distribution.packages = sorted({*self.distribution.packages, PLAYBOOKS})
        super().finalize_options()


setup(cmdclass={"build_py": BuildWithPlaybooks})

"""The packages of the wheel: pyproject.toml cannot name a folder other than its package, as the playbooks need it."""

from setuptools import find_namespace_packages, setup

PROGRAMS = ("fedge", "clients", "server", "experiments")

setup(
    packages=[
        *find_namespace_packages(include=[pattern for name in PROGRAMS for pattern in (name, f"{name}.*")]),
        "fedge_playbooks",
    ],
    # Beside the programs, which the playbooks send to hosts, as in a checkout.
    package_dir={"fedge_playbooks": "ansible"},
)

"""A sweep of a fake rig, as the suite of faults starts it in a process of its own."""

from pathlib import Path

from characterised.fake import FakeRig, fake_plan

from fedge.characterisation.sweep_plan import CharacterisationPlan
from fedge.characterisation.sweep_run import SweepRun
from fedge.characterisation.sweep_store import open_journal


def swept_plan() -> CharacterisationPlan:
    """The plan of the sweep."""
    return fake_plan(workers=(0, 1, 2, 4), batches=(4, 8, 16))


def sweep(out: str, log: str) -> None:
    """Measure what is left; every point measured is a line of ``log``."""
    plan, rig = swept_plan(), FakeRig(Path(log), seconds=0.01)
    with open_journal(Path(out)) as journal:
        journal.begin(plan, {"fake-1": rig.software})
        campaign = SweepRun(plan, {"fake-1": rig}, journal)
        while campaign.remaining_points:
            campaign.run_next()

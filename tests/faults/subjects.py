"""The processes that faults befall, by name."""

from __future__ import annotations

from faults.board_subjects import DISTURBED, open_powerd, open_trainer, open_worker
from faults.fault_points import KILL, MESSAGES, STOP, TERMINATE, FaultSubject
from faults.fleet_subjects import FLEET_FAULTS, open_fleet
from faults.run_subjects import (
    DISKS,
    LOCAL_FAULTS,
    SIM_FAULTS,
    WORKERS_FAULTS,
    can_mount,
    open_local,
    open_local_workers,
    open_sim,
)
from faults.server_subjects import open_ingest, open_page
from faults.study_subjects import (
    SIGNALLED,
    WRITERS,
    open_characterisation,
    open_profile,
    open_store,
    open_sweep,
)

SUBJECTS = {
    "store": FaultSubject(open_store, WRITERS),
    "characterise": FaultSubject(open_characterisation, (KILL,)),
    "profile": FaultSubject(open_profile, SIGNALLED),
    "powerd": FaultSubject(open_powerd, DISTURBED),
    "ingest": FaultSubject(open_ingest, (KILL, MESSAGES, STOP, TERMINATE)),
    "local": FaultSubject(open_local, (*LOCAL_FAULTS, *(DISKS if can_mount() else ()))),
    "local workers": FaultSubject(open_local_workers, WORKERS_FAULTS),
    "sim": FaultSubject(open_sim, SIM_FAULTS),
    "fleet": FaultSubject(open_fleet, FLEET_FAULTS),
    "page": FaultSubject(open_page, DISTURBED),
    "sweep": FaultSubject(open_sweep, SIGNALLED),
    "trainer": FaultSubject(open_trainer, DISTURBED),
    "worker": FaultSubject(open_worker, DISTURBED),
}

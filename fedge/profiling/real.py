"""A real board on the bench: its device, the work of its trainer, its thermometer, and what is known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedge import __version__
from fedge.clock import RealClock
from fedge.costs.priors import priors_for
from fedge.costs.workloads import load_workloads
from fedge.devices.catalogue import load_catalogue
from fedge.errors import BadInput
from fedge.interfaces import Clock, Device
from fedge.modes import grid
from fedge.physics.knowledge import Knowledge
from fedge.profiling.bench import Bench
from fedge.rounds.candidates import above_floor
from fedge.types import Modes, Workload


def board_bench(
    device: Device,
    workload: Workload,
    work: Callable[[int], object],
    temperature_c: Callable[[], float | None],
    *,
    prepare: Callable[[], object] = lambda: None,
    clock: Clock | None = None,
    candidates: Modes | None = None,
    seed: int = 0,
    software: Mapping[str, str] | None = None,
) -> Bench:
    """The bench of ``device``, whose trainer does ``count`` minibatches of ``workload`` at every ``work(count)``;
    ``prepare`` gets it ready.

    ``candidates`` are the modes that the board's power daemon allows, by default those above the usual floor.
    ``software`` names what else the figures depend on (torch, L4T): a campaign goes on only with the same.
    """
    chosen = candidates
    if chosen is None:
        every = grid(device.spec)
        chosen = Modes(every.knobs[above_floor(every)])
    pause = clock or RealClock()
    priors = priors_for(device.spec, workload.name, load_catalogue(), batch_size=workload.batch_size, layered=False)
    return Bench(
        board=device.spec.name,
        device=device,
        workload=workload,
        work=work,
        rest=pause.sleep_s,
        temperature_c=temperature_c,
        clock=pause,
        candidates=chosen,
        knowledge=Knowledge(device.spec.maxn, tuple(prior.coefficients for prior in priors), seed=seed),
        label="measured",
        source=f"measured on a {device.spec.title}",
        total_power=getattr(device, "total_power", device.spec.total_power),
        emulated=False,
        software={"fedge": __version__, **(software or {})},
        prepare=prepare,
    )


def workload_of(name: str, batch_size: int | None) -> Workload:
    """A workload at ``batch_size``, by default its own; raises ``BadInput`` for one of unknown size without it."""
    known = load_workloads().get(name)
    if batch_size is not None:
        if batch_size < 1:
            raise BadInput("--batch-size", str(batch_size), "a whole number above 0")
        return Workload(name, batch_size)
    if known is None:
        raise BadInput("--batch-size", "nothing", f"samples per minibatch: the one of {name!r} is not known")
    return Workload(name, known.batch_size)

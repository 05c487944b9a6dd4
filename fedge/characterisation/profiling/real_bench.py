"""A real board under profiling: its device, the work of its trainer, its temperature and prior knowledge."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedge import __version__
from fedge.characterisation.profiling.profiling_bench import ProfilingBench
from fedge.clock import RealClock
from fedge.costs.cost_priors import build_priors
from fedge.costs.workload_sizes import load_workload_sizes
from fedge.decisions.candidate_modes import mask_above_floor
from fedge.devices.catalogue import load_catalogue
from fedge.errors import BadInput
from fedge.modes import build_grid
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.protocols import Clock, Device
from fedge.types import Modes, Workload


def build_real_bench(
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
) -> ProfilingBench:
    """Build the bench of a real board.

    Args:
        device: The board.
        workload: Work of one step.
        work: Runs the next ``count`` steps.
        temperature_c: Reads the hottest sensor in degrees Celsius; None without one.
        prepare: Called before a mode is set, for work that must not be measured.
        clock: Clock of the campaign; the machine's by default.
        candidates: Modes that the power daemon allows; None for those above the usual floor.
        seed: Seed of random choices.
        software: Further versions that the figures depend on (torch, L4T).
    """
    chosen = candidates
    if chosen is None:
        every = build_grid(device.spec)
        chosen = Modes(every.knobs[mask_above_floor(every)])
    pause = clock or RealClock()
    priors = build_priors(device.spec, workload.name, load_catalogue(), batch_size=workload.batch_size, layered=False)
    return ProfilingBench(
        board=device.spec.name,
        device=device,
        workload=workload,
        work=work,
        idle_for=pause.sleep_s,
        temperature_c=temperature_c,
        clock=pause,
        candidates=chosen,
        knowledge=PriorKnowledge(device.spec.maxn, tuple(prior.coefficients for prior in priors), seed=seed),
        label="measured",
        source=f"measured on a {device.spec.title}",
        total_power=getattr(device, "total_power", device.spec.total_power),
        emulated=False,
        software={"fedge": __version__, **(software or {})},
        prepare=prepare,
    )


def resolve_workload(name: str, batch_size: int | None) -> Workload:
    """Return a workload at ``batch_size``, by default at its own.

    Raises:
        BadInput: If the batch size is not positive, or is not given and unknown.
    """
    known = load_workload_sizes().get(name)
    if batch_size is not None:
        if batch_size < 1:
            raise BadInput("--batch-size", str(batch_size), "a whole number above 0")
        return Workload(name, batch_size)
    if known is None:
        raise BadInput("--batch-size", "nothing", f"samples per minibatch: the one of {name!r} is not known")
    return Workload(name, known.batch_size)

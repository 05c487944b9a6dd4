"""What of a run is emulated, measured and trained, in words."""

from __future__ import annotations

from markupsafe import Markup

from experiments.report.run.loaded_runs import LoadedRun

MEASURED_TEXT = Markup(
    "<b>{}:</b> the time, power and temperature of their work. <b>Emulated:</b> their network, from the experiment's "
    "<code>link</code>, and their energy while they wait, from their idle power. <b>Trained:</b> {}, by every board on "
    "its own samples. <b>Predicted as:</b> {}, batch {}."
)
EMULATED_TEXT = Markup(
    "<b>Emulated:</b> time, power, temperature and network of the boards, in simulated time; every step costs as much "
    "as a step of {}, batch {}. <b>Trained:</b> {}, by every client on its own partition; accuracy is that of the "
    "aggregated model."
)


def describe_emulation(run: LoadedRun) -> Markup:
    """Describe what of a run is emulated, measured and trained."""
    work = run.experiment.workload
    if run.experiment.backend != "fleet":
        return EMULATED_TEXT.format(work.cost, work.batch_size, work.task)
    truths = {label.get("truth", {}).get("label") for label in run.labels.values()}
    some = "Reported by boards, of which some replay recorded folders and measure nothing"
    origin = "Measured by the boards themselves" if truths <= {"measured"} else some
    return MEASURED_TEXT.format(origin, work.task, work.cost, work.batch_size)

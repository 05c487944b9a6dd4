"""Summary of a run: energy, savings, prediction errors, outcomes, inference services and reduced memory settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from experiments.report.quantities import mean, median
from fedge.atomic_files import write_text
from fedge.errors import BadInput
from fedge.experiment import Experiment, is_bit_reproducible
from fedge.telemetry import run_folder
from fedge.telemetry.savings import compute_saving, select_comparable, sum_known
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import RECORDED, ClientRow, EventRow, RoundRow, relative_error

LabelsByEntry = dict[str, dict[str, Any]]
"""By fleet entry (in older runs, by device), the labels ``truth`` and ``prior``, each with ``label`` and ``source``."""
MEMORY_NOTE_HEADER = "# Boards that reduced batch size or width to fit into memory, up to the last finished round:"


def find_labels(experiment: Experiment, folder: Path) -> LabelsByEntry:
    """Return the provenance of the boards' figures, of a finished run as it was then; empty if a file has gone."""
    with suppress(BadInput):
        stored: LabelsByEntry = run_folder.read_summary(folder)["labels"]
        if stored:
            return stored
    with suppress(BadInput):
        return label_boards(experiment, folder)
    return {}


def label_boards(experiment: Experiment, folder: Path) -> LabelsByEntry:
    """Return per fleet entry the provenance of the boards' figures, as ``build_labels`` does.

    Raises:
        BadInput: A file of the experiment has gone or changed.
    """
    from experiments.spec.experiment_checks import build_labels

    recorded = {row.board for row in read_rows(folder, EventRow) if row.kind == RECORDED and row.board}
    return build_labels(experiment, recorded, run_folder.read_summary(folder).get("real_boards", ()))


def collect_lowered(clients: Sequence[ClientRow]) -> dict[str, Any]:
    """Return per board its last reduced settings or out-of-memory failure; empty if there were none."""
    lowered = {row.board: row for row in clients if row.lowered}
    failures = sum(row.out_of_memory or 0 for row in clients)
    failures += sum(row.status == "failed" and "out of memory" in (row.error or "") for row in clients)
    if not lowered and not failures:
        return {}
    fields = {
        **{name: name for name in ("round", "batch_size", "width")},
        "predicted_mb": "predicted_memory_mb",
        "limit_mb": "memory_limit_mb",
        "peak_mb": "memory_mb",
        "why": "lowered",
    }
    return {
        "lowered": {
            board: {name: getattr(row, field) for name, field in fields.items()} for board, row in lowered.items()
        },
        "left_out": {row.board: {"round": row.round, "why": row.error} for row in find_left_out(clients)},
        "out_of_memory": failures,
        "out_of_memory_lost_s": sum(row.lost_s or 0.0 for row in clients),
    }


def find_left_out(clients: Iterable[ClientRow]) -> list[ClientRow]:
    """Return, by board, the last rows of boards that are not asked again, since nothing fits into their memory."""
    last = {row.board: row for row in clients}
    return [row for _, row in sorted(last.items()) if row.left_out]


def write_memory_notes(folder: Path, summary: Mapping[str, Any]) -> None:
    """Replace the comments on reduced settings at the end of the run's YAML."""
    path = folder / run_folder.RUN_YAML
    text = path.read_text(encoding="utf-8")
    plain = text.partition(MEMORY_NOTE_HEADER)[0]
    lowered: Mapping[str, Any] = summary.get("lowered") or {}
    lines = [MEMORY_NOTE_HEADER] if lowered else []
    lines += [
        f"#   {board}, round {settings['round']}: {settings['why']}" for board, settings in sorted(lowered.items())
    ]
    new = plain + "".join(f"{line}\n" for line in lines)
    if new != text:
        write_text(path, new)


BUDGET_EVENT = "budget"
"""Kind of the event that the energy budget ended the run, stored with the number of the round that did not start."""


def find_budget_end(rounds: Sequence[RoundRow], events: Sequence[EventRow]) -> str | None:
    """Return the message with which the energy budget ended the run after ``rounds``, or None."""
    last = max((row.round for row in rounds), default=0)
    return next((event.message for event in events if event.kind == BUDGET_EVENT and event.round == last + 1), None)


def summarise_run(
    experiment: Experiment,
    rounds: Sequence[RoundRow],
    clients: Sequence[ClientRow],
    wall_s: float | None,
    events: Sequence[EventRow] = (),
) -> dict[str, Any]:
    """Compute the summary of a run.

    Returns:
        Values by name for ``summary.json``. Times other than ``wall_s`` are simulated; unknown values are None.
    """
    figures = {
        "name": experiment.name,
        "policy": experiment.policy.name,
        "backend": experiment.backend,
        "seed": experiment.seed,
        "bit_reproducible": is_bit_reproducible(experiment),
        "rounds": len(rounds),
        "ended": find_budget_end(rounds, events),
        "clients": len({row.board for row in clients}),
        "metric": experiment.workload.metric,
        "final_accuracy": rounds[-1].accuracy if rounds else None,
        "final_loss": rounds[-1].loss if rounds else None,
        "makespan_s": rounds[-1].end_s + (rounds[-1].evaluation_s or 0.0) if rounds else 0.0,
        "mean_round_s": sum(row.round_s for row in rounds) / max(1, len(rounds)),
    }
    return {
        **figures,
        **_energy_figures(experiment, rounds),
        **_signal_figures(experiment, rounds),
        **_prediction_errors(clients),
        **_outcome_counts(experiment, rounds, clients),
        **_evaluation_figures(rounds),
        **_service_figures(clients),
        **collect_lowered(clients),
        "wall_s": wall_s,
    }


def _energy_figures(experiment: Experiment, rounds: Sequence[RoundRow]) -> dict[str, Any]:
    """Return the energy spent, and that of the baselines for the same rounds."""
    compared, policy = select_comparable(rounds), experiment.policy.name
    maxn_s = sum_known([row.maxn_round_s for row in compared])
    energy_j, budget_j = sum(row.energy_j for row in rounds), experiment.policy.budget_j
    resting_j = sum(row.resting_energy_j or 0.0 for row in rounds)
    evaluation_j = sum(row.evaluation_energy_j or 0.0 for row in rounds)
    return {
        "energy_j": energy_j,
        "train_energy_j": sum(row.train_energy_j for row in rounds),
        "oracle_energy_j": sum_known([row.oracle_energy_j for row in rounds]),
        "maxn_energy_j": sum_known([row.maxn_energy_j for row in rounds]),
        "maxn_parked_energy_j": sum_known([row.maxn_parked_energy_j for row in rounds]),
        "maxn_mean_round_s": _mean_known([row.maxn_round_s for row in compared]),
        "round_vs_maxn": sum(row.round_s for row in compared) / maxn_s if maxn_s else None,
        "resting_energy_j": resting_j,
        "budget_j": budget_j,
        "budget_spent": None if budget_j is None else (energy_j + resting_j + evaluation_j) / budget_j,
        "compared_rounds": len(compared),
        "saving_vs_maxn": compute_saving(compared, policy, "maxn", "energy_j"),
        "saving_vs_maxn_parked": compute_saving(compared, policy, "maxn_parked", "energy_j"),
        "oracle_saving_vs_maxn": compute_saving(compared, policy, "maxn", "oracle_energy_j"),
        "oracle_saving_vs_maxn_parked": compute_saving(compared, policy, "maxn_parked", "oracle_energy_j"),
    }


def _signal_figures(experiment: Experiment, rounds: Sequence[RoundRow]) -> dict[str, Any]:
    """Return the cost of all energy under the experiment's signal; empty without one."""
    if experiment.signal is None:
        return {}
    return {"energy_cost": sum_known([row.energy_cost for row in rounds]), "energy_cost_unit": experiment.signal.unit}


def _prediction_errors(clients: Sequence[ClientRow]) -> dict[str, float | None]:
    """Return the boards' mean prediction errors before the first measurement and in the last round.

    ``mape``: over all modes, where the truth is known; ``ape``: |predicted - measured| / measured in the mode used
    """
    last = max((row.round for row in clients), default=0)
    rows = [row for row in clients if row.round == last]
    return {
        "prior_time_mape": mean(row.prior_time_ape for row in clients),
        "prior_power_mape": mean(row.prior_power_ape for row in clients),
        "last_time_mape": mean(row.time_ape for row in rows),
        "last_power_mape": mean(row.power_ape for row in rows),
        "last_time_ape": mean(relative_error(row.predicted_step_s, row.step_s) for row in rows),
        "last_power_ape": mean(relative_error(row.predicted_power_w, row.power_w) for row in rows),
    }


def _outcome_counts(experiment: Experiment, rounds: Sequence[RoundRow], clients: Sequence[ClientRow]) -> dict[str, Any]:
    """Count the outcomes of client rounds.

    ``late_lost``: late replies that were never aggregated, pending at the end of the run or from a lost board.
    """
    late, stale = sum(row.late for row in rounds), sum(row.stale for row in rounds)
    return {
        "asked": len(clients),
        "asynchronous": is_asynchronous(rounds, clients),
        "late": late,
        "failed": sum(row.failed for row in rounds),
        "refused": sum(row.refused for row in rounds),
        "refused_energy_j": sum(row.energy_j for row in clients if row.is_refused),
        "cancelled": sum(row.cancelled for row in rounds),
        "stale": stale,
        "late_lost": max(0, late - stale) if experiment.late.action == "discount" else 0,
        "mean_staleness": mean(row.staleness for row in clients),
        "infeasible": sum(row.feasible is False for row in clients),
        "link_mbps": median(row.link_mbps for row in clients),
        **_client_means(clients),
    }


def _client_means(clients: Sequence[ClientRow]) -> dict[str, float | None]:
    rows = [row for row in clients if row.status == "done"]
    return {
        "client_moved_mb": mean(row.moved_mb for row in rows),
        "client_energy_j": mean(row.energy_j for row in rows),
        "client_step_j": mean(row.work_j / row.steps for row in rows if row.steps),
        "client_memory_mb": mean(row.memory_mb for row in rows),
        "client_predicted_memory_mb": mean(row.predicted_memory_mb for row in rows),
    }


def _evaluation_figures(rounds: Sequence[RoundRow]) -> dict[str, Any]:
    """Return the clients' last results and the cost of their evaluations; empty if they made none."""
    evaluated = [row for row in rounds if row.evaluation_s is not None]
    if not evaluated:
        return {}
    return {
        "final_client_accuracy": evaluated[-1].client_accuracy,
        "final_client_loss": evaluated[-1].client_loss,
        "evaluation_s": sum(row.evaluation_s or 0.0 for row in evaluated),
        "evaluation_energy_j": sum(row.evaluation_energy_j or 0.0 for row in evaluated),
    }


def _service_figures(clients: Sequence[ClientRow]) -> dict[str, Any]:
    rows = [row for row in clients if row.requests is not None]
    if not rows:
        return {}
    requests, late = sum(row.requests or 0 for row in rows), sum(row.late_requests or 0 for row in rows)
    within = [row.latency_p99_s <= row.latency_budget_s for row in rows if row.latency_p99_s and row.latency_budget_s]
    return {
        "requests": requests,
        "late_requests": late,
        "dropped_requests": sum(row.dropped_requests or 0 for row in rows),
        "serving_rounds": len(rows),
        "latency_held": sum(within) / len(within) if within else None,
        "service_share": _mean_known([row.service_share for row in rows]),
        "train_steps_per_s": _mean_known([row.train_steps_per_s for row in rows]),
    }


def is_asynchronous(rounds: Sequence[RoundRow], clients: Sequence[ClientRow]) -> bool:
    """Return whether clients started their tasks at individual times rather than with the round."""
    starts = {row.round: row.start_s for row in rounds}
    return any(row.status == "done" and row.start_s != starts.get(row.round, row.start_s) for row in clients)


def _mean_known(values: Sequence[float | None]) -> float | None:
    total = sum_known(values)
    return None if total is None else total / len(values)

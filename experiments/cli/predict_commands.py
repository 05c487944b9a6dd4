"""The ``fedge predict`` commands: predict time and power of all power modes from a few measured ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Predict time and power of every power mode from few measured ones.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Table = Annotated[Path, typer.Argument(metavar="TABLE", help="A measured table in the normal form (CSV).")]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A file that `fedge predict fit` wrote.")]
References = Annotated[
    list[Path] | None,
    typer.Option("--reference", metavar="TABLE", help="Another workload's table on a like board; may be repeated."),
]
PriorWithout = Annotated[
    list[str] | None,
    typer.Option("--prior-without", metavar="NAME", help="A workload or board whose calibration the prior leaves out."),
]
Device = Annotated[str | None, typer.Option(help="The board; from the table's path by default.")]
WorkloadName = Annotated[str | None, typer.Option("--workload", help="The workload; from the file's name by default.")]
BatchSize = Annotated[int | None, typer.Option(help="Which batch size, where a table holds several.")]
Seed = Annotated[int, typer.Option(help="Fixes everything random.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]


@app.command("eval")
def evaluate(
    *,
    target: Annotated[list[Path], typer.Option(metavar="TABLE", help="The table to predict; may be repeated.")],
    reference: References = None,
    method: Annotated[
        str | None, typer.Option(help="Predictors, separated by commas; fedge, and powertrain with a reference.")
    ] = None,
    modes: Annotated[str, typer.Option(help="How many modes are profiled; several, separated by commas.")] = "10,20,50",
    seeds: Annotated[int, typer.Option(min=1, help="How often each is repeated.")] = 5,
    budgets: Annotated[str | None, typer.Option(metavar="LOW:HIGH:STEP", help="Power limits in watts.")] = None,
    explorer: Annotated[str | None, typer.Option(help="What to profile; each method's own way by default.")] = None,
    choice: Annotated[
        str | None, typer.Option(help="plain, margin or verified; each method's own way by default.")
    ] = None,
    prior_without: PriorWithout = None,
    device: Device = None,
    workload: WorkloadName = None,
    batch_size: BatchSize = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the rows as JSON.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write pictures.")] = None,
) -> None:
    """Judge predictors on measured tables: errors on modes they never saw, and what choosing with them costs."""
    from experiments.cli.predict_eval import PredictEvalOptions
    from experiments.cli.predict_eval import evaluate_predictors as command

    asked = PredictEvalOptions(
        targets=tuple(target),
        references=tuple(reference or ()),
        methods=method,
        modes=modes,
        seeds=seeds,
        budgets=budgets,
        explorer=explorer,
        choice=choice,
        prior_without=tuple(prior_without or ()),
        device=device,
        workload=workload,
        batch_size=batch_size,
    )
    command(asked, json_file, html)


@app.command("train-reference")
def train_reference(
    tables: Annotated[list[Path], typer.Argument(metavar="TABLE...", help="Measured tables in the normal form (CSV).")],
    batch_size: BatchSize = None,
    as_json: AsJson = False,
) -> None:
    """Train the reference networks of the predictor `powertrain` and keep them; done by itself where needed."""
    from experiments.cli.predict_reference import train_references as command

    command(tables, batch_size, as_json)


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A log, a file or a folder.")],
    layout: Annotated[str, typer.Option("--format", help="tegrastats, jtop, powertrain or bofl.")],
    out: Annotated[Path, typer.Option(metavar="TABLE", help="The table to write (CSV).")],
    steps: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For logs: when each mode's minibatches ran (CSV).")
    ] = None,
    batch_size: BatchSize = None,
    as_json: AsJson = False,
) -> None:
    """Bring measurements made elsewhere into the normal form."""
    from experiments.cli.predict_import import import_table as command

    command(source, layout=layout, out=out, steps=steps, batch_size=batch_size, as_json=as_json)


@app.command()
def fit(
    *,
    table: Annotated[
        Path | None, typer.Argument(metavar="[TABLE]", help="A measured table; none: an emulated --device is profiled.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="MODEL", help="The file to write.")] = Path("model.safetensors"),
    method: Annotated[str, typer.Option(help="The predictor.")] = "fedge",
    modes: Annotated[
        int | None, typer.Option(min=1, help="Number of modes to learn from; the explorer picks them.")
    ] = None,
    explorer: Annotated[str | None, typer.Option(help="What to profile, with --modes.")] = None,
    cost_s: Annotated[float | None, typer.Option(help="Most seconds to profile.")] = None,
    cost_j: Annotated[float | None, typer.Option(help="Most joules to profile.")] = None,
    reference: References = None,
    prior_without: PriorWithout = None,
    device: Device = None,
    workload: WorkloadName = None,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Learn a board's time and power from a table, or by profiling an emulated board."""
    from experiments.cli.predict_fit import PredictFitOptions
    from experiments.cli.predict_fit import fit_model as command

    asked = PredictFitOptions(
        table=table,
        method=method,
        modes=modes,
        explorer=explorer,
        cost_s=cost_s,
        cost_j=cost_j,
        references=tuple(reference or ()),
        prior_without=tuple(prior_without or ()),
        device=device,
        workload=workload,
        batch_size=batch_size,
        seed=seed,
    )
    command(asked, out, as_json)


@app.command()
def show(model: Model, as_json: AsJson = False) -> None:
    """What a model was learnt from, what it knew beforehand, and how sure it is."""
    from experiments.cli.predict_use import print_model as command

    command(model, as_json)


@app.command()
def choose(
    model: Model,
    *,
    power_w: Annotated[float | None, typer.Option(help="Fastest mode within these watts.")] = None,
    deadline_s: Annotated[float | None, typer.Option(help="Least energy, a minibatch within these seconds.")] = None,
    time_weight: Annotated[float | None, typer.Option(help="Least weighted sum of time and energy (0 to 1).")] = None,
    knee: Annotated[bool, typer.Option("--knee", help="Where the front of time and power bends most.")] = False,
    confidence: Annotated[float, typer.Option(help="How surely the limit is to hold.")] = 0.84,
    as_json: AsJson = False,
) -> None:
    """Choose a power mode: name one of the four aims."""
    from experiments.cli.predict_use import choose_mode as command

    command(
        model,
        power_w=power_w,
        deadline_s=deadline_s,
        time_weight=time_weight,
        knee=knee,
        confidence=confidence,
        as_json=as_json,
    )


@app.command()
def pareto(
    model: Model,
    against: Annotated[str, typer.Option(help="power or energy.")] = "power",
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the front as a table.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the front.")] = None,
    as_json: AsJson = False,
) -> None:
    """The modes from which none is both faster and cheaper."""
    from experiments.cli.predict_use import print_pareto_front as command

    command(model, against=against, csv=csv, html=html, as_json=as_json)

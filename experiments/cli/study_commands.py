"""The ``fedge study`` commands: the value of mode choice, on one board under deadlines and on a whole fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="What choosing modes is worth, judged by an oracle that knows the truth.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Rounds = Annotated[int, typer.Option(min=1, help="Rounds of every run.")]
Seeds = Annotated[int, typer.Option(min=1, help="How often each is repeated: seeds 1 to this.")]
JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the rows as JSON.")]
Html = Annotated[Path | None, typer.Option(metavar="FILE", help="Write pictures.")]


@app.command("mode-choice")
def mode_choice(
    *,
    table: Annotated[Path, typer.Option(metavar="TABLE", help="The measured table that is the board's truth (CSV).")],
    deadline_ratio: Annotated[
        list[float] | None,
        typer.Option(help="Deadlines are drawn from 1 to this times the fastest round; may be repeated."),
    ] = None,
    rounds: Rounds = 100,
    policy: Annotated[str, typer.Option(help="Policies, separated by commas: fedge, bofl, maxn, oracle.")] = "fedge",
    seeds: Seeds = 10,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Minibatches a round; the published number for the board by default.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="The board; from the table's path by default.")] = None,
    workload: Annotated[str | None, typer.Option(help="The workload; from the file's name by default.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Which batch size, where a table holds several.")] = None,
    json_file: JsonFile = None,
    html: Html = None,
) -> None:
    """One board, every round with another deadline: energy against an oracle's and MAXN's, while modes are learnt."""
    from experiments.cli.study_mode_choice import ModeChoiceOptions, run_mode_choice_study

    asked = ModeChoiceOptions(
        table=table,
        ratios=tuple(deadline_ratio or (2.0,)),
        rounds=rounds,
        policies=policy,
        seeds=seeds,
        steps=steps,
        device=device,
        workload=workload,
        batch_size=batch_size,
    )
    run_mode_choice_study(asked, json_file, html)


@app.command("fleet")
def fleet(
    config: Annotated[Path, typer.Argument(metavar="FLEET", help="An experiment's YAML file; nothing is trained.")],
    *,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Policies, separated by commas; the file's own by default. Known: balanced, least-energy, "
            "energy-budget, fastest, fastest-within-power, least-energy-within-deadline, maxn, preset:NAME, or your "
            "own module:function."
        ),
    ] = None,
    rounds: Rounds = 20,
    seeds: Seeds = 1,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Every board's minibatches a round; about 30 s at MAXN by default.")
    ] = None,
    override: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a field; may be repeated.")
    ] = None,
    json_file: JsonFile = None,
    html: Html = None,
) -> None:
    """A fleet without training: rounds and energy against an oracle, all boards at MAXN, and the best presets."""
    from experiments.cli.study_fleet import FleetStudyOptions, run_fleet_study

    asked = FleetStudyOptions(
        config, policies=policy, rounds=rounds, seeds=seeds, steps=steps, overrides=tuple(override or ())
    )
    run_fleet_study(asked, json_file, html)

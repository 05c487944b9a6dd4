"""Command groups: plain help with headings, and groups whose first command is meant when none is named."""

from __future__ import annotations

from typing import Any

import typer.core
import typer.main

FULL_SENTENCE = 1000
"""Characters of a command's summary in its group's help: all of its first sentence."""


class DescribedArgument(typer.core.TyperArgument):
    """Argument whose help is shown once: Click from 8.4 on empties it, and would list arguments with one a second time.

    Typer before 0.21, which Flower needs, does not know of this.
    """

    def __init__(self, *, help: str | None = None, **rest: Any) -> None:  # noqa: A002  Typer's own name
        super().__init__(help=help, **rest)
        self._text = help

    def get_help_record(self, ctx: Any) -> Any:
        """Return the argument and its help as they stand in the help of its command."""
        kept, self.help = self.help, self._text
        try:
            return super().get_help_record(ctx)
        finally:
            self.help = kept


typer.main.TyperArgument = DescribedArgument  # type: ignore[attr-defined]


class PanelGroup(typer.core.TyperGroup):
    """Command group that lists its commands under headings, their help panels, in plain text."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section per panel, in the order in which the panels were first used."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            panel = getattr(command, "rich_help_panel", None)
            summary = command.get_short_help_str(FULL_SENTENCE)
            panels.setdefault(panel if isinstance(panel, str) else "Commands", []).append((name, summary))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


class DefaultCommandGroup(PanelGroup):
    """Command group whose first command is meant when the first word names none."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read ``roofline resnet50 ...`` as ``roofline NETWORK resnet50 ...``."""
        if args and args[0] not in self.commands and args[0] not in self.get_help_option_names(ctx):
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)

"""Where the page's figures come from: a run's folder, a fleet that is live, or another board page."""

from __future__ import annotations

from typing import Protocol

from server.board.views import BoardHistory, FleetView, RoundView


class Source(Protocol):
    """Called from one thread at a time; what it cannot read it tells in ``FleetView.problem``."""

    def view(self) -> FleetView:
        """The fleet now; cheap when nothing has changed."""
        ...

    def history(self, board: str) -> BoardHistory | None:
        """One board's rounds, power and events; None for a board that is not known."""
        ...

    def round(self, number: int) -> RoundView | None:
        """One round's timeline; None for a round that is not there."""
        ...

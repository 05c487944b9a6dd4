"""What a page or a terminal shows, as data."""

import io
import json
import re
from collections.abc import Callable
from typing import Any

from rich.console import Console


def charts_of(page: str) -> dict[str, dict[str, Any]]:
    """The charts of an HTML page by their key."""
    found = re.search(r'<script type="application/json" id="charts">(.*?)</script>', page, re.DOTALL)
    return {chart["key"]: chart for chart in json.loads(found.group(1))}


def check_drawn(page: str) -> dict[str, dict[str, Any]]:
    """The charts of a page, after a look whether Plotly can draw every view of them."""
    import plotly.graph_objects as go

    charts = charts_of(page)
    for chart in charts.values():
        for view in chart["frames"] or [chart]:
            assert go.Figure(data=view["data"], layout=view["layout"]).data
    return charts


def shown_text(show: Callable[..., None], *what: Any, width: int = 160) -> str:
    """What ``show(console, *what)`` prints to a console of that width."""
    out = io.StringIO()
    show(Console(file=out, width=width), *what)
    return out.getvalue()

"""What this page needs beyond the common look: its style, sorting a table, and marking a point in every picture."""

from __future__ import annotations

import json
from collections.abc import Mapping

STYLE = """
ol.findings { padding-left: 26px; margin: 10px 0; max-width: 112ch; }
ol.findings > li { margin: 7px 0; }
ol.findings summary { font-size: 15.5px; }
ol.findings details[open] summary { font-weight: 600; color: var(--ink); }
ol.findings ul { margin: 6px 0; padding-left: 20px; }
#contents { display: flex; flex-wrap: wrap; gap: 3px 18px; font-size: 13.5px; margin: 16px 0 0; }
#contents a { color: #2f77b4; text-underline-offset: 2px; }
details.more { margin: 8px 0; }
p.points { font-size: 13.5px; overflow-wrap: anywhere; }
a.point { color: inherit; text-decoration-color: #0072B2; text-underline-offset: 2px; }
.whatif { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 340px), 1fr)); gap: 12px;
  margin: 14px 0; }
.whatif article { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px 12px; }
.whatif h3 { margin: 0; font-size: 15px; overflow-wrap: anywhere; }
.whatif .saving { font-size: 18.5px; font-weight: 620; margin: 2px 0; }
.whatif .why { font-size: 14px; }
.keys { display: flex; margin: 6px 0 0; color: var(--ink); flex-wrap: wrap; gap: 2px 18px; font-size: 13.5px; }
section:has([id^=chart-parts]) > .grid, section:has([id^=chart-e2e_s]) > .grid { --min: 420px !important; }
.controls select { max-width: min(100%, 78ch); }
.controls label { max-width: 100%; }
tr:has(:target) { background: color-mix(in srgb, #E69F00 22%, transparent); }
.sortable .scroll { max-height: 80vh; overflow-y: auto; }
.sortable th { position: sticky; top: 0; background: var(--paper); cursor: pointer; }
.sortable th[aria-sort]::after { content: " ▲"; font-size: 10px; }
.sortable th[aria-sort=descending]::after { content: " ▼"; }
.sortable td { white-space: nowrap; padding-right: 14px; }
.sortable td:not(.n) { min-width: 0; }
.sortable td:last-child { min-width: 22ch; white-space: normal; }
"""

PROGRAM = """
"use strict";
const sameSetting = JSON.parse(document.getElementById("same-setting").textContent);

function valueOf(cell) {
  const said = cell.textContent.trim(), plain = said.replace(/[,\\u00a0 %]/g, "").replace("\\u2212", "-");
  return plain !== "" && Number.isFinite(Number(plain)) ? Number(plain) : said;
}

function compared(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return a.localeCompare(b, "en", { numeric: true });
}

function sortable(table) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => {
    head.tabIndex = 0;
    const sort = () => {
      const falling = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((one) => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const rows = [...body.rows].map((row) => [valueOf(row.cells[column]), row]);
      rows.sort((a, b) => (falling ? -1 : 1) * compared(a[0], b[0]));
      body.append(...rows.map((one) => one[1]));
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  });
}

function holds(data, key) {
  return data.some((trace) => trace.meta === key || (trace.customdata || []).includes(key));
}

// Rings around a point in every picture that has it; menus turn to where it is.
function markPoint(given) {
  const key = sameSetting[given] || given;
  for (const chart of charts) {
    const found = chart.frames.findIndex((frame) => holds(frame.data, key));
    if (found >= 0 && !holds(chart.frames[chart.shown].data, key)) {
      const menu = document.getElementById("slider-" + chart.key);
      menu.value = found;
      menu.dispatchEvent(new Event("input"));
    }
    const place = document.getElementById("chart-" + chart.key), x = [], y = [];
    const old = place.data.findIndex((trace) => trace.name === "marked");
    if (old >= 0) Plotly.deleteTraces(place, old);
    for (const trace of place.data)
      if (trace.type === "scatter" && (trace.mode || "").includes("markers"))
        (trace.customdata || []).forEach((one, i) => { if (one === key) { x.push(trace.x[i]); y.push(trace.y[i]); } });
    if (x.length)
      Plotly.addTraces(place, { type: "scatter", mode: "markers", name: "marked", x, y, showlegend: false,
        hoverinfo: "skip", cliponaxis: false,
        marker: { symbol: "circle-open", size: 19, color: "#c8102e", line: { width: 2.5 } } });
  }
}

// The page is long where many knobs were turned.
function contents(place) {
  for (const head of document.querySelectorAll("h2")) {
    const link = document.createElement("a");
    head.id = head.textContent.toLowerCase().replace(/[^a-z0-9]+/g, "-");
    link.href = "#" + head.id;
    link.textContent = head.textContent;
    place.append(link);
  }
}

document.addEventListener("DOMContentLoaded", () => {
  contents(document.getElementById("contents"));
  document.querySelectorAll(".sortable table").forEach(sortable);
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-point]");
    if (link) markPoint(link.dataset.point);
  });
});
"""


def program(same: Mapping[str, str]) -> str:
    """As HTML; ``same``: of a repeat's key the key of its setting's first one, which the pictures have."""
    told = json.dumps(dict(same), separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<style>{STYLE}</style><script type="application/json" id="same-setting">{told}</script>'
        f'<nav id="contents" aria-label="contents"></nav><script>{PROGRAM}</script>'
    )

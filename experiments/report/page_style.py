"""Style sheet and script of the pages as strings: light and dark theme, sliders, menus; nothing is downloaded."""

from __future__ import annotations

from string import Template

from experiments.report.palette import SHARE_COLOURS

PAGE_CSS = """
:root { color-scheme: light dark; --ink: #1b2129; --soft: #59636e; --line: #d8dee4; --paper: #ffffff; --card: #f6f8fa;
  --good: #0b7a4b; --bad: #b3261e; --warn: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --soft: #9aa4af; --line: #30363d; --paper: #0f1318;
  --card: #171c23; --good: #4cc38a; --bad: #ff8078; --warn: #e3b341; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 28px 20px 64px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 44px 0 4px; padding-top: 14px; border-top: 1px solid var(--line); }
h3 { font-size: 14.5px; margin: 18px 0 0; font-weight: 600; }
p { margin: 6px 0; max-width: 112ch; }
.soft, .caption { color: var(--soft); }
.caption { font-size: 13px; margin: 2px 0 0; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, var(--min, 340px)), 1fr));
  gap: 6px 32px; }
figure { margin: 0; min-width: 0; }
.chart { width: 100%; }
dl.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 240px), 1fr)); gap: 10px;
  margin: 20px 0 14px; }
dl.cards div { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px; }
dt { font-size: 13px; color: var(--soft); }
dd { margin: 0; }
dd.figure { font-size: 21.5px; font-weight: 620; line-height: 1.3; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
dd.aside { font-size: 12.5px; color: var(--soft); line-height: 1.35; }
.scroll { overflow-x: auto; margin: 10px 0 4px; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; min-width: 100%; }
th { text-align: left; font-weight: 600; color: var(--soft); white-space: nowrap; vertical-align: bottom; }
th, td { padding: 5px 18px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { vertical-align: bottom; }
td:first-child { white-space: nowrap; }
td:not(.n) { min-width: 11ch; }
td:last-child { min-width: 22ch; }
th.n, td.n { text-align: right; white-space: nowrap; padding-left: 6px; }
th.n { white-space: normal; line-height: 1.25; }
th.n:last-child, td.n:last-child { padding-right: 2px; min-width: 0; }
td.best { font-weight: 700; color: var(--good); }
td.best::after { content: " ★"; font-size: 10px; vertical-align: 2px; }
td.n:not(.best)::after { content: ""; }
.swatch { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 8px; }
.badge { font-size: 12px; font-weight: 600; border: 1px solid currentColor; border-radius: 9px; padding: 0 8px;
  white-space: nowrap; margin-right: 4px; }
.badge.measured { color: var(--good); } .badge.calibrated { color: #3d7fc4; } .badge.estimated { color: var(--warn); }
.badge.unknown { color: var(--soft); }
.status.failed, .status.late { color: var(--bad); font-weight: 600; }
.status.infeasible, .status.throttled, .status.cancelled, .status.budget,
.status.empty, .status.late-reply { color: var(--warn); font-weight: 600; }
.controls { display: flex; flex-wrap: wrap; gap: 8px 14px; align-items: center; font-size: 13.5px; margin: 6px 0; }
.controls input[type=range] { width: min(420px, 60vw); accent-color: #0072B2; }
.controls select, .controls button { font: inherit; color: inherit; background: var(--card);
  border: 1px solid var(--line); border-radius: 6px; padding: 2px 8px; }
.controls output { font-variant-numeric: tabular-nums; font-weight: 600; }
.copies { display: flex; gap: 6px; justify-content: flex-end; }
.copies button { font: inherit; font-size: 12px; color: var(--soft); background: none; border: 1px solid var(--line);
  border-radius: 6px; padding: 1px 8px; min-height: 24px; cursor: pointer; }
.copies button:hover, .copies button:focus-visible { color: var(--ink); border-color: var(--soft); }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
.scale { display: inline-block; width: 130px; height: 10px; border-radius: 3px; vertical-align: -1px; margin: 0 6px;
  background: linear-gradient(to right, $stops); }
details summary { cursor: pointer; } details[open] { color: var(--soft); }
footer { margin-top: 48px; font-size: 12.5px; color: var(--soft); overflow-wrap: anywhere; }
@media (max-width: 560px) { main { padding: 18px 12px 48px; } h1 { font-size: 22px; }
  dl.cards { grid-template-columns: 1fr 1fr; gap: 8px; } dl.cards div { padding: 8px 10px; }
  dd.figure { font-size: 19px; } dl.cards div.wide { grid-column: 1 / -1; } }
@media print { .controls, .copies { display: none; } figure { break-inside: avoid; } }
"""

PAGE_SCRIPT = """
"use strict";
const charts = JSON.parse(document.getElementById("charts").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const said = document.getElementById("said");
const hovers = window.matchMedia("(hover: hover)").matches;
const config = { responsive: true, displaylogo: false, displayModeBar: hovers ? "hover" : false,
  modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]], toImageButtonOptions: { format: "svg" } };

function merge(base, over) {
  const made = { ...base };
  for (const [key, value] of Object.entries(over))
    made[key] = value && value.constructor === Object ? merge(base[key] || {}, value) : value;
  return made;
}

function themed(layout, height) {
  const night = dark.matches, narrow = window.innerWidth < 560;
  const ink = night ? "#e6e9ed" : "#1b2129", grid = night ? "#262d36" : "#e6e9ed", edge = night ? "#59636e" : "#8c959f";
  const paper = night ? "#0f1318" : "#ffffff";
  const axis = { gridcolor: grid, linecolor: edge, zeroline: false, showline: true, ticks: "outside",
    tickcolor: edge, ticklen: 4, automargin: true, title: { standoff: 8, font: { size: 12.5 } },
    tickfont: { size: narrow ? 10.5 : 12 } };
  const base = { height, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 8, r: 14, t: 30, b: 8 },
    font: { family: 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif', size: 12.5, color: ink },
    xaxis: axis, yaxis: axis, legend: { font: { size: narrow ? 10.5 : 12 }, itemsizing: "constant" },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: edge, activecolor: ink },
    hoverlabel: { bgcolor: paper, bordercolor: edge, font: { color: ink, size: 12.5 }, align: "left" } };
  return merge(base, layout);
}

function draw(chart) {
  const shown = chart.frames.length ? chart.frames[chart.shown] : chart;
  // Numbers in cells do not fit a narrow screen.
  const bare = window.innerWidth < 560 ? { texttemplate: "" } : {};
  const data = shown.data.map((trace) => (trace.texttemplate ? { ...trace, ...bare } : { ...trace }));
  // A legend of two columns takes its height from the chart; give it back.
  const extra_px = window.innerWidth < 560 && data.length > 3 ? 14 * data.length : 0;
  const place = document.getElementById("chart-" + chart.key);
  place.style.height = chart.height_px + extra_px + "px";
  return Plotly.react(place, data, themed(shown.layout, chart.height_px + extra_px), config);
}

function slide(chart) {
  const slider = document.getElementById("slider-" + chart.key);
  const told = document.getElementById("told-" + chart.key);
  chart.shown = slider.tagName === "SELECT" ? 0 : chart.frames.length - 1;
  const show = () => {
    chart.shown = Number(slider.value);
    told.textContent = chart.frames[chart.shown].told || chart.frames[chart.shown].label;
    draw(chart);
  };
  slider.addEventListener("input", show);
  slider.value = chart.shown;
  told.textContent = chart.frames[chart.shown].told || chart.frames[chart.shown].label;
}

function span(chart) {
  const from = document.getElementById("from-" + chart.key), to = document.getElementById("to-" + chart.key);
  const show = () => {
    if (Number(to.value) < Number(from.value)) to.value = from.value;
    const begin = chart.spans[from.value][1], end = chart.spans[to.value][2];
    chart.layout.xaxis.range = [begin, end + 0.01 * (end - begin)];
    draw(chart);
  };
  from.addEventListener("change", show);
  to.addEventListener("change", show);
  document.getElementById("all-" + chart.key).addEventListener("click", () => {
    from.value = 0;
    to.value = chart.spans.length - 1;
    show();
  });
}

// Browsers without the clipboard's interface, or that refuse it to a file, still copy what is selected.
function copySelected(text) {
  const box = document.createElement("textarea");
  box.value = text;
  box.style.position = "fixed";
  box.style.opacity = "0";
  document.body.append(box);
  box.select();
  const done = document.execCommand("copy");
  box.remove();
  return done;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelected(text);
  }
}

for (const button of document.querySelectorAll("button[data-copy]")) {
  const words = button.textContent;
  button.addEventListener("click", async () => {
    const done = await copied(button.dataset.copy);
    button.focus();
    button.textContent = done ? "copied" : "not copied";
    said.textContent = done ? "The table was copied." : "The browser did not allow to copy.";
    setTimeout(() => { button.textContent = words; }, 1500);
  });
}

for (const chart of charts) {
  if (chart.frames.length) slide(chart);
  if (chart.spans.length > 1) span(chart);
  draw(chart);
}
dark.addEventListener("change", () => charts.forEach(draw));
"""


def render_css() -> str:
    """Return the style sheet, including the heatmaps' colour scale."""
    return Template(PAGE_CSS).substitute(stops=", ".join(colour for _, colour in SHARE_COLOURS))

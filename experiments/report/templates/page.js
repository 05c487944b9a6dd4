"use strict";
const charts = JSON.parse(document.getElementById("charts").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const said = document.getElementById("said");
const hovers = window.matchMedia("(hover: hover)").matches;
const config = { responsive: true, displaylogo: false, displayModeBar: hovers ? "hover" : false,
  modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]], toImageButtonOptions: { format: "svg" } };

const LEGEND_ROW_PX = 24;

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

function draw(chart, legend_px = 0) {
  const shown = chart.frames.length ? chart.frames[chart.shown] : chart;
  // Numbers in cells do not fit a narrow screen.
  const bare = window.innerWidth < 560 ? { texttemplate: "" } : {};
  const data = shown.data.map((trace) => (trace.texttemplate ? { ...trace, ...bare } : { ...trace }));
  const place = document.getElementById("chart-" + chart.key);
  place.style.height = chart.height_px + legend_px + "px";
  const drawn = Plotly.react(place, data, themed(shown.layout, chart.height_px + legend_px), config);
  // Further rows of a legend take their height from the plot; draw again with as much more.
  return drawn.then(() => {
    const rows_px = Math.max(0, ((place._fullLayout.legend || {})._height || 0) - LEGEND_ROW_PX);
    return legend_px || rows_px < 5 ? place : draw(chart, rows_px);
  });
}

function slide(chart) {
  const slider = document.getElementById("slider-" + chart.key);
  const summary = document.getElementById("summary-" + chart.key);
  chart.shown = slider.tagName === "SELECT" ? 0 : chart.frames.length - 1;
  const show = () => {
    chart.shown = Number(slider.value);
    summary.textContent = chart.frames[chart.shown].summary || chart.frames[chart.shown].label;
    draw(chart);
  };
  slider.addEventListener("input", show);
  slider.value = chart.shown;
  summary.textContent = chart.frames[chart.shown].summary || chart.frames[chart.shown].label;
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
dark.addEventListener("change", () => charts.forEach((chart) => draw(chart)));

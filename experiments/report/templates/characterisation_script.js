"use strict";
const sameSetting = JSON.parse(document.getElementById("same-setting").textContent);

function valueOf(cell) {
  const said = cell.textContent.trim(), plain = said.replace(/[,\u00a0 %]/g, "").replace("\u2212", "-");
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

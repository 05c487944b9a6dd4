// The index of runs: one row each, read again every two seconds while the page is in view.
import { openPage } from "./entrance.js";
import { UNKNOWN, count, energy, merit } from "./words.js";

const $ = id => document.getElementById(id);
const PERIOD_MS = 2000, FIELDS = 4;
const STATES = { running: "going", finished: "finished", stopped: "quiet", "not started": "waiting" };
const checked = new Set(), rows = new Map();

function link(state, text) {
  $("link").className = `link ${state}`;
  $("link-text").textContent = text;
}

function make(kind, ...children) {
  const made = document.createElement(kind);
  made.append(...children);
  return made;
}

function differences(run) {
  const all = Object.entries(run.differences);
  const told = all.slice(0, FIELDS).map(([key, value]) => `${key.replace(/\.name$/, "").split(".").at(-1)} ${value}`);
  const more = all.length - FIELDS;
  return told.join(", ") + (more > 0 ? ` and ${more} more` : "");
}

function begin(run) {
  const box = make("input"), name = make("a", run.name), progress = make("progress");
  Object.assign(box, { type: "checkbox", ariaLabel: `Compare ${run.name}` });
  box.addEventListener("change", () => { checked[box.checked ? "add" : "delete"](run.name); $("compare").disabled = checked.size < 1; });
  name.href = `runs/${encodeURIComponent(run.name)}/`;
  const cells = Array.from({ length: 9 }, () => make("td")), state = make("span"), rounds = make("span");
  cells[0].append(box);
  cells[1].append(name);
  cells[4].append(state);
  cells[5].append(progress, " ", rounds);
  return { host: make("tr", ...cells), cells, state, rounds, progress };
}

function reached(run) {
  const text = merit(run.metric, run.accuracy);
  return run.metric === "accuracy" || text === UNKNOWN ? text : `${run.metric} ${text}`;
}

function show(row, run) {
  row.state.textContent = run.problem ? "unreadable" : run.state;
  row.state.className = `badge ${STATES[run.state]}`;
  row.state.title = run.problem;
  row.progress.value = run.planned ? run.rounds / run.planned : 0;
  row.rounds.textContent = `${run.rounds} of ${run.planned}`;
  const texts = { 2: run.tags.join(", "), 3: differences(run), 6: reached(run), 7: run.rounds ? energy(run.energy_j) : "–", 8: run.started.slice(0, 16).replace("T", " ") };
  for (const [place, text] of Object.entries(texts)) if (row.cells[place].textContent !== text) row.cells[place].textContent = text;
  const wanted = $("search").value.trim().toLowerCase();
  row.host.hidden = !`${run.name} ${texts[2]} ${texts[3]}`.toLowerCase().includes(wanted);
}

function apply(runs) {
  const hosts = runs.map(run => {
    if (!rows.has(run.name)) rows.set(run.name, begin(run));
    show(rows.get(run.name), run);
    return rows.get(run.name).host;
  });
  const body = $("rows");
  if (hosts.length !== body.children.length || hosts.some((host, place) => body.children[place] !== host)) body.replaceChildren(...hosts);
  $("none").hidden = runs.length > 0;
  const going = runs.filter(run => run.state === "running").length;
  $("count").textContent = `${count(runs.length, "run")}${going ? `, ${going} running` : ""}`;
}

async function poll() {
  if (document.hidden) return;
  const answer = await fetch("api/runs", { cache: "no-store" }).catch(() => null);
  if (!answer?.ok) { link("lost", "connection lost, trying again"); return; }
  link("on", "connected");
  apply((await answer.json()).runs);
}

let polling = 0;
function follow() {
  $("main").hidden = false;
  $("login").hidden = true;
  clearInterval(polling);
  poll();
  polling = setInterval(poll, PERIOD_MS);
}

$("search").addEventListener("input", poll);
$("compare").addEventListener("click", () => {
  location.assign(`api/compare?${new URLSearchParams([...checked].map(name => ["run", name]))}`);
});
openPage({ main: $("main"), link, follow });

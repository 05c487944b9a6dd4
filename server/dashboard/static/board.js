// The page's beginning: lets the reader in, follows the stream, and hands every change to the part that shows it.
import { chart } from "./charts.js";
import { openPage } from "./entrance.js";
import * as panel from "./panel.js";
import * as tiles from "./tiles.js";
import * as timeline from "./timeline.js";
import { age, count, duration, energy, energyScale, merit, number, percent } from "./words.js";

const $ = id => document.getElementById(id);
const STATES = { none: "no run", waiting: "waiting for the first round", going: "running", quiet: "no news", finished: "finished" };
const SILENCE_MS = 25000, MEASURES_KEPT = 500, FEW_BOARDS = 30;
const view = { run: null, summary: null, rounds: [], boards: new Map(), origins: [], refused: {}, problem: "" };
let ahead = 0, heard = 0, stream = null, begun = false, measures = 0;

const seconds = () => Date.now() / 1000 + ahead;
const write = (id, text) => { const host = $(id); if (host.textContent !== text) host.textContent = text; };

const title = metric => metric.charAt(0).toUpperCase() + metric.slice(1);

function link(state, text) {
  $("link").className = `link ${state}`;
  write("link-text", text);
}

function head() {
  const run = view.run;
  write("run-name", run.name || "fedge board");
  document.title = run.name ? `${run.name} · fedge board` : "fedge board";
  write("run-state", STATES[run.state]);
  $("run-state").className = `badge ${run.state}`;
  write("run-about", [run.policy && `policy ${run.policy}`, run.backend && (run.real ? "real boards" : `${run.backend}, emulated boards`)].filter(Boolean).join(" · "));
  write("problem", view.problem);
  $("problem").hidden = !view.problem;
}

function summary() {
  const figures = view.summary, run = view.run, none = !figures.round;
  write("s-metric", title(run.metric));
  write("s-accuracy", merit(run.metric, figures.accuracy));
  write("s-loss", none ? "" : figures.loss === null ? "nothing is trained" : `loss ${number(figures.loss)}`);
  write("s-round", run.rounds ? `${figures.round} of ${run.rounds}` : `${figures.round}`);
  $("s-progress").value = run.rounds ? figures.round / run.rounds : 0;
  write("s-time", duration(figures.round_s));
  const lost = [["late", figures.late], ["failed", figures.failed], ["cancelled", figures.cancelled]].filter(([, many]) => many).map(([word, many]) => `${many.toLocaleString("en-US")} ${word}`);
  write("s-lost", none ? "" : lost.join(" · ") || "none late, none failed");
  write("s-deadline", none ? "" : figures.deadline_s === null ? "no deadline" : `deadline ${duration(figures.deadline_s)}`);
  write("s-clock", none ? "–" : duration(figures.clock_s));
  write("s-energy", none ? "–" : energy(figures.energy_j));
  write("s-resting", figures.resting_energy_j ? `and ${energy(figures.resting_energy_j)} resting` : none ? "" : `${energy(figures.energy_j / Math.max(1, view.rounds.length))} per round`);
  write("s-saving", percent(figures.saving));
  write("s-parked", figures.saving_parked === null ? "unknown" : `${percent(figures.saving_parked)} vs MAXN, low idle`);
  const part = figures.compared && figures.compared < view.rounds.length;
  write("s-saved", part ? `Saved, ${figures.compared} of ${view.rounds.length} rounds` : "Saved vs MAXN");
  $("s-saved").title = part ? `vs MAXN, over ${figures.compared} of ${view.rounds.length} rounds: those that can be compared, without late boards` : "";
}

function changedAgo() {
  const run = view.run;
  if (!run || run.changed_at_s === null) return write("s-changed", "");
  const since = Math.max(0, seconds() - run.changed_at_s), ago = age(since);
  write("s-changed", run.state === "finished" ? `ended ${new Date(1000 * run.changed_at_s).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" })}` : `updated ${ago === "now" ? "now" : `${ago} ago`}`);
}

function charts() {
  const rounds = view.rounds, x = rounds.map(round => round.round), over = { x, whole: true };
  const [unit, per] = energyScale(rounds.map(round => round.energy_j));
  write("energy-unit", unit);
  const { metric } = view.run, share = metric === "accuracy", y = rounds.map(round => round.accuracy === null ? null : (share ? 100 : 1) * round.accuracy);
  write("chart-metric", share ? "Accuracy, %" : title(metric));
  chart($("chart-accuracy"), { ...over, y, ...(share ? { most: 100 } : {}) }, `${title(metric)} over ${count(x.length, "round")}`);
  chart($("chart-time"), { ...over, y: rounds.map(round => round.round_s), limit: rounds.map(round => round.deadline_s), zero: true }, "Round time by round");
  chart($("chart-energy"), { ...over, y: rounds.map(round => round.energy_j / per), zero: true }, "Energy by round");
}

function about() {
  const lines = view.origins.map(origin => {
    const made = document.createElement("li"), kind = document.createElement("b");
    kind.textContent = origin.truth || "unknown";
    made.append(kind, ` · ${origin.boards ? `${origin.boards.toLocaleString("en-US")} × ` : ""}${origin.entry}${view.run.real ? "" : ", emulated from such figures"}${origin.prior ? `; predictions start from ${origin.prior} ones` : ""}`);
    made.title = origin.source;
    return made;
  });
  $("origins").replaceChildren(...lines);
  const kinds = Object.entries(view.refused).filter(([, many]) => many);
  write("refused", kinds.length ? `Refused telemetry: ${kinds.map(([why, many]) => `${many.toLocaleString("en-US")} ${why}`).join(", ")}.` : "");
  $("about").hidden = !lines.length && !kinds.length;
}

function say(rounds) {
  const last = rounds.at(-1);
  if (last) write("said", `Round ${last.round} is over: ${last.accuracy === null ? "" : `${view.run.metric} ${merit(view.run.metric, last.accuracy)}, `}${duration(last.round_s)}.`);
}

// Below a few boards there is room for the timeline; beside many there is.
function place(boards) {
  const host = $(boards <= FEW_BOARDS ? "left" : "side"), section = $("timeline-section");
  if (section.parentElement !== host) host[boards <= FEW_BOARDS ? "append" : "prepend"](section);
  $("grid").classList.toggle("many", boards > FEW_BOARDS);
}

// One update from the server, measured: what it takes is in the browser's own performance timeline.
function apply(changes, whole) {
  const start = performance.now(), now = seconds();
  for (const key of ["run", "summary", "origins", "refused", "problem"]) if (changes[key] !== null && changes[key] !== undefined) view[key] = changes[key];
  if (whole) { view.rounds = changes.rounds; view.boards = new Map(changes.boards.map(board => [board.name, board])); }
  else { view.rounds.push(...changes.rounds); for (const board of changes.boards) view.boards.set(board.name, board); }
  $("main").hidden = false;
  $("login").hidden = true;
  head();
  if (whole || changes.summary || changes.run) summary();
  changedAgo();
  if (whole) place(changes.boards.length);
  if (whole) tiles.all(changes.boards, now); else tiles.some(changes.boards, now);
  if (whole || changes.rounds.length) charts();
  timeline.update(view.run, view.rounds, view.boards.values());
  if (whole || changes.origins || changes.refused) about();
  if (!whole) say(changes.rounds);
  panel.know(view.run, view.origins);
  if (!begun) { begun = true; panel.begin(now); } else panel.update(changes.boards, now);
  performance.measure(whole ? "board-snapshot" : "board-update", { start, detail: changes.boards.length });
  if (++measures > MEASURES_KEPT) { performance.clearMeasures(); measures = 0; }
}

function follow() {
  stream?.close();
  stream = new EventSource("api/stream");
  const hear = () => { heard = Date.now(); link("on", "connected"); };
  stream.addEventListener("open", hear);
  stream.addEventListener("snapshot", event => { hear(); apply(JSON.parse(event.data), true); });
  stream.addEventListener("changes", event => { hear(); apply(JSON.parse(event.data), false); });
  stream.addEventListener("beat", event => { hear(); ahead = Number(event.data) - Date.now() / 1000; });
  stream.addEventListener("error", () => {
    link("lost", "connection lost, trying again");
    if (stream.readyState === EventSource.CLOSED) setTimeout(enter, 2000);
  });
}

const enter = () => openPage({ main: $("main"), link, follow });

tiles.begin(board => panel.open(board, seconds()));
timeline.begin(board => panel.open(board, seconds()));
let due = 0;
addEventListener("resize", () => { cancelAnimationFrame(due); due = requestAnimationFrame(() => { if (view.run) charts(); }); });
setInterval(() => {
  if (stream && Date.now() - heard > SILENCE_MS) { heard = Date.now(); link("lost", "connection lost, trying again"); follow(); }
  if (!view.run || document.hidden) return;
  changedAgo();
  tiles.tick(seconds());
}, 1000);
enter();

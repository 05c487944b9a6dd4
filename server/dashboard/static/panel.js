// One board's history: opened by a tile, read again when the board has a new round, closed by Esc.
import { chart } from "./charts.js";
import { SIGNS, UNKNOWN, age, clock, duration, energy, number, percent } from "./words.js";
import * as tiles from "./tiles.js";

const $ = id => document.getElementById(id);
const panel = $("panel");
const MOST_ROWS = 300;
let run = null, origins = [];
let name = null, turn = 0, history = null, readAt = 0, readRound = null, opener = null;

function card(title, text, aside = "", wide = false) {
  const box = document.createElement("div"), dt = document.createElement("dt"), dd = document.createElement("dd");
  dt.textContent = title;
  dd.className = "figure";
  dd.textContent = text;
  dd.title = text;
  box.append(dt, dd);
  if (wide) box.className = "wide";
  if (aside) { const more = document.createElement("dd"); more.className = "aside"; more.textContent = aside; box.append(more); }
  return box;
}

// Of which kind this board's figures are: a board is called after its entry in the run's fleet.
function origin(board) {
  const entry = board.name.replace(/-[^-]*$/, ""), match = origins.find(one => one.entry === entry);
  if (!match) return [run?.real ? "real board" : "emulated", run?.state === "finished" ? "source of its figures unknown" : "the source of its figures is shown when the run is over"];
  const how = run?.real ? `reported by ${match.source || "the board"}` : `emulated from ${match.truth} figures${match.source ? ` (${match.source})` : ""}`;
  return [match.truth || "unknown", `${how}${match.prior ? `; predictions start from ${match.prior} ones` : ""}`];
}

function now(board, seconds) {
  $("p-about").textContent = [board.device || "unknown kind", board.round ? `round ${board.round}` : "no round yet",
    board.seen_at_s === null ? "" : `heard ${age(Math.max(0, seconds - board.seen_at_s))}${seconds - board.seen_at_s < 4 ? "" : " ago"}`].filter(Boolean).join(" · ");
  const [label, why] = origin(board);
  $("p-label").textContent = label;
  $("p-label").className = `badge o-${label}`;
  $("p-origin").textContent = why;
  const refused = Object.entries(board.refused ?? {}).filter(([, many]) => many);
  const cards = [
    card("State", `${SIGNS[board.state] ?? ""} ${board.state}`, board.mark && board.mark !== board.state ? `was ${board.mark} in the last round` : ""),
    card("Power", number(board.power_w, 3, "W")), card("Temperature", number(board.temperature_c, 3, "°C")), card("Energy so far", energy(board.energy_j)),
    card("Mode: cores / CPU / GPU / memory", board.mode || UNKNOWN, "", true),
    card("Refused telemetry", refused.length ? refused.map(([why, many]) => `${many} ${why}`).join(", ") : "none", "", true),
  ];
  $("p-now").replaceChildren(...cards);
  $("p-error").hidden = !board.error;
  $("p-error").textContent = `${board.mark ? `${board.mark}: ` : ""}${board.error}`;
}

function cell(row, text, name_ = "") {
  const made = row.insertCell();
  made.textContent = text;
  if (name_) made.className = name_;
}

function table(rounds) {
  const body = document.createElement("tbody");
  for (const round of rounds.slice(-MOST_ROWS).reverse()) {
    const row = body.insertRow();
    cell(row, round.round, "n");
    cell(row, `${SIGNS[round.status] ?? ""} ${round.status}${round.throttled ? ", throttled" : ""}`, round.status === "failed" ? "bad" : round.status === "done" ? "" : "warn");
    cell(row, round.mode || round.error || UNKNOWN);
    cell(row, duration(round.step_s), "n");
    cell(row, duration(round.predicted_step_s), "n");
    cell(row, percent(round.time_error), "n");
    cell(row, number(round.power_w, 3, "W"), "n");
    cell(row, number(round.predicted_power_w, 3, "W"), "n");
    cell(row, percent(round.power_error), "n");
    cell(row, energy(round.energy_j), "n");
    cell(row, round.temperature_c === null ? UNKNOWN : `${number(round.temperature_c, 2)} °C`, "n");
  }
  body.id = "p-rounds";
  $("p-rounds").replaceWith(body);
}

// What the board's standing inference service did in the last round that it served in.
function service(rounds) {
  const last = rounds.filter(round => round.requests !== null && round.requests !== undefined).at(-1);
  $("p-service").hidden = !last;
  if (!last) return;
  const held = `99 % of ${number(last.requests, 3)} requests within ${duration(last.latency_p99_s)} of ${duration(last.latency_budget_s)}`;
  $("p-service").textContent = `Service in round ${last.round}: ${held}, ${last.late_requests} late or dropped; ${number(last.train_steps_per_s, 3)} training steps per second.`;
}

// What the board lowered in its last round to fit into its memory.
function memory(rounds) {
  const last = rounds.at(-1);
  $("p-memory").hidden = !last?.lowered;
  if (!last?.lowered) return;
  const peak = last.memory_mb ? `; peak ${number(last.memory_mb, 3)} MB` : "";
  $("p-memory").textContent = `Reduced to fit into memory in round ${last.round}: ${last.lowered}${peak}.`;
}

function charts() {
  if (!history) return;
  const { curve, rounds, board } = history, unix = history.clock === "unix";
  const time = unix ? { xText: clock } : { xUnit: "s" };
  chart($("p-power"), { x: curve.at_s, span: curve.span_s, y: curve.power_w, zero: true, ...time }, `Power of ${board.name} over time`);
  chart($("p-temperature"), { x: curve.at_s, span: curve.span_s, y: curve.temperature_c, ...time }, `Temperature of ${board.name} over time`);
  const x = rounds.map(round => round.round), small = Math.max(0, ...rounds.map(round => round.step_s ?? 0)) < 1;
  const per = small ? 1e-3 : 1, scaled = key => rounds.map(round => round[key] === null ? null : round[key] / per);
  $("p-step-unit").textContent = small ? "ms" : "s";
  chart($("p-step"), { x, y: scaled("step_s"), second: scaled("predicted_step_s"), zero: true, whole: true }, "Measured and predicted step time in each round");
  chart($("p-watts"), { x, y: rounds.map(round => round.power_w), second: rounds.map(round => round.predicted_power_w), zero: true, whole: true }, "Measured and predicted power while training in each round");
}

function events(lines, unix) {
  const items = lines.slice(-100).reverse().map(line => {
    const made = document.createElement("li");
    made.textContent = `${unix ? clock(line.at_s) : duration(line.at_s)} · round ${line.round} · ${line.kind}: ${line.message}`;
    return made;
  });
  if (!items.length) { const made = document.createElement("li"); made.className = "soft"; made.textContent = "none"; items.push(made); }
  $("p-events").replaceChildren(...items);
}

async function read(seconds) {
  const mine = ++turn, wanted = name;
  readAt = seconds;
  readRound = tiles.board(wanted)?.told_s ?? null;
  const answer = await fetch(`api/boards/${encodeURIComponent(wanted)}`);
  if (mine !== turn || wanted !== name) return;
  if (!answer.ok) { $("p-about").textContent = "No data of this board."; return; }
  history = await answer.json();
  if (mine !== turn || wanted !== name) return;
  $("p-curve").textContent = history.sampled ? "" : "(from round reports; no samples)";
  table(history.rounds);
  service(history.rounds);
  memory(history.rounds);
  events(history.events, history.clock === "unix");
  charts();
  panel.dataset.read = wanted;
}

export function open(board, seconds) {
  if (name) tiles.mark(name, false);
  opener ??= document.activeElement;
  name = board;
  history = null;
  delete panel.dataset.read;
  panel.hidden = false;
  panel.scrollTop = 0;
  $("p-name").textContent = board;
  tiles.mark(board, true);
  const shown = tiles.board(board);
  if (shown) now(shown, seconds);
  for (const id of ["p-power", "p-temperature", "p-step", "p-watts"]) $(id).replaceChildren();
  $("p-rounds").replaceChildren();
  $("p-service").hidden = true;
  $("p-events").replaceChildren();
  // Its own address, so that it can be opened again.
  window.history.replaceState(null, "", `#board=${encodeURIComponent(board)}`);
  $("p-name").focus({ preventScroll: true });
  read(seconds).catch(() => {});
}

export function close() {
  if (!name) return;
  const was = name, back = opener;
  tiles.mark(was, false);
  name = opener = history = null;
  panel.hidden = true;
  window.history.replaceState(null, "", location.pathname);
  if (back?.isConnected && back !== document.body && !back.closest?.(".tile")) back.focus();
  else tiles.focus(was);
}

// Called with every update: the head at once, the curves when there is a new round, or live samples every few seconds.
export function update(changed, seconds) {
  if (!name) return;
  const changedBoard = changed.find(board => board.name === name);
  if (!changedBoard) return;
  now(changedBoard, seconds);
  if (changedBoard.told_s !== readRound || (changedBoard.seen_at_s !== null && seconds - readAt > 5)) read(seconds).catch(() => {});
}

export function know(run_, origins_) { run = run_; origins = origins_; }

export function begin(seconds) {
  $("p-close").addEventListener("click", close);
  document.addEventListener("keydown", event => { if (event.key === "Escape" && name) { event.preventDefault(); close(); } });
  let due = 0;
  addEventListener("resize", () => { cancelAnimationFrame(due); due = requestAnimationFrame(charts); });
  const asked = new URLSearchParams(location.hash.slice(1)).get("board");
  if (asked && tiles.board(asked)) open(asked, seconds);
}

// The fleet's grid: one tile per board; an update touches only what is written differently, never the layout around it.
import { SIGNS, UNKNOWN, age, duration, number, percent } from "./words.js";

const grid = document.getElementById("grid"), none = document.getElementById("none"), counted = document.getElementById("counted");
const search = document.getElementById("search"), kind = document.getElementById("kind"), state = document.getElementById("state");
const tiles = new Map();
let current = null, onOpen = () => {};

function element(tag, name, parent) {
  const made = document.createElement(tag);
  made.className = name;
  parent.append(made);
  return made;
}

function make(board) {
  const item = document.createElement("li"), root = element("button", "tile", item);
  root.type = "button";
  root.tabIndex = -1;
  root.dataset.board = board.name;
  root.setAttribute("aria-expanded", "false");
  const parts = { item, root, shown: {} };
  parts.name = element("span", "name", root);
  for (const names of [["sign", "age"], ["watts", "heat", "kind"], ["off", "delay", "room"]]) {
    const row = element("span", names[0] === "off" ? "row facts" : "row", root);
    for (const name of names) parts[name] = element("span", name, row);
  }
  const meter = element("span", "meter", root);
  meter.setAttribute("aria-hidden", "true");
  parts.meter = element("i", "", meter);
  parts.set = element("span", "set", root);
  parts.name.textContent = board.name;
  parts.root.title = board.name;
  return parts;
}

// A mode in whole MHz, which is enough to tell modes apart at a glance.
const short = mode => mode.replace(/\d+\.\d+/g, found => String(Math.round(Number(found))));

// What a tile says; compared with what it said, so that unchanged text is not written again.
function write(tile, name, text) {
  if (tile.shown[name] === text) return;
  tile.shown[name] = text;
  tile[name].textContent = text;
}

// From these shares on, a figure is marked: a prediction off by a tenth, and memory that is nearly full.
const OFF = 0.1, FULL = 0.9;

// How far the worse prediction was off, the latency of requests and the memory of the last round; empty if not known.
function facts(tile, board) {
  const errors = [["time", board.time_error], ["power", board.power_error]].filter(([, error]) => error !== null && error !== undefined);
  const worst = Math.max(0, ...errors.map(([, error]) => error));
  fact(tile, "off", errors.length ? `off ${percent(worst, 0)}` : "", worst > OFF,
    `prediction off: ${errors.map(([name, error]) => `${name} ${percent(error)}`).join(", ")}`);
  const late = board.latency_p95_s > board.latency_budget_s;
  fact(tile, "delay", board.latency_p95_s ? `p95 ${number(board.latency_p95_s, 2, "s")}` : "", late,
    `95 % of the requests answered within ${duration(board.latency_p95_s)}, budget ${duration(board.latency_budget_s)}`);
  const share = board.memory_mb && board.memory_limit_mb ? board.memory_mb / board.memory_limit_mb : 0;
  fact(tile, "room", share ? `mem ${percent(share, 0)}` : "", share > FULL,
    `peak memory ${number(board.memory_mb, 4, "MB")} of ${number(board.memory_limit_mb, 4, "MB")}`);
}

function fact(tile, name, text, warns, title) {
  write(tile, name, text);
  tile[name].title = text ? title : "";
  tile[name].classList.toggle("warn", Boolean(text) && warns);
}

function draw(tile, board, now) {
  tile.board = board;
  write(tile, "kind", board.device || "unknown kind");
  const trouble = board.mark && board.mark !== board.state ? ` · was ${board.mark}` : "";
  write(tile, "sign", `${SIGNS[board.state] ?? "·"} ${board.state}${trouble}`);
  write(tile, "watts", number(board.power_w, 3, "W"));
  write(tile, "heat", board.temperature_c === null ? "" : `${number(board.temperature_c, 2)} °C`);
  write(tile, "set", ["failed", "left-out", "offline"].includes(board.state) ? board.error || short(board.mode) || UNKNOWN : short(board.mode) || "no mode yet");
  const tone = `tile s-${board.state}${board.mark ? ` marked m-${board.mark}` : ""}`;
  if (tile.shown.tone !== tone) { tile.root.className = tone; tile.shown.tone = tone; }
  facts(tile, board);
  const share = (board.progress ?? 0).toFixed(2);
  if (tile.shown.share !== share) { tile.meter.style.transform = `scaleX(${share})`; tile.shown.share = share; }
  older(tile, now);
}

function older(tile, now) {
  const seen = tile.board.seen_at_s;
  write(tile, "age", seen === null ? (tile.board.round ? `round ${tile.board.round}` : "") : age(Math.max(0, now - seen)));
}

export function all(boards, now) {
  const names = new Set(boards.map(board => board.name));
  for (const [name, tile] of tiles) if (!names.has(name)) { tile.item.remove(); tiles.delete(name); }
  const fresh = document.createDocumentFragment();
  for (const board of boards) {
    const tile = tiles.get(board.name) ?? make(board);
    if (!tiles.has(board.name)) { tiles.set(board.name, tile); fresh.append(tile.item); }
    draw(tile, board, now);
  }
  grid.append(fresh);
  choices();
  filter();
}

export function some(boards, now) {
  let listed = false;
  for (const board of boards) {
    const tile = tiles.get(board.name);
    if (!tile) continue;
    listed ||= tile.board.device !== board.device || tile.board.state !== board.state || tile.board.mark !== board.mark;
    draw(tile, board, now);
  }
  if (listed) { choices(); filter(); }
}

export function tick(now) {
  for (const tile of tiles.values()) older(tile, now);
}

export const board = name => tiles.get(name)?.board ?? null;

function fill(select, every, found) {
  const listing = found.join("\n");
  if (select.dataset.told === listing) return;
  select.dataset.told = listing;
  const chosen = select.value;
  const options = [["", every], ...found.map(value => [value, value])].map(([value, text]) => new Option(text, value));
  select.replaceChildren(...options);
  select.value = found.includes(chosen) ? chosen : "";
}

function choices() {
  const kinds = new Set(), states = new Set();
  for (const tile of tiles.values()) {
    if (tile.board.device) kinds.add(tile.board.device);
    states.add(tile.board.state);
    if (tile.board.mark) states.add(tile.board.mark);
  }
  if (state.value) states.add(state.value);
  fill(kind, "every kind", [...kinds].sort());
  fill(state, "every state", [...states].sort());
}

function filter() {
  const text = search.value.trim().toLowerCase();
  let shown = 0;
  for (const [name, tile] of tiles) {
    const shownBoard = tile.board;
    const fits = name.toLowerCase().includes(text) && (!kind.value || shownBoard.device === kind.value)
      && (!state.value || shownBoard.state === state.value || shownBoard.mark === state.value);
    if (tile.item.hidden === fits) tile.item.hidden = !fits;
    shown += fits;
  }
  const every = tiles.size.toLocaleString("en-US"), said = shown === tiles.size ? every : `${shown.toLocaleString("en-US")} of ${every}`;
  if (counted.textContent !== said) counted.textContent = said;
  none.hidden = shown > 0;
  none.textContent = tiles.size ? "No board matches." : "No board has reported yet.";
  if (!current || tiles.get(current)?.item.hidden !== false) {
    const first = [...tiles.values()].find(tile => !tile.item.hidden);
    if (first) aim(first);
  }
}

// One tile is in the order of the Tab key; the arrow keys choose which.
function aim(tile) {
  const before = tiles.get(current);
  if (before) before.root.tabIndex = -1;
  tile.root.tabIndex = 0;
  current = tile.board.name;
}

function columns() {
  return getComputedStyle(grid).gridTemplateColumns.split(" ").length;
}

function move(event) {
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns(), ArrowDown: columns(), Home: -Infinity, End: Infinity }[event.key];
  if (steps === undefined || !event.target.dataset.board) return;
  event.preventDefault();
  const shown = [...tiles.values()].filter(tile => !tile.item.hidden);
  const place = shown.findIndex(tile => tile.root === event.target), wanted = place + steps;
  const next = Math.abs(steps) === Infinity || Math.abs(steps) === 1
    ? Math.min(shown.length - 1, Math.max(0, wanted)) : wanted >= 0 && wanted < shown.length ? wanted : place;
  aim(shown[next]);
  shown[next].root.focus();
}

export function focus(name) {
  const tile = tiles.get(name);
  if (tile && !tile.item.hidden) { aim(tile); tile.root.focus(); }
}

export function mark(name, open) {
  tiles.get(name)?.root.setAttribute("aria-expanded", String(open));
}

export function begin(open) {
  onOpen = open;
  grid.addEventListener("keydown", move);
  grid.addEventListener("click", event => {
    const root = event.target.closest("button.tile");
    if (root) { aim(tiles.get(root.dataset.board)); onOpen(root.dataset.board); }
  });
  for (const control of [search, kind, state]) control.addEventListener("input", filter);
}

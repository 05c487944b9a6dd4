// A round's timeline: a lane per board, only those in sight exist. Of the round that goes on it shows how far each is.
import { tickText, ticks } from "./charts.js";
import { SIGNS, count, duration } from "./words.js";

const LANE = 20, SPARE = 4;
const host = document.getElementById("timeline"), rows = document.getElementById("timeline-rows");
const axis = document.getElementById("timeline-axis"), none = document.getElementById("timeline-none");
const about = document.getElementById("timeline-about"), legend = document.getElementById("timeline-legend");
const select = document.getElementById("round"), earlier = document.getElementById("earlier"), later = document.getElementById("later");
const RANK = { failed: 0, late: 1, cancelled: 2 }, GOING = "going";
// ``now``: the round that goes on and its boards, as they tell; ``chosen`` null: the newest is followed.
const sight = { top: 0, height: 0 };
let shown = null, bars = [], points = [], now = null, listed = "", chosen = null, onOpen = () => {}, asked = 0;

const busy = bar => bar.start_s + bar.down_s + bar.work_s + bar.up_s;

function part(track, name, from, span, whole) {
  if (span <= 0) return from;
  const made = document.createElement("i");
  made.className = name;
  made.style.left = `${100 * from / whole}%`;
  made.style.width = `${100 * span / whole}%`;
  track.append(made);
  return from + span;
}

function lane(bar, place) {
  const made = document.createElement("div"), who = document.createElement("span"), track = document.createElement("span");
  made.className = `lane l-${bar.status}`;
  made.setAttribute("role", "listitem");
  made.style.top = `${place * LANE}px`;
  made.dataset.board = bar.board;
  who.className = "who";
  who.textContent = bar.status === "done" ? bar.board : `${SIGNS[bar.status] ?? ""} ${bar.board}`;
  track.className = "track";
  const whole = Math.max(shown.round_s, shown.deadline_s ?? 0) || 1;
  if (bar.status === "failed") {
    const why = document.createElement("b");
    why.textContent = `failed${bar.error ? `: ${bar.error}` : ""}`;
    track.append(why);
  } else {
    let at = bar.start_s;
    for (const [name, span] of [["fetch", bar.down_s], ["work", bar.work_s], ["send", bar.up_s], ["wait", bar.wait_s]]) at = part(track, name, at, Math.min(span, Math.max(0, whole - at)), whole);
    if (bar.status !== "done") {
      const why = document.createElement("b");
      why.textContent = bar.status;
      why.style.right = "2px";
      track.append(why);
    }
  }
  if (shown.deadline_s) {
    const limit = document.createElement("u");
    limit.style.left = `calc(${100 * shown.deadline_s / whole}% - 1px)`;
    track.append(limit);
  }
  made.title = bar.status === "failed" ? `${bar.board}: failed: ${bar.error}`
    : `${bar.board}: ${bar.status}; fetch ${duration(bar.down_s)}, work ${duration(bar.work_s)}, send ${duration(bar.up_s)}, wait ${duration(bar.wait_s)}`;
  made.setAttribute("aria-label", made.title);
  made.append(who, track);
  return made;
}

function goingLane(board, place) {
  const made = document.createElement("div"), who = document.createElement("span"), track = document.createElement("span"), label = document.createElement("b");
  made.className = `lane g-${board.state}${board.state === "failed" ? " l-failed" : ""}`;
  made.setAttribute("role", "listitem");
  made.style.top = `${place * LANE}px`;
  made.dataset.board = board.name;
  who.className = "who";
  who.textContent = `${SIGNS[board.state] ?? "·"} ${board.name}`;
  track.className = "track open";
  part(track, "work", 0, board.progress ?? 0, 1);
  const steps = board.steps ? `${(board.steps_done ?? 0).toLocaleString("en-US")} of ${board.steps.toLocaleString("en-US")}` : "";
  label.textContent = board.state === "failed" ? `failed${board.error ? `: ${board.error}` : ""}` : [board.state, steps].filter(Boolean).join(" · ");
  made.title = `${board.name}: ${label.textContent}${steps && board.state !== "failed" ? " steps" : ""}`;
  made.setAttribute("aria-label", made.title);
  made.append(who, track, label);
  return made;
}

// Where the list is scrolled to and how high it is are remembered: asking would lay the whole page out at every update.
function inSight() {
  const first = Math.max(0, Math.floor(sight.top / LANE) - SPARE);
  const end = Math.min(bars.length, Math.ceil((sight.top + sight.height) / LANE) + SPARE);
  rows.replaceChildren(...bars.slice(first, end).map((bar, i) => (shown ? lane : goingLane)(bar, first + i)));
}

function scale() {
  const whole = Math.max(shown.round_s, shown.deadline_s ?? 0) || 1, { step, found } = ticks(0, whole, 4);
  axis.replaceChildren(...found.map((value, i) => {
    const made = document.createElement("span");
    made.style.left = `${100 * value / whole}%`;
    made.textContent = tickText(value, step) + (i === found.length - 1 ? " s" : "");
    return made;
  }));
}

function lay(found, empty) {
  bars = found;
  rows.style.height = `${bars.length * LANE}px`;
  host.hidden = !bars.length;
  legend.hidden = axis.hidden = !bars.length || !shown;
  about.hidden = !bars.length || Boolean(shown);
  none.hidden = bars.length > 0;
  none.textContent = empty;
  if (bars.length) inSight();
}

function draw(round) {
  shown = round;
  lay([...round.bars].sort((a, b) => (RANK[a.status] ?? 3) - (RANK[b.status] ?? 3) || busy(b) - busy(a)), "This round has no boards.");
  if (bars.length) scale();
}

// In the fleet's order, so that lanes do not jump about while boards work; trouble first, and what is done last.
function drawGoing() {
  ++asked;
  shown = null;
  const rank = board => board.state === "failed" ? 0 : board.state === "done" ? 2 : 1;
  const done = now.boards.filter(board => board.state === "done").length;
  about.textContent = `Round ${now.round} is running: ${count(now.boards.length, "board has", "boards have")} reported, ${done.toLocaleString("en-US")} done. Bars: share of steps.`;
  lay([...now.boards].sort((a, b) => rank(a) - rank(b)), "");
}

async function load(number) {
  const turn = ++asked;
  if (!bars.length) none.textContent = "Loading the round.";
  const answer = await fetch(`api/rounds/${number}`);
  if (turn === asked && answer.ok) draw(await answer.json());
}

// What stands in the list's place ``at``; the first one is the newest, which is followed from then on.
function show(at) {
  select.selectedIndex = at;
  const value = select.value;
  chosen = at === 0 ? null : Number(value);
  earlier.disabled = at >= select.options.length - 1;
  later.disabled = at <= 0;
  if (value === GOING) drawGoing();
  else load(Number(value)).catch(() => {});
}

function list() {
  const wanted = `${now?.round ?? ""}/${points.length}/${points.at(-1)?.round ?? 0}`;
  if (wanted === listed) return false;
  listed = wanted;
  const options = points.toReversed().map(point => new Option(`round ${point.round}`, point.round));
  if (now) options.unshift(new Option(`round ${now.round}, running`, GOING));
  select.replaceChildren(...(options.length ? options : [new Option("no round", 0)]));
  if (!options.length) { earlier.disabled = later.disabled = true; shown = null; lay([], "No round has started yet."); return true; }
  const kept = options.findIndex(option => option.value === String(chosen));
  if (kept > 0) { select.selectedIndex = kept; earlier.disabled = kept >= options.length - 1; later.disabled = false; }
  else show(0);
  return true;
}

export function update(run, rounds, boards) {
  const last = rounds.at(-1)?.round ?? 0;
  points = rounds;
  const found = run.state === "going" ? [...boards].filter(board => board.round > last && board.state !== "offline") : [];
  now = found.length ? { round: Math.max(...found.map(board => board.round)), boards: found } : null;
  if (!list() && now && chosen === null) drawGoing();
}

export function begin(open) {
  onOpen = open;
  select.addEventListener("change", () => show(select.selectedIndex));
  earlier.addEventListener("click", () => show(select.selectedIndex + 1));
  later.addEventListener("click", () => show(select.selectedIndex - 1));
  let due = false;
  host.addEventListener("scroll", () => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => { due = false; sight.top = host.scrollTop; inSight(); });
  }, { passive: true });
  new ResizeObserver(([seen]) => { sight.height = seen.contentRect.height; if (bars.length) inSight(); }).observe(host);
  host.addEventListener("click", event => { const found = event.target.closest(".lane"); if (found) onOpen(found.dataset.board); });
}

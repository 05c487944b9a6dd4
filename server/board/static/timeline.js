// One round's timeline: a lane per board, trouble first, then the longest; only the lanes in sight exist.
import { tickText, ticks } from "./charts.js";
import { SIGNS, duration } from "./words.js";

const LANE = 20, SPARE = 4;
const host = document.getElementById("timeline"), rows = document.getElementById("timeline-rows");
const axis = document.getElementById("timeline-axis"), none = document.getElementById("timeline-none");
const select = document.getElementById("round"), earlier = document.getElementById("earlier"), later = document.getElementById("later");
const RANK = { failed: 0, late: 1, cancelled: 2 };
let shown = null, bars = [], latest = 0, chosen = null, onOpen = () => {}, asked = 0;

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

function inSight() {
  const first = Math.max(0, Math.floor(host.scrollTop / LANE) - SPARE);
  const end = Math.min(bars.length, Math.ceil((host.scrollTop + host.clientHeight) / LANE) + SPARE);
  rows.replaceChildren(...bars.slice(first, end).map((bar, i) => lane(bar, first + i)));
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

function draw(round) {
  shown = round;
  bars = [...round.bars].sort((a, b) => (RANK[a.status] ?? 3) - (RANK[b.status] ?? 3) || busy(b) - busy(a));
  rows.style.height = `${bars.length * LANE}px`;
  host.hidden = axis.hidden = !bars.length;
  none.hidden = bars.length > 0;
  none.textContent = "This round has no boards.";
  if (bars.length) { inSight(); scale(); }
}

async function load(number) {
  const turn = ++asked;
  const answer = await fetch(`/api/rounds/${number}`);
  if (turn === asked && answer.ok) draw(await answer.json());
}

function choose(number, following) {
  chosen = following ? null : number;
  select.value = String(number);
  const at = select.selectedIndex;
  earlier.disabled = at >= select.options.length - 1;
  later.disabled = at <= 0;
  load(number).catch(() => {});
}

// The newest round is followed until another one is chosen.
export function rounds(points) {
  const last = points.at(-1)?.round ?? 0;
  if (last !== latest || select.options.length !== points.length) {
    select.replaceChildren(...points.toReversed().map(point => new Option(`round ${point.round}`, point.round)));
    latest = last;
    host.hidden = axis.hidden = !last;
    none.hidden = last > 0;
    if (!last) { none.textContent = "No round is over yet."; select.replaceChildren(new Option("no round", 0)); earlier.disabled = later.disabled = true; return; }
    const kept = points.some(point => point.round === chosen) ? chosen : null;
    if (kept === null) choose(last, true);
    else { select.value = String(kept); later.disabled = false; }
  }
}

export function begin(open) {
  onOpen = open;
  const step = by => { select.selectedIndex += by; choose(Number(select.value), select.selectedIndex === 0); };
  select.addEventListener("change", () => choose(Number(select.value), select.selectedIndex === 0));
  earlier.addEventListener("click", () => step(1));
  later.addEventListener("click", () => step(-1));
  let due = false;
  host.addEventListener("scroll", () => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => { due = false; inSight(); });
  }, { passive: true });
  new ResizeObserver(() => { if (shown) inSight(); }).observe(host);
  host.addEventListener("click", event => { const found = event.target.closest(".lane"); if (found) onOpen(found.dataset.board); });
}

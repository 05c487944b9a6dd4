// Small charts as SVG: axes with round numbers, a line or steps, a dashed second line; drawn anew only when data change.
const SVG = "http://www.w3.org/2000/svg";
const MOST_POINTS = 400;

export function node(tag, attributes, parent, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  parent?.append(made);
  return made;
}

export function ticks(low, high, about) {
  const span = high - low || 1, rough = span / about, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(m => m * power).find(s => s >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9) + 0; i * step <= high + 1e-9 * span; i++) found.push(i * step + 0);
  return { step, found };
}

export function tickText(value, step) {
  const places = Math.min(6, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
  return value.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places }).replace("-", "−");
}

const real = value => value !== null && value !== undefined && Number.isFinite(value);

function thinned(xs, ys) {
  const every = Math.max(1, Math.ceil(xs.length / MOST_POINTS)), kept = [];
  for (let i = 0; i < xs.length; i += every) kept.push(i);
  if (kept.length && kept.at(-1) !== xs.length - 1) kept.push(xs.length - 1);
  return kept.map(i => [xs[i], ys[i]]);
}

// A gap where a value is not known.
function path(points, X, Y) {
  let text = "", pen = false;
  for (const [x, y] of points) {
    if (real(y)) text += `${pen ? "L" : "M"}${X(x).toFixed(1)} ${Y(y).toFixed(1)}`;
    pen = real(y);
  }
  return text;
}

function stepPath(data, X, Y, floor) {
  let line = "", area = "", end = null;
  data.x.forEach((x, i) => {
    const y = data.y[i], to = x + data.span[i];
    if (!real(y)) { end = null; return; }
    const joined = end !== null && Math.abs(X(end) - X(x)) < 1;
    line += `${joined ? "L" : "M"}${X(x).toFixed(1)} ${Y(y).toFixed(1)}H${X(to).toFixed(1)}`;
    area += `M${X(x).toFixed(1)} ${floor}V${Y(y).toFixed(1)}H${X(to).toFixed(1)}V${floor}Z`;
    end = to;
  });
  return [line, area];
}

// data: {x, y, span?, second?, limit?, zero?, most?, whole?, xUnit?, xText?}; ``whole``: x are numbers of rounds.
export function chart(host, data, label) {
  const width = host.clientWidth, height = host.clientHeight;
  if (!width) return;
  const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, null);
  const values = [...data.y, ...(data.second ?? []), ...(data.limit ?? [])].filter(real);
  if (!values.length || !data.x.length) {
    node("text", { x: width / 2, y: height / 2, "text-anchor": "middle", class: "blank" }, svg, "nothing yet");
    host.replaceChildren(svg);
    return;
  }
  let low = Math.min(...values), high = Math.max(...values);
  if (data.zero) low = Math.min(0, low);
  if (high - low < 1e-9 * Math.max(1, Math.abs(high))) { high += Math.abs(high) * 0.1 || 1; if (!data.zero) low -= Math.abs(low) * 0.1 || 1; }
  const upTicks = ticks(low, high, height > 140 ? 5 : 3);
  low = Math.min(low, Math.floor(low / upTicks.step + 1e-9) * upTicks.step);
  high = Math.max(high, Math.ceil(high / upTicks.step - 1e-9) * upTicks.step);
  if (data.most) high = Math.min(high, Math.max(data.most, ...values));
  const marks = ticks(low, high, (high - low) / upTicks.step + 0.01).found;
  const texts = marks.map(value => tickText(value, upTicks.step));
  const left = 8 + 6.3 * Math.max(...texts.map(text => text.length)), right = 8, top = 9, bottom = 19;
  const x0 = data.x[0], x1 = data.x.at(-1) + (data.span ? data.span.at(-1) : 0);
  const X = x => x1 > x0 ? left + (x - x0) / (x1 - x0) * (width - left - right) : (left + width - right) / 2;
  const Y = y => top + (high - y) / (high - low) * (height - top - bottom);
  marks.forEach((value, i) => {
    node("line", { x1: left, x2: width - right, y1: Y(value), y2: Y(value), class: "axis" }, svg);
    node("text", { x: left - 5, y: Y(value) + 4, "text-anchor": "end" }, svg, texts[i]);
  });
  const across = ticks(x0, x1, Math.max(2, Math.floor((width - left) / 85)));
  const whole = data.whole ? across.found.filter(Number.isInteger) : across.found;
  whole.forEach((value, i) => {
    const plain = data.xText ? data.xText(value) : tickText(value, data.whole ? 1 : across.step), last = i === whole.length - 1;
    const text = last && data.whole ? `round ${plain}` : last && data.xUnit ? `${plain} ${data.xUnit}` : plain;
    const near = X(value) > width - 44;
    node("text", { x: near ? width - right : X(value), y: height - 4, "text-anchor": near ? "end" : "middle" }, svg, text);
  });
  if (data.limit) node("path", { d: path(thinned(data.x, data.limit), X, Y), class: "limit" }, svg);
  if (data.span) {
    const [line, area] = stepPath(data, X, Y, height - bottom);
    if (data.zero) node("path", { d: area, class: "area" }, svg);
    node("path", { d: line, class: "line" }, svg);
  } else {
    const points = thinned(data.x, data.y);
    if (data.second) node("path", { d: path(thinned(data.x, data.second), X, Y), class: "second" }, svg);
    node("path", { d: path(points, X, Y), class: "line" }, svg);
    const shown = points.filter(([, y]) => real(y));
    if (shown.length <= 40) for (const [x, y] of shown) node("circle", { cx: X(x), cy: Y(y), r: 2.2, class: "dots" }, svg);
  }
  host.replaceChildren(svg);
}

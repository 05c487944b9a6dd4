// How figures are written: SI prefixes, durations, shares, ages; a dash for what is not known. As in the reports.
export const UNKNOWN = "–";

const known = value => value !== null && value !== undefined && Number.isFinite(value);

export function number(value, digits = 3, unit = "") {
  if (!known(value)) return UNKNOWN;
  const magnitude = value ? Math.floor(Math.log10(Math.abs(value))) : 0;
  const places = Math.min(20, Math.max(0, digits - 1 - magnitude));
  const text = value.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places }).replace("-", "−");
  return unit ? `${text} ${unit}` : text;
}

export function energyScale(values) {
  const largest = Math.max(0, ...values.filter(known).map(Math.abs));
  return [["J", 1], ["kJ", 1e3]].find(([, per]) => largest < 1e3 * per) ?? ["MJ", 1e6];
}

export function energy(joules) {
  if (!known(joules)) return UNKNOWN;
  const [unit, per] = energyScale([joules]);
  return number(joules / per, 3, unit);
}

export function duration(seconds) {
  if (!known(seconds)) return UNKNOWN;
  if (seconds < 120) return number(seconds, 3, "s");
  const minutes = Math.floor(Math.round(seconds) / 60), hours = Math.floor(minutes / 60);
  return hours ? `${hours} h ${minutes % 60} min` : `${minutes} min ${Math.round(seconds) % 60} s`;
}

export function percent(value, digits = 1) {
  return known(value) ? `${(100 * value).toFixed(digits)} %`.replace("-", "−") : UNKNOWN;
}

// A task's figure of merit: an accuracy in percent, a metric of the task's own as a number.
export function merit(metric, value) {
  return metric === "accuracy" ? percent(value) : number(value);
}

// In steps that grow, so that a text changes only when it says something new.
export function age(seconds) {
  if (!known(seconds)) return "";
  if (seconds < 4) return "now";
  if (seconds < 60) return `${Math.floor(seconds / 2) * 2} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

export function clock(unixSeconds) {
  return new Date(1000 * unixSeconds).toLocaleTimeString("en-GB");
}

export const count = (many, one, several = `${one}s`) => `${many.toLocaleString("en-US")} ${many === 1 ? one : several}`;

// A sign beside the word, so that no state is told by its colour alone.
export const SIGNS = {
  unknown: "·", idle: "○", resting: "○", fetching: "↓", probing: "◇", training: "▶", sending: "↑",
  done: "✓", late: "!", failed: "✕", cancelled: "⊘", "left-out": "⊝", offline: "⌀",
};

// Numbers and times as people read them.

export const dash = "–";

export function num(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return dash;
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(Math.min(digits - 1, 2));
  return String(Number(value.toPrecision(digits)));
}

export const signed = (value, digits = 3) =>
  value === null || value === undefined ? dash : `${value > 0 ? "+" : value < 0 ? "−" : ""}${num(Math.abs(value), digits)}`;

export function age(seconds) {
  if (seconds > 1e8) return dash;
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= size) return `${Math.round(seconds / size)} ${unit}`;
  }
  return `${Math.round(seconds)} s`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return dash;
  if (seconds > 0 && seconds < 0.1) return `${num(1000 * seconds, 2)} ms`;
  if (seconds < 60) return `${num(seconds, 3)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export const percent = (share) => (!Number.isFinite(share) ? dash : share > 0 && share < 0.001 ? "<0.1%" : `${(100 * share).toFixed(1)}%`);
export const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
export const spaced = (name) => name.replaceAll("_", " ");

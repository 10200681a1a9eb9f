// Curves: several series over steps or time, smoothed or not, with intervals, marks for findings, and a cursor that
// pointer and arrow keys move. Colours are classes, `c0` to `c7`.

import { h, svg, replace } from "./dom.js";
import { num } from "./format.js";

const LEFT = 50, RIGHT = 12, TOP = 14, BOTTOM = 24;

export function smooth(values, weight) {
  if (!weight) return values;
  let mean = 0, count = 0;
  return values.map((value) => {
    if (value === null) return null;
    mean = weight * mean + (1 - weight) * value;
    count += 1;
    return mean / (1 - weight ** count);
  });
}

export function ticks(low, high, most) {
  const span = high - low || Math.abs(high) || 1;
  const raw = span / Math.max(1, most);
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * size).find((one) => one >= raw);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

function range(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value === null || value === undefined) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low > high ? null : [low, high];
}

function trace(points) {
  let text = "", drawing = false;
  for (const [x, y] of points) {
    if (y === null) { drawing = false; continue; }
    text += `${drawing ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    drawing = true;
  }
  return text;
}

// series: [{label, colour, x, y, low, high, dots, dashed}]; events: [{x, label, kind}]
export function lineChart({ label, height = 200 }) {
  const tip = h("div", { class: "tip", role: "status" });
  const box = h("div", { class: "chart" });
  let data = { series: [], events: [], weight: 0, between: null, xName: "step" };
  let width = 0, scale = null, cursor = null, inView = true, stale = false;

  function draw() {
    if (width < 60) return;
    stale = false;
    const { series, events, weight, between } = data;
    const lines = series.map((one) => ({ ...one, line: one.dots ? one.y : smooth(one.y, weight) }));
    const across = range(lines.flatMap((one) => one.x)) || [0, 1];
    const spread = range(lines.flatMap((one) => [...one.y, ...(one.low || []), ...(one.high || [])]));
    let [low, high] = between || spread || [0, 1];
    if (low === high) { const pad = Math.abs(low) * 0.1 || 1; low -= pad; high += pad; }
    const [first, last] = across[0] === across[1] ? [across[0] - 1, across[1] + 1] : across;
    const px = (x) => LEFT + ((x - first) / (last - first)) * (width - LEFT - RIGHT);
    const py = (y) => TOP + (1 - (y - low) / (high - low)) * (height - TOP - BOTTOM);
    scale = { px, py, lines, first, last };
    replace(box, svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": describe(), tabindex: 0 },
      ticks(low, high, height / 48).map((y) => [
        svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: py(y), y2: py(y) }),
        svg("text", { class: "tick", x: LEFT - 8, y: py(y) + 4, "text-anchor": "end" }, num(y, 3))]),
      ticks(first, last, width / 90).map((x) =>
        svg("text", { class: "tick", x: px(x), y: height - 6, "text-anchor": "middle" }, data.xName === "time" ? hours(x) : num(x, 4))),
      events.filter((one) => one.x >= first && one.x <= last).map((one) => svg("g", { class: `event ${one.kind}` },
        svg("line", { x1: px(one.x), x2: px(one.x), y1: TOP, y2: height - BOTTOM }),
        svg("path", { d: `M${px(one.x) - 5} ${TOP - 8}h10l-5 8z` }), svg("title", null, one.label))),
      lines.map((one) => svg("g", { class: `series ${one.colour}${one.dashed ? " dashed" : ""}` },
        one.low && one.high && one.x.map((x, i) => one.low[i] !== null && one.high[i] !== null &&
          svg("line", { class: "whisker", x1: px(x), x2: px(x), y1: py(one.low[i]), y2: py(one.high[i]) })),
        weight > 0 && !one.dots && svg("path", { class: "raw", d: trace(one.x.map((x, i) => [px(x), one.y[i] === null ? null : py(one.y[i])])) }),
        svg("path", { class: "line", d: trace(one.x.map((x, i) => [px(x), one.line[i] === null ? null : py(one.line[i])])) }),
        (one.dots || one.x.length === 1) && one.x.map((x, i) => one.y[i] !== null && svg("circle", { class: "dot", cx: px(x), cy: py(one.y[i]), r: 3.5 })))),
      svg("line", { class: "cursor", y1: TOP, y2: height - BOTTOM, x1: -9, x2: -9 })), tip);
    tip.hidden = true;
  }

  const describe = () => `${label}: ${data.series.map((one) => {
    const known = one.y.filter((value) => value !== null);
    return `${one.label} ${known.length ? num(known[known.length - 1]) : "no values"}`;
  }).join(", ")}`;

  function point(at) {
    if (!scale || !data.series.length) return;
    const xs = [...new Set(scale.lines.flatMap((one) => one.x))].sort((a, b) => a - b);
    if (!xs.length) return;
    cursor = Math.max(0, Math.min(xs.length - 1, typeof at === "function" ? at(xs) : at));
    const x = xs[cursor];
    const rows = scale.lines.map((one) => {
      const near = one.x.reduce((best, each, i) => (Math.abs(each - x) < Math.abs(one.x[best] - x) ? i : best), 0);
      const value = one.y[near];
      if (value === null || value === undefined || Math.abs(one.x[near] - x) > (scale.last - scale.first) / 12) return null;
      const interval = one.low && one.low[near] !== null ? ` [${num(one.low[near], 3)}, ${num(one.high[near], 3)}]` : "";
      return h("div", null, h("i", { class: `key ${one.colour}` }), one.label, " ", h("b", null, num(value, 5)), interval);
    });
    const told = data.events.filter((one) => Math.abs(one.x - x) <= (scale.last - scale.first) / 100).map((one) => h("div", { class: "told" }, one.label));
    replace(tip, h("div", { class: "soft" }, data.xName === "time" ? `${hours(x)} after the start` : `step ${num(x)}`), rows, told);
    const line = box.querySelector(".cursor");
    line.setAttribute("x1", scale.px(x));
    line.setAttribute("x2", scale.px(x));
    tip.hidden = false;
    tip.classList.toggle("leftwards", scale.px(x) > width / 2);
    tip.style.left = `${scale.px(x)}px`;
  }

  function leave() {
    tip.hidden = true;
    const line = box.querySelector(".cursor");
    if (line) { line.setAttribute("x1", -9); line.setAttribute("x2", -9); }
  }

  box.addEventListener("pointermove", (event) => {
    if (!scale) return;
    const left = event.clientX - box.getBoundingClientRect().left;
    point((xs) => xs.reduce((best, x, i) => (Math.abs(scale.px(x) - left) < Math.abs(scale.px(xs[best]) - left) ? i : best), 0));
  });
  box.addEventListener("pointerleave", leave);
  box.addEventListener("focusout", leave);
  box.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    point((xs) => (cursor === null ? (step > 0 ? 0 : xs.length - 1) : cursor + step));
  });
  new ResizeObserver(([entry]) => {
    const wide = Math.floor(entry.contentRect.width);
    if (wide !== width) { width = wide; draw(); }
  }).observe(box);

  // Of a page of charts that follows a run, those that are out of sight are drawn when they come into it.
  new IntersectionObserver((entries) => {
    inView = entries[entries.length - 1].isIntersecting;
    if (inView && stale) draw();
  }, { rootMargin: "100px" }).observe(box);

  return { el: box, update(next) { data = { ...data, ...next }; stale = !inView; if (inView) draw(); } };
}

const hours = (seconds) => (seconds < 120 ? `${num(seconds, 3)} s` : seconds < 7200 ? `${num(seconds / 60, 3)} min` : `${num(seconds / 3600, 3)} h`);

export function sparkline(values, width = 110, height = 26) {
  const bounds = range(values);
  if (!bounds || values.length < 2) return h("span", { class: "soft" }, "–");
  const span = bounds[1] - bounds[0] || 1;
  const points = values.map((y, i) => [(i / (values.length - 1)) * (width - 4) + 2, height - 3 - ((y - bounds[0]) / span) * (height - 6)]);
  const [x, y] = points[points.length - 1];
  return svg("svg", { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    svg("path", { d: trace(points) }), svg("circle", { cx: x, cy: y, r: 2.4 }));
}

// Curves of any metric, several runs overlaid, smoothed; findings and the controller's decisions on the axis.

import { h, replace, segmented } from "./dom.js";
import { get, link, runApi, runPath } from "./api.js";
import { lineChart } from "./chart.js";
import { follow } from "./follow.js";
import { keys } from "./keys.js";
import { spaced } from "./format.js";

const KEY = [
  ["Success", ["rollout/success", "evaluate/success"], true],
  ["Reward", ["rollout/reward"]],
  ["Reward spread within a group", ["rollout/reward_std_in_group"]],
  ["Entropy of the policy", ["policy/entropy"]],
  ["Gradient norm", ["policy/grad_norm"]],
  ["Sampler-learner gap", ["policy/sampler_gap"]],
  ["KL to the reference", ["policy/kl_to_reference"]],
  ["Turns of an episode", ["rollout/turns"]],
  ["Response length", ["health/response_length"]],
  ["Sampled tokens per second", ["rollout/tokens_per_second"]],
];
const COLOURS = 8;
const ACTIONS = ["enable_starpo_s", "disable_starpo_s", "reduce_updates"];

export async function curvesTab(body, id, query, about, own) {
  const state = { weight: Number(query.get("smooth") || 0), x: query.get("x") || "step", area: query.get("area") || "key",
    find: query.get("find") || "", others: query.getAll("with") };
  let abouts = [about, ...(await Promise.all(state.others.map((one) => get(runApi(one)))))];
  const followed = [own, ...state.others.map(follow)];
  const grid = h("div", { class: "charts" });
  const story = h("section", { class: "findings" });
  let charts = [], drawn = [], builds = 0;

  const names = () => [...new Set(abouts.flatMap((one) => one.metrics.map((metric) => metric.name)))];
  const areas = () => ["key", ...new Set(names().map((name) => name.split("/")[0]))];

  function plan() {
    const known = new Set(names());
    const hidden = (name) => /_(low|high)$/.test(name);
    if (state.find) {
      const words = state.find.toLowerCase().split(/\s+/);
      return [...known].filter((name) => !hidden(name) && words.every((word) => name.toLowerCase().includes(word))).slice(0, 48).map((name) => [name, [name]]);
    }
    if (state.area !== "key") return [...known].filter((name) => name.startsWith(`${state.area}/`) && !hidden(name)).slice(0, 48).map((name) => [spaced(name.slice(state.area.length + 1)), [name]]);
    const channels = [...known].filter((name) => name.startsWith("reward/"));
    const own = channels.length > 1 ? channels.map((name) => [`Reward: ${spaced(name.slice(7))}`, [name]]) : [];
    return [...KEY, ...own].map(([title, some, wide]) => [title, some.filter((name) => known.has(name)), wide]).filter(([, some]) => some.length);
  }

  function fillCharts() {
    const found = followed.map((one) => one.series);
    const starts = found.map((series) => Math.min(...Object.values(series).flatMap((one) => one.time.slice(0, 1)).filter((time) => time !== null)));
    const trained = found.length ? Object.values(found[0]).find((one) => one.stage === "train") : null;
    const whenOf = (step) => (trained ? trained.time[trained.step.findIndex((one) => one >= step)] - starts[0] : NaN);
    drawn.forEach(([title, some], place) => {
      const series = [];
      abouts.forEach((one, run) => some.forEach((name, which) => {
        const curve = found[run][name];
        if (!curve) return;
        const evaluated = curve.stage === "evaluate";
        const x = state.x === "time" ? curve.time.map((time) => time - starts[run]) : curve.step;
        const part = some.length > 1 ? (evaluated ? "held out" : "in training") : "";
        series.push({ label: [abouts.length > 1 ? one.run.name : "", part].filter(Boolean).join(", ") || title,
          colour: `c${(abouts.length > 1 ? run : which) % COLOURS}`, x, y: curve.value, low: curve.low, high: curve.high, dots: evaluated, dashed: abouts.length > 1 && some.length > 1 && !evaluated });
      }));
      const events = about.findings.map((one) => ({ x: state.x === "time" ? whenOf(one.step) : one.step, kind: kindOf(one), label: `step ${one.step}: ${one.sentence}` }))
        .filter((one) => Number.isFinite(one.x) && one.x !== null);
      const success = some.includes("rollout/success");
      charts[place].update({ series, events, weight: state.weight, xName: state.x, between: success ? [0, 1] : null });
    });
  }

  async function build() {
    const planned = plan();
    const wanted = [...new Set(planned.flatMap(([, some]) => some))];
    const turn = ++builds;
    await Promise.all(followed.map((one) => one.choose([...wanted])));
    if (turn !== builds) return; // something else was asked for meanwhile
    drawn = planned;
    charts = planned.map(([title, , wide]) => lineChart({ label: title, height: wide ? 280 : 190 }));
    replace(grid, planned.map(([title, some, wide], i) => h("figure", { class: wide ? "card big" : "card", "data-metric": some.join(" ") },
      h("figcaption", null, title, some.length === 1 && spaced(some[0].split("/").pop()) !== title && h("span", { class: "mono soft small" }, some[0]),
        some.length > 1 && abouts.length > 1 && h("span", { class: "legend" }, "solid: held out, with its 95% interval; dotted: in training"),
        some.length > 1 && abouts.length === 1 && h("span", { class: "legend" }, some.map((name, which) => [h("i", { class: `key c${which}` }),
          name.startsWith("evaluate") ? "held out, with its 95% interval" : "in training"]))),
      charts[i].el)));
    if (!planned.length) replace(grid, h("p", { class: "soft empty" }, state.find ? "No metric matches." : "Nothing was measured yet."));
    fillCharts();
  }

  function keep() {
    history.replaceState(null, "", link(runPath(id, "/curves"), { smooth: state.weight || "", x: state.x === "step" ? "" : state.x,
      area: state.area === "key" ? "" : state.area, find: state.find, with: state.others }));
  }
  const change = (part, again = build) => { Object.assign(state, part); keep(); again(); };

  const find = h("input", { type: "search", placeholder: "Find a metric", "aria-label": "Find a metric", value: state.find,
    oninput: () => change({ find: find.value }) });
  const slider = h("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: state.weight, "aria-label": "Smoothing",
    oninput: () => change({ weight: Number(slider.value) }, fillCharts) });
  const area = h("select", { "aria-label": "Metrics", onchange: () => change({ area: area.value }) },
    areas().map((name) => h("option", { value: name, ...(name === state.area ? { selected: true } : {}) }, name === "key" ? "key metrics" : `${name}/…`)));
  const more = h("select", { "aria-label": "Overlay another run", onchange: () => { location.hash = link(runPath(id, "/curves"), { with: [...state.others, more.value] }); } },
    h("option", { value: "" }, "Overlay a run…"));
  get("/api/runs").then(({ runs }) => runs.filter((run) => ![id, ...state.others].includes(run.id))
    .forEach((run) => more.append(h("option", { value: run.id }, run.name))));

  replace(body, h("div", { class: "controls" }, area, find, h("label", { class: "slider" }, "Smooth", slider),
    segmented("Axis", [["step", "steps"], ["time", "time"]], state.x, (x) => change({ x }, fillCharts)), h("span", { class: "grow" }), more),
  abouts.length > 1 && h("div", { class: "legend runs" }, abouts.map((one, run) => h("span", null, h("i", { class: `key c${run % COLOURS}` }),
    h("a", { href: link(runPath(one.run.id)) }, one.run.name),
    run > 0 && h("button", { class: "plain", type: "button", "aria-label": `Leave out ${one.run.name}`,
      onclick: () => { location.hash = link(runPath(id, "/curves"), { with: state.others.filter((other) => other !== one.run.id) }); } }, "×")))),
  grid, story);
  keys.on("/", "find a metric", () => find.focus());
  replace(story, findingsList(id, about.findings));
  await build();
  return {
    async refresh(next) {
      if (next.findings !== about.findings) replace(story, findingsList(id, next.findings));
      about = abouts[0] = next;
      await Promise.all(followed.slice(1).map((one) => one.update()));
      if (JSON.stringify(plan()) === JSON.stringify(drawn)) fillCharts(); else await build();
    },
  };
}

const kindOf = (finding) => (ACTIONS.includes(finding.kind) ? "action" : finding.severity === "alarm" ? "alarm" : "sign");

function findingsList(id, findings) {
  if (!findings.length) return null;
  return [h("h2", null, "Findings and decisions"), h("ol", { class: "timeline" }, findings.map((one) => h("li", { class: kindOf(one) },
    h("a", { class: "when", href: link(runPath(id, "/trajectories"), { step: one.step, stage: "train" }) }, `step ${one.step}`),
    h("span", { class: "kind" }, spaced(one.kind).replace("starpo s", "StarPO-S")), h("span", null, one.sentence))))];
}

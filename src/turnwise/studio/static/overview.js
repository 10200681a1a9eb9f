// Where the time went, and what broke: the ledger as stacked bars over steps, and health rows with failures by kind.

import { h, svg, replace, segmented } from "./dom.js";
import { get, link, runApi, runPath } from "./api.js";
import { duration, num, percent, plural, spaced } from "./format.js";

export async function ledgerTab(body, id) {
  let data = await get(runApi(id, "/ledger"));
  let kind = "seconds", only = null;
  const picture = h("div", { class: "card stack" }), legend = h("div", { class: "accounts" });

  function draw() {
    const { accounts, bars } = data;
    if (!bars.length) { replace(picture, h("p", { class: "soft empty" }, "This run has no ledger in its metrics.")); return; }
    const width = 1000, height = 260, gap = bars.length > 40 ? 2 : 5, foot = 22;
    const totals = bars.map((bar) => Object.values(bar.seconds).reduce((sum, one) => sum + one, 0));
    const most = Math.max(...totals);
    const wide = width / bars.length;
    replace(picture, svg("svg", { viewBox: `0 0 ${width} ${height + foot}`, role: "img", "aria-label": "seconds by account over steps" },
      bars.map((bar, place) => {
        let top = height;
        return svg("g", null, accounts.map((account) => {
          const spent = bar.seconds[account.name] || 0;
          const tall = (spent / (kind === "share" ? totals[place] || 1 : most || 1)) * height;
          top -= tall;
          return tall > 0 && svg("rect", { x: place * wide + gap / 2, y: top, width: Math.max(1, wide - gap), height: tall, fill: account.colour,
            class: only && only !== account.name ? "faded" : "" }, svg("title", null, `${bar.label}: ${spaced(account.name)} ${duration(spent)}, ${percent(spent / totals[place])}`));
        }));
      }),
      bars.map((bar, place) => (place % Math.ceil(bars.length / 10) === 0) && svg("text", { class: "tick", x: (place + 0.5) * wide, y: height + 16, "text-anchor": "middle" },
        bar.label === "cold start" ? "cold start" : bar.step))));
    const whole = totals.reduce((sum, one) => sum + one, 0);
    replace(legend, accounts.map((account) => {
      const spent = bars.reduce((sum, bar) => sum + (bar.seconds[account.name] || 0), 0);
      return h("button", { type: "button", class: "account", title: account.about, "aria-pressed": String(only === account.name),
        onclick: () => { only = only === account.name ? null : account.name; draw(); } },
      h("i", { class: "key", style: { background: account.colour } }), h("span", null, spaced(account.name)), h("b", null, percent(spent / whole)), h("span", { class: "soft" }, duration(spent)));
    }));
  }

  draw();
  replace(body, h("div", { class: "controls" }, h("p", { class: "soft" }, "Every second of the run is in exactly one account."), h("span", { class: "grow" }),
    segmented("Unit", [["seconds", "seconds"], ["share", "shares"]], kind, (next) => { kind = next; draw(); })), picture, legend);
  return { async refresh() { data = await get(runApi(id, "/ledger")); draw(); } };
}

export async function healthTab(body, id) {
  const holder = h("div");
  async function draw() {
    const data = await get(runApi(id, "/health"));
    const most = (values) => Math.max(...values.map((one) => one || 0)) || 1;
    replace(holder,
      data.rows.length ? h("div", { class: "card health" }, data.rows.map((row) => h("div", { class: "health-row" },
        h("div", null, h("b", null, row.about), h("div", { class: "mono soft small" }, row.name)),
        bars(row.values, most(row.values), data),
        h("div", { class: "n right" }, row.unit === "count" ? num(row.total) : row.unit === "share" ? percent(row.total) : num(row.total, 3),
          h("div", { class: "soft small" }, row.unit === "count" ? "in all" : "on average")))))
        : h("p", { class: "card soft empty" }, data.steps.length ? "Nothing failed, timed out or broke." : "Nothing was measured yet."),
      h("h2", null, "Failures by kind"),
      data.failures.length ? h("ul", { class: "card failures" }, data.failures.map((one) => h("li", null, h("b", { class: "n" }, num(one.count)),
        h("div", null, h("span", { class: "mono" }, one.kind), h("div", { class: "soft small" }, one.example.failure)),
        h("a", { href: link(runPath(id, `/t/${one.example.name}`)) }, one.example.name))))
        : h("p", { class: "soft" }, `No episode of those stored failed${data.pending ? `; ${plural(data.pending, "file")} still to be read` : ""}.`));
  }
  await draw();
  replace(body, h("p", { class: "soft" }, "What environments, tools, the gateway and limits did to episodes in training, over steps."), holder);
  return { refresh: draw };
}

function bars(values, most, data) {
  const width = 300, height = 36, wide = width / Math.max(1, values.length);
  return svg("svg", { class: "health-bars", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    values.map((value, place) => value > 0 && svg("rect", { x: place * wide, width: Math.max(0.8, wide - 0.6), y: height - (value / most) * height, height: (value / most) * height },
      svg("title", null, `step ${data.steps[place]}${data.width > 1 ? ` and ${data.width - 1} more` : ""}: ${num(value, 3)}`))));
}

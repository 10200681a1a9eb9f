// Elements from data. Text is only ever set as text, so nothing that a model wrote can become markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);
export const svg = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

export function replace(node, ...children) {
  node.replaceChildren();
  return fill(node, null, children);
}

export function segmented(label, options, chosen, choose) {
  const group = h("div", { class: "segmented", role: "radiogroup", "aria-label": label });
  const buttons = options.map(([value, text, title]) =>
    h("button", { type: "button", role: "radio", title, "data-value": value, "aria-checked": String(value === chosen),
      tabindex: value === chosen ? 0 : -1, onclick: () => pick(value) }, text));
  function pick(value) {
    for (const button of buttons) {
      const on = button.dataset.value === value;
      button.setAttribute("aria-checked", String(on));
      button.tabIndex = on ? 0 : -1;
    }
    choose(value);
  }
  group.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const here = buttons.indexOf(document.activeElement);
    const next = buttons[(here + step + buttons.length) % buttons.length];
    next.focus();
    next.click();
  });
  group.pick = pick;
  return fill(group, null, buttons);
}

export function problemsBox(problems) {
  if (!problems || !problems.length) return null;
  return h("details", { class: "problems", open: problems.length < 4 },
    h("summary", null, problems.length === 1 ? "One thing could not be read" : `${problems.length} things could not be read`),
    h("ul", null, problems.map((problem) => h("li", null, problem))));
}

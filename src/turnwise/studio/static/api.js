// Requests to the studio, addresses within the page, and events of runs that change.

export async function get(path, query) {
  const address = query ? `${path}?${search(query)}` : path;
  return read(await fetch(address, { headers: { Accept: "application/json" } }));
}

export async function post(path, body) {
  return read(await fetch(path, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  }));
}

async function read(response) {
  let data = null;
  try { data = await response.json(); } catch { /* not JSON: the guard answers in plain text */ }
  if (response.ok && data !== null) return data;
  if (response.status === 401) throw new Error("The studio asks for its token: open the address it printed when it started.");
  throw new Error((data && data.error) || `the studio answered with status ${response.status}`);
}

export function search(query) {
  const found = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "" && one !== false) found.append(key, one === true ? "1" : one);
    }
  }
  return found.toString();
}

export function link(path, query) {
  const text = query ? search(query) : "";
  return `#${path}${text ? `?${text}` : ""}`;
}

export const runPath = (id, rest = "") => `/run/${encodeURIComponent(id)}${rest}`;
export const runApi = (id, rest = "") => `/api/runs/${encodeURIComponent(id)}${rest}`;

// Calls back when a run writes; returns what ends it. However long a call and its painting take, the next one comes so
// much later that they use a hundred-and-twentieth of the time at the most, and with the browser's other processes some
// fortieth: a run that trains on the same machine hardly notices. A page that nobody looks at asks for nothing until it
// is looked at again.
const LEAST_WAIT = 1200, MOST_WAIT = 30000, RESTS = 120;

// One blink for what came in. An animation without end would paint all the time: an eighth of a core without a GPU.
function beat() {
  document.documentElement.classList.add("beat");
  setTimeout(() => document.documentElement.classList.remove("beat"), 250);
}

const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));

export function onChange(ids, call) {
  const source = new EventSource(`/api/events?${search({ run: ids })}`);
  let due = null, wait = LEAST_WAIT, again = false;
  const act = async () => {
    const began = performance.now();
    try { await call(); } catch { /* the next change asks again */ }
    beat();
    if (!document.hidden) await painted();
    wait = Math.min(MOST_WAIT, Math.max(LEAST_WAIT, RESTS * (performance.now() - began)));
    if (due === 0) return;
    due = null;
    if (again) later();
  };
  const later = () => {
    again = due !== null || document.hidden;
    if (!again) due = setTimeout(act, wait);
  };
  const shown = () => { if (again && due === null) later(); };
  document.addEventListener("visibilitychange", shown);
  source.addEventListener("change", later);
  source.addEventListener("runs", later);
  source.addEventListener("open", () => document.documentElement.classList.add("live"));
  source.addEventListener("error", () => document.documentElement.classList.remove("live"));
  return () => { document.removeEventListener("visibilitychange", shown); source.close(); clearTimeout(due); document.documentElement.classList.remove("live"); due = 0; };
}

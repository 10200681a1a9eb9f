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

// Calls back when a run writes, at most every `wait` milliseconds; returns what ends it.
export function onChange(ids, call, wait = 1200) {
  const source = new EventSource(`/api/events?${search({ run: ids })}`);
  let due = null;
  const later = () => {
    if (due === null) due = setTimeout(() => { due = null; call(); }, wait);
  };
  source.addEventListener("change", later);
  source.addEventListener("runs", later);
  source.addEventListener("open", () => document.documentElement.classList.add("live"));
  source.addEventListener("error", () => document.documentElement.classList.remove("live"));
  return () => { source.close(); clearTimeout(due); document.documentElement.classList.remove("live"); due = 0; };
}

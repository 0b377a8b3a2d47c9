// What every page has: the theme, local times, and pieces that are loaded without a reload.

const root = document.documentElement;

// ---- theme: as the system has it, light, or dark

const THEMES = ["system", "light", "dark"];
const toggle = document.querySelector("[data-theme-toggle]");

function showTheme() {
  const theme = root.dataset.theme ?? "system";
  toggle.querySelector("[data-theme-name]").textContent = `Theme: ${theme}`;
}

if (toggle) {
  toggle.hidden = false;
  showTheme();
  toggle.addEventListener("click", () => {
    const now = root.dataset.theme ?? "system";
    const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
    if (next === "system") delete root.dataset.theme;
    else root.dataset.theme = next;
    try {
      if (next === "system") localStorage.removeItem("chronolake-theme");
      else localStorage.setItem("chronolake-theme", next);
    } catch {
      // The browser keeps nothing: the choice holds for this page.
    }
    showTheme();
    document.dispatchEvent(new CustomEvent("theme"));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    document.dispatchEvent(new CustomEvent("theme")),
  );
}

// ---- times

const local = new Intl.DateTimeFormat(undefined, {
  dateStyle: "medium",
  timeStyle: "long",
});
const UNITS = [
  [86400 * 365, "y"],
  [86400, "d"],
  [3600, "h"],
  [60, "min"],
  [1, "s"],
];

function ago(milliseconds) {
  const seconds = milliseconds / 1000;
  const found = UNITS.find(([size]) => seconds >= size);
  return found ? `${Math.floor(seconds / found[0])} ${found[1]} ago` : "just now";
}

/** Give times of a piece of the page their local time, and keep ages true. */
export function times(within = document) {
  for (const one of within.querySelectorAll("time[datetime]")) {
    const at = new Date(one.dateTime);
    const year = at.getUTCFullYear();
    if (Number.isNaN(at.getTime())) continue;
    const utc = one.dateTime.replace("T", " ").replace("Z", " UTC");
    one.title = year > 1 && year < 9999 ? `${utc}\n${local.format(at)} (local)` : utc;
    if ("ago" in one.dataset) one.textContent = ago(Date.now() - at.getTime());
  }
}

times();
setInterval(() => {
  if (!document.hidden && document.querySelector("time[data-ago]")) times();
}, 15000);

// ---- pieces

/** Tell those who listen and do not look. */
export function say(text) {
  const said = document.getElementById("said");
  said.textContent = "";
  requestAnimationFrame(() => {
    said.textContent = text;
  });
}

const running = new Map();

/**
 * Replace what an element holds by a piece from the server. Of several that are asked for one after
 * the other, only the last one counts.
 *
 * @returns whether it was replaced.
 */
export async function load(into, url) {
  running.get(into)?.abort();
  const stop = new AbortController();
  running.set(into, stop);
  into.setAttribute("aria-busy", "true");
  try {
    const answer = await fetch(url, { signal: stop.signal, headers: { accept: "text/html" } });
    const text = await answer.text();
    if (stop.signal.aborted) return false;
    // The server has escaped every value.
    into.innerHTML = text;
    times(into);
    return answer.ok;
  } catch (failure) {
    if (failure.name === "AbortError") return false;
    into.innerHTML =
      '<div class="state state-error" role="alert"><h2>The page does not answer.</h2>' +
      "<p><b>What to do:</b> check that chronolake ui still runs, then reload.</p></div>";
    return false;
  } finally {
    if (running.get(into) === stop) {
      running.delete(into);
      into.removeAttribute("aria-busy");
    }
  }
}

/** What a form says, without its empty fields, as a query. */
export function queryOf(form) {
  const query = new URLSearchParams();
  for (const [name, value] of new FormData(form)) if (value !== "") query.append(name, value);
  return query;
}

/** Call at most once in so many milliseconds, with the last arguments. */
export function calm(milliseconds, work) {
  let waiting;
  return (...words) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => work(...words), milliseconds);
  };
}

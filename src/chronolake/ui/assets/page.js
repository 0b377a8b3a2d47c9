// Code of all pages: the theme, local times, and parts that are loaded without a page reload.

const root = document.documentElement;

// ---- theme: system, light or dark

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
      // The browser does not store it: the choice applies to this page only.
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

/** Add the local time to times within an element, and update ages. */
export function updateTimes(within = document) {
  for (const element of within.querySelectorAll("time[datetime]")) {
    const at = new Date(element.dateTime);
    const year = at.getUTCFullYear();
    if (Number.isNaN(at.getTime())) continue;
    const utc = element.dateTime.replace("T", " ").replace("Z", " UTC");
    element.title = year > 1 && year < 9999 ? `${utc}\n${local.format(at)} (local)` : utc;
    if ("ago" in element.dataset) element.textContent = ago(Date.now() - at.getTime());
  }
}

updateTimes();
setInterval(() => {
  if (!document.hidden && document.querySelector("time[data-ago]")) updateTimes();
}, 15000);

// ---- parts of a page

/** Announce a text to screen readers. */
export function announce(text) {
  const region = document.getElementById("announcement");
  region.textContent = "";
  requestAnimationFrame(() => {
    region.textContent = text;
  });
}

const requests = new Map();

/**
 * Replace the content of an element by a part from the server. A newer request cancels an older one.
 *
 * @returns whether the content was replaced.
 */
export async function load(into, url) {
  requests.get(into)?.abort();
  const controller = new AbortController();
  requests.set(into, controller);
  into.setAttribute("aria-busy", "true");
  try {
    const response = await fetch(url, { signal: controller.signal, headers: { accept: "text/html" } });
    const text = await response.text();
    if (controller.signal.aborted) return false;
    // The server has escaped every value.
    into.innerHTML = text;
    updateTimes(into);
    return response.ok;
  } catch (failure) {
    if (failure.name === "AbortError") return false;
    into.innerHTML =
      '<div class="state state-error" role="alert"><h2>The server does not respond.</h2>' +
      "<p><b>What to do:</b> check that chronolake ui is running, then reload the page.</p></div>";
    return false;
  } finally {
    if (requests.get(into) === controller) {
      requests.delete(into);
      into.removeAttribute("aria-busy");
    }
  }
}

/** Return the fields of a form, without empty ones, as a query. */
export function queryOf(form) {
  const query = new URLSearchParams();
  for (const [name, value] of new FormData(form)) if (value !== "") query.append(name, value);
  return query;
}

/** Return a function that calls `work` with the last arguments after a pause. */
export function debounce(milliseconds, work) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...values), milliseconds);
  };
}

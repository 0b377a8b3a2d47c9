// Runs that are followed while they run: what is shown is asked for again, without a reload.

import { say, times } from "./page.js";

const live = document.querySelector("[data-live]");
const EVERY = 1000;
/** Those who listen hear of progress this often, and of an end at once. */
const SAID_EVERY = 15000;
/** An answer that takes longer than this is none. */
const LONGEST = 30000;
let shown = null;
let said = Date.now();
let seen = Date.now();
let failures = 0;

const isRunning = () => live.querySelector("[data-running]") !== null;

/** What has the focus, in a way that finds it again in what takes its place. */
function focused() {
  const now = document.activeElement;
  if (!now || !live.contains(now)) return null;
  if (now.matches("a[href]")) return `a[href="${CSS.escape(now.getAttribute("href"))}"]`;
  return now.matches("[aria-label]") ? `[aria-label="${CSS.escape(now.getAttribute("aria-label"))}"]` : null;
}

function replace(text) {
  const focus = focused();
  const places = [...live.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  // The server has escaped every value.
  live.innerHTML = text;
  times(live);
  live.querySelectorAll(".scroll").forEach((one, index) => {
    one.scrollLeft = places[index] ?? 0;
  });
  if (focus) live.querySelector(focus)?.focus({ preventScroll: true });
}

function tell(wasRunning) {
  const status = live.querySelector("[data-status]")?.textContent;
  if (wasRunning && !isRunning()) {
    say(status ? `The run has ended: ${status}.` : "No run is under way any more.");
  } else if (Date.now() - said > SAID_EVERY) {
    said = Date.now();
    const part = live.querySelector("[data-part]")?.textContent;
    if (part) say(`${part} is applied.`);
  }
}

/** Whether a person is copying something out of what would be replaced. */
function isSelecting() {
  const selection = getSelection();
  return !selection.isCollapsed && live.contains(selection.anchorNode);
}

/** What is shown stays, and is said to be old, to those who look and to those who listen. */
function old() {
  failures += 1;
  if (failures > 1) return;
  live.classList.add("stale");
  const note = document.createElement("p");
  note.className = "note";
  note.dataset.old = "";
  note.textContent = `What is shown is as of ${new Date(seen).toLocaleTimeString()}: it cannot be read now. This page goes on asking.`;
  live.before(note);
  say("What is shown is old: it cannot be read now. This page goes on asking.");
}

function fresh() {
  seen = Date.now();
  if (failures === 0) return;
  failures = 0;
  live.classList.remove("stale");
  document.querySelector("[data-old]")?.remove();
  say("What is shown is up to date again.");
}

async function ask() {
  if (!document.hidden && !isSelecting()) {
    try {
      const answer = await fetch(live.dataset.live, {
        headers: { accept: "text/html" },
        signal: AbortSignal.timeout(LONGEST),
      });
      const text = await answer.text();
      // An error's page is no news of the run: the catalog may be away, or the server busy.
      if (!answer.ok) throw new Error(`${answer.status}`);
      fresh();
      if (text !== shown) {
        const was = isRunning();
        replace(text);
        tell(was);
      }
      shown = text;
    } catch {
      old();
    }
  }
  again();
}

function again() {
  // A list may get new runs at any time; a run that has ended stays as it is.
  const isList = live.dataset.live.startsWith("/part/runs");
  const pause = isRunning() ? EVERY : 5 * EVERY;
  if (failures > 0) setTimeout(ask, Math.max(pause, Math.min(8 * EVERY, EVERY * 2 ** failures)));
  else if (isRunning() || isList) setTimeout(ask, pause);
}

again();

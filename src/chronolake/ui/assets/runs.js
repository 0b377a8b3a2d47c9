// Pages of runs: their content is updated during a run, without a page reload.

import { announce, updateTimes } from "./page.js";

const live = document.querySelector("[data-live]");
const INTERVAL = 1000;
/** Screen readers announce progress at this interval, and the end of a run immediately. */
const ANNOUNCE_EVERY = 15000;
/** A response that takes longer than this is a failure. */
const TIMEOUT = 30000;
let shown = null;
let announcedAt = Date.now();
let updatedAt = Date.now();
let failures = 0;

const isRunning = () => live.querySelector("[data-running]") !== null;

/** Return a selector for the focused element that also matches its replacement. */
function focused() {
  const now = document.activeElement;
  if (!now || !live.contains(now)) return null;
  if (now.matches("a[href]")) return `a[href="${CSS.escape(now.getAttribute("href"))}"]`;
  return now.matches("[aria-label]") ? `[aria-label="${CSS.escape(now.getAttribute("aria-label"))}"]` : null;
}

function replace(text) {
  const focus = focused();
  const places = [...live.querySelectorAll(".scroll")].map((region) => region.scrollLeft);
  // The server has escaped every value.
  live.innerHTML = text;
  updateTimes(live);
  live.querySelectorAll(".scroll").forEach((region, index) => {
    region.scrollLeft = places[index] ?? 0;
  });
  if (focus) live.querySelector(focus)?.focus({ preventScroll: true });
}

function announceProgress(wasRunning) {
  const status = live.querySelector("[data-status]")?.textContent;
  if (wasRunning && !isRunning()) {
    announce(status ? `The run has ended: ${status}.` : "No run is active.");
  } else if (Date.now() - announcedAt > ANNOUNCE_EVERY) {
    announcedAt = Date.now();
    const part = live.querySelector("[data-part]")?.textContent;
    if (part) announce(`${part} complete.`);
  }
}

/** Return whether text is selected that would be replaced. */
function isSelecting() {
  const selection = getSelection();
  return !selection.isCollapsed && live.contains(selection.anchorNode);
}

/** Keep the content, and mark it as stale for readers and screen readers. */
function markStale() {
  failures += 1;
  if (failures > 1) return;
  live.classList.add("stale");
  const note = document.createElement("p");
  note.className = "note";
  note.dataset.old = "";
  note.textContent = `This page shows the state at ${new Date(updatedAt).toLocaleTimeString()}, because the runs cannot be read now. It retries automatically.`;
  live.before(note);
  announce("This page is stale, because the runs cannot be read now. It retries automatically.");
}

function markFresh() {
  updatedAt = Date.now();
  if (failures === 0) return;
  failures = 0;
  live.classList.remove("stale");
  document.querySelector("[data-old]")?.remove();
  announce("This page is up to date again.");
}

async function poll() {
  if (!document.hidden && !isSelecting()) {
    try {
      const response = await fetch(live.dataset.live, {
        headers: { accept: "text/html" },
        signal: AbortSignal.timeout(TIMEOUT),
      });
      const text = await response.text();
      // An error page does not describe the run: the catalog may be unavailable, or the server busy.
      if (!response.ok) throw new Error(`${response.status}`);
      markFresh();
      if (text !== shown) {
        const was = isRunning();
        replace(text);
        announceProgress(was);
      }
      shown = text;
    } catch {
      markStale();
    }
  }
  schedule();
}

function schedule() {
  // A list may get new runs at any time; a run that has ended does not change.
  const isList = live.dataset.live.startsWith("/part/runs");
  const pause = isRunning() ? INTERVAL : 5 * INTERVAL;
  if (failures > 0) setTimeout(poll, Math.max(pause, Math.min(8 * INTERVAL, INTERVAL * 2 ** failures)));
  else if (isRunning() || isList) setTimeout(poll, pause);
}

schedule();

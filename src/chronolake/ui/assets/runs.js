// Runs that are followed while they run: what is shown is asked for again, without a reload.

import { say, times } from "./page.js";

const live = document.querySelector("[data-live]");
const EVERY = 1000;
/** Those who listen hear of progress this often, and of an end at once. */
const SAID_EVERY = 15000;
let shown = null;
let said = Date.now();

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

async function ask() {
  if (!document.hidden && !isSelecting()) {
    try {
      const answer = await fetch(live.dataset.live, { headers: { accept: "text/html" } });
      const text = await answer.text();
      if (text !== shown) {
        const was = isRunning();
        replace(text);
        tell(was);
      }
      shown = text;
      live.classList.remove("stale");
    } catch {
      // The page has ended, or the network is gone: what is shown stays, and is said to be old.
      if (!live.classList.contains("stale")) say("The page does not answer. What is shown is old.");
      live.classList.add("stale");
    }
  }
  again();
}

function again() {
  // A list may get new runs at any time; a run that has ended stays as it is.
  const isList = live.dataset.live.startsWith("/part/runs");
  if (isRunning()) setTimeout(ask, EVERY);
  else if (isList) setTimeout(ask, 5 * EVERY);
}

again();

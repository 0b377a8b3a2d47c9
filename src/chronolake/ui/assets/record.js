// A record's timeline: suggestions for its key, its chart, and its versions page by page.

import { calm, load, say } from "./page.js";
import { drawTimeline } from "./timeline.js";

// ---- the key: values are suggested as they are typed

const form = document.querySelector("[data-record-form]");

/** Longer values, and those that an input does not keep, are not suggested. */
const SUGGESTED = 200;

let asking = new AbortController();

/** Only the answer to the last question counts: an older one may come later. */
async function suggest(input) {
  asking.abort();
  const now = new AbortController();
  asking = now;
  const query = new URLSearchParams({ table: form.elements.table.value, column: input.dataset.key });
  for (const each of form.querySelectorAll("[data-key]")) {
    if (each.value !== "" && !each.disabled) query.append(`key.${each.dataset.key}`, each.value);
    const was = form.elements.namedItem(`was.${each.dataset.key}`);
    if (was) query.append(was.name, was.value);
  }
  const answer = await fetch(`/part/keys?${query}`, { signal: now.signal }).catch(() => null);
  const values = answer?.ok ? await answer.json().catch(() => null) : null;
  if (values === null || now.signal.aborted) return;
  const list = document.getElementById(input.getAttribute("list"));
  list.replaceChildren(
    ...values
      .filter((value) => value.length <= SUGGESTED && !/[\r\n]/.test(value))
      .map((value) => {
        const option = document.createElement("option");
        option.value = value;
        return option;
      }),
  );
}

if (form) {
  const typed = calm(120, suggest);
  form.addEventListener("input", (event) => {
    if (event.target.matches("[data-key]")) typed(event.target);
    if (event.target.matches("input[name=null]")) {
      const input = event.target.closest(".field").querySelector("[data-key]");
      input.disabled = event.target.checked;
    }
  });
  form.addEventListener("focusin", (event) => {
    if (event.target.matches("[data-key]")) suggest(event.target);
  });
}

// ---- the list

const list = document.querySelector("[data-versions]");

async function turn(url, { version } = {}) {
  const wanted = new URL(url, location.href);
  const query = wanted.searchParams.toString();
  if (!(await load(list, `/part/versions?${query}`))) return;
  wanted.searchParams.delete("version");
  if (version) {
    const page = list.querySelector(".pages span")?.textContent.match(/[\d,]+/)?.[0];
    if (page && page !== "1") wanted.searchParams.set("page", page.replaceAll(",", ""));
    wanted.hash = `v${version}`;
  }
  history.replaceState(null, "", wanted);
  say(list.querySelector(".pages span")?.textContent ?? "");
  if (version) find(version);
  else list.querySelector(".scroll").focus();
}

function find(version) {
  const row = document.getElementById(`v${version}`);
  row?.scrollIntoView({ block: "center" });
  row?.focus();
}

list?.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-versions-link]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  turn(link.href);
});

// ---- the chart

const chart = document.querySelector("[data-chart]");

function choose(version) {
  if (document.getElementById(`v${version}`)) {
    find(version);
    return;
  }
  const url = new URL(location.href);
  url.searchParams.delete("page");
  url.searchParams.set("version", version);
  turn(url, { version });
}

if (chart) {
  const reset = document.querySelector("[data-chart-reset]");
  drawTimeline(chart, reset, document.querySelector("[data-chart-more]"), choose);
}
if (location.hash.startsWith("#v")) find(location.hash.slice(2));

// A record's timeline: suggestions for its key, its chart, and its versions page by page.

import { announce, debounce, load } from "./page.js";
import { drawTimeline } from "./timeline.js";

// ---- the key: suggestions for its values

const form = document.querySelector("[data-record-form]");

/** Longer values, and values that an input would change, are not suggested. */
const SUGGESTED = 200;

let pending = new AbortController();

/** Show suggestions for an input. A newer request cancels an older one. */
async function suggest(input) {
  pending.abort();
  const controller = new AbortController();
  pending = controller;
  const query = new URLSearchParams({ table: form.elements.table.value, column: input.dataset.key });
  for (const field of form.querySelectorAll("[data-key]")) {
    if (field.value !== "" && !field.disabled) query.append(`key.${field.dataset.key}`, field.value);
    const original = form.elements.namedItem(`was.${field.dataset.key}`);
    if (original) query.append(original.name, original.value);
  }
  const response = await fetch(`/part/keys?${query}`, { signal: controller.signal }).catch(() => null);
  const values = response?.ok ? await response.json().catch(() => null) : null;
  if (values === null || controller.signal.aborted) return;
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
  const suggestSoon = debounce(120, suggest);
  form.addEventListener("input", (event) => {
    if (event.target.matches("[data-key]")) suggestSoon(event.target);
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

async function loadVersions(url, { version } = {}) {
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
  announce(list.querySelector(".pages span")?.textContent ?? "");
  if (version) focusVersion(version);
  else list.querySelector(".scroll").focus();
}

function focusVersion(version) {
  const row = document.getElementById(`v${version}`);
  row?.scrollIntoView({ block: "center" });
  row?.focus();
}

list?.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-versions-link]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  loadVersions(link.href);
});

// ---- the chart

const chart = document.querySelector("[data-chart]");

function showVersion(version) {
  if (document.getElementById(`v${version}`)) {
    focusVersion(version);
    return;
  }
  const url = new URL(location.href);
  url.searchParams.delete("page");
  url.searchParams.set("version", version);
  loadVersions(url, { version });
}

if (chart) {
  const reset = document.querySelector("[data-chart-reset]");
  drawTimeline(chart, reset, document.querySelector("[data-chart-more]"), showVersion);
}
if (location.hash.startsWith("#v")) focusVersion(location.hash.slice(2));

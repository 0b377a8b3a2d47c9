// A table as it stood: a slider over its life, drawn over the density of its changes.

import { draw, onAxis } from "./chart.js";
import { calm, load, say, times } from "./page.js";

const form = document.querySelector("[data-past-form]");
const rows = document.querySelector("[data-past]");
const chart = document.querySelector("[data-life]");
const sliders = document.querySelector("[data-sliders]");
const stepped = form.querySelector("[data-step-end]");
const STEPS = 1000;
/** A life shorter than a minute is shown within a minute. */
const SHORTEST = 60000;
const WHICH = ["at", "than"];

let life = null;

const field = (which) => form.elements[which];
const slider = (which) => form.querySelector(`[data-slider=${which}]`);

// ---- times: the sliders' steps, and the fields' texts

/** A typed time in milliseconds; now, if it is none. Without a zone it is in UTC. */
function milliseconds(text) {
  const wanted = text.trim().replace(" ", "T");
  const hasZone = /(z|[+-]\d\d:?\d\d)$/i.test(wanted);
  const found = Date.parse(wanted.includes("T") && !hasZone ? `${wanted}Z` : wanted);
  // What is finer than a millisecond is cut off by the browser.
  const finer = wanted.match(/\.\d{3}(\d+)/)?.[1];
  return Number.isNaN(found) ? Date.now() : found + Number(`0.${finer ?? 0}`);
}

/** Rounded up: a state then includes what changed within the millisecond. */
const iso = (time) => new Date(Math.ceil(time)).toISOString().replace(".000Z", "Z");
const clamped = (time) => Math.min(life.last, Math.max(life.first, time));
const timeOf = (step) => clamped(life.from + ((life.to - life.from) * step) / STEPS);

function place(which) {
  const at = clamped(milliseconds(field(which).value));
  const step = Math.round(((at - life.from) / (life.to - life.from)) * STEPS);
  slider(which).value = Math.min(STEPS, Math.max(0, step));
  tell(which, field(which).value || "now");
}

function tell(which, text) {
  slider(which).setAttribute("aria-valuetext", `${text.replace("T", " ").replace("Z", "")} UTC`);
}

// ---- rows

function query() {
  const found = new URLSearchParams({ table: form.elements.table.value });
  for (const which of WHICH) if (field(which).value.trim()) found.set(which, field(which).value.trim());
  return found;
}

async function show(found, { push = false } = {}) {
  const done = await load(rows, `/part/past?${found}`);
  for (const which of WHICH) field(which).removeAttribute("aria-invalid");
  if (!done) {
    const wrong = rows.querySelector("[data-wrong]")?.dataset.wrong;
    if (wrong) field(wrong).setAttribute("aria-invalid", "true");
    return;
  }
  history[push ? "pushState" : "replaceState"](null, "", `/past?${found}`);
  say(rows.querySelector("h2")?.textContent ?? "");
  second(Boolean(field("than").value.trim()));
  mark();
}

function second(isThere) {
  form.querySelector("[data-second]").hidden = !isThere;
  sliders.classList.toggle("both", isThere);
}

const soon = calm(120, () => show(query()));

form.addEventListener("submit", (event) => {
  event.preventDefault();
  stepped.textContent = "";
  if (life) for (const which of WHICH) place(which);
  show(query(), { push: true });
});

sliders.addEventListener("input", (event) => {
  const which = event.target.dataset.slider;
  const step = Number(event.target.value);
  field(which).value = iso(timeOf(step));
  stepped.textContent = "";
  tell(which, field(which).value);
  mark();
  soon();
});

for (const button of form.querySelectorAll("[data-step]")) {
  button.addEventListener("click", () => {
    const now = milliseconds(field("at").value);
    const changes = life.starts.filter((_, index) => life.began[index] || life.ended[index]);
    // The whole bucket is over where the next one begins.
    const ends = changes.map((start) => Math.ceil(Math.min(start + life.width, life.last)));
    const back = button.dataset.step === "-1";
    const next = back ? ends.findLast((end) => end < now) : ends.find((end) => end > now);
    if (next === undefined) {
      stepped.textContent = back ? "Nothing changed before." : "Nothing changes later.";
      say(stepped.textContent);
      return;
    }
    stepped.textContent = "";
    field("at").value = iso(next);
    place("at");
    soon();
  });
}

rows.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-past-link]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  show(new URL(link.href).searchParams, { push: true }).then(() =>
    rows.querySelector(".scroll")?.focus(),
  );
});

addEventListener("popstate", () => location.reload());

// ---- the chart

function marks() {
  const hue = getComputedStyle(document.documentElement).getPropertyValue("--text").trim();
  return WHICH.filter((which) => which === "at" || field(which).value.trim()).map((which) => {
    const at = clamped(milliseconds(field(which).value));
    const line = { color: hue, width: 1.5, dash: which === "than" ? "dash" : "solid" };
    return { type: "line", x0: onAxis(at), x1: onAxis(at), yref: "paper", y0: 0, y1: 1, line };
  });
}

const mark = calm(16, () => {
  if (life && chart.dataset.drawn !== undefined) window.Plotly.relayout(chart, { shapes: marks() });
});

async function begin() {
  const answer = await fetch(chart.dataset.life);
  if (!answer.ok) {
    chart.innerHTML = await answer.text();
    chart.removeAttribute("aria-busy");
    times(chart);
    return;
  }
  life = await answer.json();
  chart.removeAttribute("aria-busy");
  if (life.first === null) {
    life = null;
    chart.closest("figure").hidden = true;
    return;
  }
  // Buckets may begin between two milliseconds: what is chosen must not.
  life.first = Math.ceil(life.first);
  life.last = Math.ceil(life.last);
  // The axis, and with it the sliders, go over whole buckets.
  life.from = life.starts[0];
  life.to = life.starts.at(-1) + life.width;
  if (life.to - life.from < SHORTEST) {
    const middle = (life.first + life.last) / 2;
    life.from = middle - SHORTEST / 2;
    life.to = middle + SHORTEST / 2;
  }
  const width = Math.max(life.width, (life.to - life.from) / 150);
  sliders.hidden = false;
  for (const button of form.querySelectorAll("[data-step]")) button.hidden = false;
  for (const which of WHICH) place(which);
  const middles = life.starts.map((start) => start + life.width / 2);
  const span = (index) => `${iso(life.starts[index]).replace("T", " ").replace("Z", " UTC")}`;
  const bars = (counts, sign, color, words) => ({
    type: "bar",
    x: middles.map(onAxis),
    y: counts.map((count) => sign * count),
    width: middles.map(() => width * 0.86),
    marker: { color },
    text: counts.map((count, index) => `${count.toLocaleString("en")} ${words}<br>from ${span(index)}`),
    textposition: "none",
    hovertemplate: "%{text}<extra></extra>",
  });
  await draw(chart, (hue) => ({
    data: [bars(life.began, 1, hue.began, "began"), bars(life.ended, -1, hue.ended, "ended")],
    layout: {
      barmode: "relative",
      margin: { l: 0, r: 0, t: 4, b: 36 },
      xaxis: { type: "date", range: [life.from, life.to].map(onAxis), automargin: false, showgrid: false },
      yaxis: { visible: false, automargin: false },
      shapes: marks(),
    },
  }));
}

begin();

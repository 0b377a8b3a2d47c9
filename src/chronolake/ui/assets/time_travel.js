// A table at a point in time: a slider below a chart of the table's activity.

import { draw, onAxis } from "./chart.js";
import { announce, debounce, load, updateTimes } from "./page.js";

const form = document.querySelector("[data-past-form]");
const rows = document.querySelector("[data-past]");
const chart = document.querySelector("[data-life]");
const sliders = document.querySelector("[data-sliders]");
const stepped = form.querySelector("[data-step-end]");
const STEPS = 1000;
/** A shorter activity is shown within a minute. */
const SHORTEST = 60000;
const PARAMETERS = ["at", "than"];

let activity = null;

const field = (parameter) => form.elements[parameter];
const slider = (parameter) => form.querySelector(`[data-slider=${parameter}]`);

// ---- times: steps of the sliders, and texts of the fields

/** Parse a typed time as milliseconds; now, if it is not valid. The default time zone is UTC. */
function milliseconds(text) {
  const wanted = text.trim().replace(" ", "T");
  const hasZone = /(z|[+-]\d\d:?\d\d)$/i.test(wanted);
  const found = Date.parse(wanted.includes("T") && !hasZone ? `${wanted}Z` : wanted);
  // Browsers truncate times to milliseconds.
  const finer = wanted.match(/\.\d{3}(\d+)/)?.[1];
  return Number.isNaN(found) ? Date.now() : found + Number(`0.${finer ?? 0}`);
}

/** Format a time, rounded up so that the state includes changes within the millisecond. */
const iso = (time) => new Date(Math.ceil(time)).toISOString().replace(".000Z", "Z");
const clamped = (time) => Math.min(activity.last, Math.max(activity.first, time));
const timeOf = (step) => clamped(activity.from + ((activity.to - activity.from) * step) / STEPS);

function place(parameter) {
  const at = clamped(milliseconds(field(parameter).value));
  const step = Math.round(((at - activity.from) / (activity.to - activity.from)) * STEPS);
  slider(parameter).value = Math.min(STEPS, Math.max(0, step));
  describe(parameter, field(parameter).value || "now");
}

function describe(parameter, text) {
  slider(parameter).setAttribute("aria-valuetext", `${text.replace("T", " ").replace("Z", "")} UTC`);
}

// ---- rows

function query() {
  const found = new URLSearchParams({ table: form.elements.table.value });
  for (const parameter of PARAMETERS) if (field(parameter).value.trim()) found.set(parameter, field(parameter).value.trim());
  return found;
}

async function show(found, { push = false } = {}) {
  const done = await load(rows, `/part/past?${found}`);
  for (const parameter of PARAMETERS) field(parameter).removeAttribute("aria-invalid");
  if (!done) {
    const wrong = rows.querySelector("[data-wrong]")?.dataset.wrong;
    if (wrong) field(wrong).setAttribute("aria-invalid", "true");
    return;
  }
  history[push ? "pushState" : "replaceState"](null, "", `/past?${found}`);
  announce(rows.querySelector("h2")?.textContent ?? "");
  showSecond(Boolean(field("than").value.trim()));
  drawMarks();
}

function showSecond(isThere) {
  form.querySelector("[data-second]").hidden = !isThere;
  sliders.classList.toggle("both", isThere);
}

const showSoon = debounce(120, () => show(query()));

form.addEventListener("submit", (event) => {
  event.preventDefault();
  stepped.textContent = "";
  if (activity) for (const parameter of PARAMETERS) place(parameter);
  show(query(), { push: true });
});

sliders.addEventListener("input", (event) => {
  const parameter = event.target.dataset.slider;
  const step = Number(event.target.value);
  field(parameter).value = iso(timeOf(step));
  stepped.textContent = "";
  describe(parameter, field(parameter).value);
  drawMarks();
  showSoon();
});

for (const button of form.querySelectorAll("[data-step]")) {
  button.addEventListener("click", () => {
    const now = milliseconds(field("at").value);
    const changes = activity.starts.filter((_, index) => activity.began[index] || activity.ended[index]);
    // A bucket ends where the next one begins.
    const ends = changes.map((start) => Math.ceil(Math.min(start + activity.width, activity.last)));
    const back = button.dataset.step === "-1";
    const next = back ? ends.findLast((end) => end < now) : ends.find((end) => end > now);
    if (next === undefined) {
      stepped.textContent = back ? "There are no earlier changes." : "There are no later changes.";
      announce(stepped.textContent);
      return;
    }
    stepped.textContent = "";
    field("at").value = iso(next);
    place("at");
    showSoon();
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
  return PARAMETERS.filter((parameter) => parameter === "at" || field(parameter).value.trim()).map((parameter) => {
    const at = clamped(milliseconds(field(parameter).value));
    const line = { color: hue, width: 1.5, dash: parameter === "than" ? "dash" : "solid" };
    return { type: "line", x0: onAxis(at), x1: onAxis(at), yref: "paper", y0: 0, y1: 1, line };
  });
}

const drawMarks = debounce(16, () => {
  if (activity && chart.dataset.drawn !== undefined) window.Plotly.relayout(chart, { shapes: marks() });
});

async function begin() {
  const response = await fetch(chart.dataset.life);
  if (!response.ok) {
    chart.innerHTML = await response.text();
    chart.removeAttribute("aria-busy");
    updateTimes(chart);
    return;
  }
  activity = await response.json();
  chart.removeAttribute("aria-busy");
  if (activity.first === null) {
    activity = null;
    chart.closest("figure").hidden = true;
    return;
  }
  // Buckets may begin between two milliseconds, but selected times must not.
  activity.first = Math.ceil(activity.first);
  activity.last = Math.ceil(activity.last);
  // The axis and the sliders cover whole buckets.
  activity.from = activity.starts[0];
  activity.to = activity.starts.at(-1) + activity.width;
  if (activity.to - activity.from < SHORTEST) {
    const middle = (activity.first + activity.last) / 2;
    activity.from = middle - SHORTEST / 2;
    activity.to = middle + SHORTEST / 2;
  }
  const width = Math.max(activity.width, (activity.to - activity.from) / 150);
  sliders.hidden = false;
  for (const button of form.querySelectorAll("[data-step]")) button.hidden = false;
  for (const parameter of PARAMETERS) place(parameter);
  const middles = activity.starts.map((start) => start + activity.width / 2);
  const span = (index) => `${iso(activity.starts[index]).replace("T", " ").replace("Z", " UTC")}`;
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
    data: [bars(activity.began, 1, hue.began, "began"), bars(activity.ended, -1, hue.ended, "ended")],
    layout: {
      barmode: "relative",
      margin: { l: 0, r: 0, t: 4, b: 36 },
      xaxis: { type: "date", range: [activity.from, activity.to].map(onAxis), automargin: false, showgrid: false },
      yaxis: { visible: false, automargin: false },
      shapes: marks(),
    },
  }));
}

begin();

// A record's timeline: suggestions for its key, its chart, and its versions page by page.

import { draw, plain } from "./chart.js";
import { calm, load, say, times } from "./page.js";

// ---- the key: values are suggested as they are typed

const form = document.querySelector("[data-record-form]");

async function suggest(input) {
  const query = new URLSearchParams({ table: form.elements.table.value, column: input.dataset.key });
  for (const each of form.querySelectorAll("[data-key]")) {
    if (each.value !== "" && !each.disabled) query.append(`key.${each.dataset.key}`, each.value);
  }
  const answer = await fetch(`/part/keys?${query}`).catch(() => null);
  if (!answer?.ok) return;
  const list = document.getElementById(input.getAttribute("list"));
  list.replaceChildren(
    ...(await answer.json()).map((value) => {
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

// ---- the chart: one trace for each kind of thing, however many versions there are

const chart = document.querySelector("[data-chart]");
const MOST_MARKS = 400;
const utc = (milliseconds) =>
  milliseconds === null
    ? "open end"
    : new Date(milliseconds).toISOString().replace("T", " ").replace("Z", " UTC");
const NAMES = { a: "active", r: "replaced", d: "deleted" };

function traces(told, hue, range) {
  const count = told.starts.length;
  const { first, last } = range;
  const active = bag();
  const past = bag();
  const gaps = bag();
  const bounds = bag();
  const instants = bag();
  const returns = bag();
  for (let place = 0; place < count; place += 1) {
    const start = told.starts[place] ?? first;
    const end = told.ends[place] ?? last;
    const state = told.states[place];
    const words = `version ${(place + 1).toLocaleString("en")}, ${NAMES[state]}<br>from ${
      told.starts[place] === null ? "ever" : utc(start)
    }<br>until ${utc(told.ends[place])}`;
    if (end <= start) put(instants, [start], 0, words, place);
    else {
      const middle = count <= 2000 ? [start + (end - start) / 2] : [];
      // Versions that follow each other are one line: thousands of them would be as many paths.
      const goesOn = state === "r" && told.states[place + 1] !== "a";
      put(state === "a" ? active : past, [start, ...middle, end], 0, words, place, !goesOn);
    }
    if (place && told.states[place - 1] === "r") {
      bounds.x.push(start, start, null);
      bounds.y.push(-0.5, 0.5, null);
    }
    if (state === "d") {
      const until = place + 1 < count ? (told.starts[place + 1] ?? first) : last;
      const gone = `deleted<br>from ${utc(end)}${place + 1 < count ? `<br>until ${utc(until)}` : ""}`;
      put(gaps, [end, (end + until) / 2, until], 0, gone, place, true);
      if (place + 1 < count) put(returns, [until], 0.42, `came back<br>${utc(until)}`, place + 1);
    }
  }
  const line = (found, own) => ({
    type: "scatter",
    mode: "lines",
    x: found.x,
    y: found.y,
    text: found.text,
    customdata: found.places,
    hovertemplate: "%{text}<extra></extra>",
    ...own,
  });
  const few = (found) => found.x.length <= MOST_MARKS;
  const mark = (found, symbol, color) =>
    few(found)
      ? line(found, { mode: "markers", marker: { symbol, color, size: 10 } })
      : line(ticks(found), { line: { color, width: 1 }, hoverinfo: "skip" });
  const made = [
    line(gaps, { line: { color: hue.deleted, width: 2, dash: "dot" } }),
    line(past, { line: { color: hue.replaced, width: 20 } }),
    line(active, { line: { color: hue.active, width: 20 } }),
    { type: "scatter", mode: "lines", ...bounds, line: { color: hue.raised, width: 2 }, hoverinfo: "skip", name: "bounds" },
    mark(instants, "diamond", hue.warn),
    mark(returns, "triangle-up", hue.active),
    mark(ends(told), "x-thin-open", hue.deleted),
  ];
  told.lanes.forEach((lane, row) => {
    const found = bag();
    for (const place of lane.places) {
      const at = told.starts[place] ?? first;
      found.x.push(at, at, at, null);
      found.y.push(-row - 1.28, -row - 1, -row - 0.72, null);
      const words = `${plain(lane.column)} changed in version ${(place + 1).toLocaleString("en")}<br>${utc(at)}`;
      found.text.push(words, words, words, "");
      found.places.push(place, place, place, null);
    }
    made.push(line(found, { line: { color: hue.accent, width: lane.places.length > 300 ? 1 : 3 } }));
  });
  return made;
}

const bag = () => ({ x: [], y: [], text: [], places: [] });

function put(into, xs, y, words, place, isLine = false) {
  for (const x of xs) {
    into.x.push(x);
    into.y.push(y);
    into.text.push(words);
    into.places.push(place);
  }
  if (isLine) {
    into.x.push(null);
    into.y.push(null);
    into.text.push("");
    into.places.push(null);
  }
}

function ends(told) {
  const found = bag();
  for (let place = 0; place < told.states.length; place += 1) {
    if (told.states[place] === "d") put(found, [told.ends[place]], 0, `deleted<br>${utc(told.ends[place])}`, place);
  }
  return found;
}

function ticks(found) {
  const made = bag();
  found.x.forEach((x, index) => {
    made.x.push(x, x, null);
    made.y.push(found.y[index] - 0.25, found.y[index] + 0.25, null);
  });
  return made;
}

/** The axis: all of the record's own times, up to now if it is active; never the ends of time. */
function range(told) {
  const known = [...told.starts, ...told.ends].filter((time) => time !== null);
  let first = Infinity;
  let last = -Infinity;
  for (const time of known) {
    if (time < first) first = time;
    if (time > last) last = time;
  }
  if (!known.length) first = last = Date.now();
  if (told.states.endsWith("a")) last = Math.max(last, Date.now());
  const room = Math.max((last - first) * 0.02, 60000);
  return { first: first - room, last: last + room };
}

async function show() {
  const answer = await fetch(chart.dataset.chart);
  if (!answer.ok) {
    chart.innerHTML = await answer.text();
    times(chart);
    return;
  }
  const told = await answer.json();
  const whole = range(told);
  const rows = told.lanes.length;
  chart.style.height = `${92 + rows * 24}px`;
  await draw(chart, (hue) => ({
    data: traces(told, hue, whole),
    layout: {
      xaxis: { type: "date", range: [whole.first, whole.last], fixedrange: false, hoverformat: "%Y-%m-%d %H:%M:%S" },
      yaxis: {
        range: [-rows - 0.6, 0.8],
        tickvals: [0, ...told.lanes.map((_, row) => -row - 1)],
        ticktext: ["record", ...told.lanes.map((lane) => plain(lane.column, 28))],
        showgrid: false,
        zeroline: false,
      },
      dragmode: "zoom",
      hoverdistance: 30,
    },
  }));
  chart.removeAttribute("aria-busy");
  const reset = document.querySelector("[data-chart-reset]");
  const separate = () => {
    const [from, to] = chart.layout.xaxis.range.map((value) => +new Date(value));
    const seen = told.starts.filter((start) => start !== null && start >= from && start <= to).length;
    const index = chart.data.findIndex((trace) => trace.name === "bounds");
    const fits = seen <= chart.clientWidth / 6;
    if (chart.data[index].visible !== fits) window.Plotly.restyle(chart, { visible: fits }, [index]);
  };
  separate();
  chart.on("plotly_relayout", () => {
    const [from, to] = chart.layout.xaxis.range.map((value) => +new Date(value));
    reset.hidden = to - from > (whole.last - whole.first) * 0.99;
    separate();
  });
  chart.on("plotly_click", ({ points }) => {
    const place = points.find((point) => Number.isInteger(point.customdata))?.customdata;
    if (place === undefined) return;
    const version = place + 1;
    if (document.getElementById(`v${version}`)) {
      find(version);
      return;
    }
    const url = new URL(location.href);
    url.searchParams.delete("page");
    url.searchParams.set("version", version);
    turn(url, { version });
  });
  reset.addEventListener("click", () =>
    window.Plotly.relayout(chart, { "xaxis.range": [whole.first, whole.last] }),
  );
}

if (chart) show();
if (location.hash.startsWith("#v")) find(location.hash.slice(2));

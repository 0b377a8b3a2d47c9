// The chart of a record's timeline. Plotly makes an element of each piece of a line, so pieces that
// are nearer to each other than a mark is wide become one: ten thousand versions are a few elements.

import { draw, fromAxis, onAxis, plain } from "./chart.js";
import { times } from "./page.js";

const STATES = { a: "active", r: "replaced", d: "deleted" };
const MARK_PIXELS = 3;
const MOST_MARKS = 300;
/** Versions this near to each other, with as much room around them, are drawn as their number. */
const CLUSTER_PIXELS = 12;
const CLUSTERS = "clusters";
/** How much longer the axis is for the version that is true now, as a part of all before it. */
const TAIL = 0.35;
const ROW_PIXELS = 24;

const utc = (milliseconds) =>
  milliseconds === null
    ? "open end"
    : new Date(milliseconds).toISOString().replace("T", " ").replace("Z", " UTC");
const count = (number) => number.toLocaleString("en");

/**
 * A record's own times, and never the ends of time. Its present version goes on for a while, up to
 * now at most: what happened before must not be squeezed into a corner by years without a change.
 */
function lifeOf(told) {
  let first = Infinity;
  let last = -Infinity;
  for (const time of [...told.starts, ...told.ends]) {
    if (time === null) continue;
    if (time < first) first = time;
    if (time > last) last = time;
  }
  if (first === Infinity) first = last = Date.now();
  if (told.states.endsWith("a")) {
    const goesOn = last > first ? last + (last - first) * TAIL : Infinity;
    last = Math.max(last, Math.min(Date.now(), goesOn));
  }
  // A life of milliseconds keeps its scale; only one that is an instant gets a minute.
  const room = last > first ? (last - first) * 0.02 : 60000;
  return { first: first - room, last: last + room };
}

/** What a trace is made of. */
class Marks {
  x = [];
  y = [];
  text = [];
  customdata = [];

  add(x, y, text, place) {
    this.x.push(x);
    this.y.push(y);
    this.text.push(text);
    this.customdata.push(place);
  }

  /** A piece of a line, joined to the one before if there is no room to see between them. */
  piece(points, y, text, place, room) {
    const before = this.x.at(-1);
    if (before !== undefined && points[0] - before > room) this.add(null, null, "", null);
    for (const point of points) this.add(point, y, text, place);
  }

  trace(own) {
    const { y, text, customdata } = this;
    const x = this.x.map(onAxis);
    const hovertemplate = "%{text}<extra></extra>";
    return { type: "scatter", mode: "lines", x, y, text, customdata, hovertemplate, ...own };
  }
}

/**
 * Groups of versions that begin within a few pixels, where nothing else begins nearby: without
 * their number they would look like one version.
 *
 * @param near how near is near, in milliseconds.
 */
function clustersOf(starts, from, to, near) {
  const groups = [];
  starts.forEach((start, place) => {
    if (start === null || start < from || start > to) return;
    const group = groups.at(-1);
    if (group && start - group.last <= near) {
      group.last = start;
      group.count += 1;
    } else {
      groups.push({ first: start, last: start, count: 1, place });
    }
  });
  return groups.filter(({ first, last, count }) => count > 1 && last > first && last - first <= near);
}

/** What is to be drawn between two times, with marks of a width in milliseconds. */
function pieces(told, life, from, to, room) {
  const found = {
    past: new Marks(),
    active: new Marks(),
    gaps: new Marks(),
    bounds: new Marks(),
    instants: new Marks(),
    returns: new Marks(),
    deletions: new Marks(),
    clusters: new Marks(),
    lanes: told.lanes.map(() => new Marks()),
  };
  const many = told.starts.length;
  const seen = told.starts.filter((start) => start !== null && start >= from && start <= to).length;
  const hasBounds = seen <= MOST_MARKS / 2;
  for (let place = 0; place < many; place += 1) {
    const start = told.starts[place] ?? life.first;
    const end = told.ends[place] ?? life.last;
    const state = told.states[place];
    const following = place + 1 < many ? (told.starts[place + 1] ?? life.first) : life.last;
    if (following < from || start > to) continue;
    const began = told.starts[place] === null ? "ever" : utc(start);
    const words =
      `version ${count(place + 1)}, ${STATES[state]}<br>` +
      `from ${began}<br>until ${utc(told.ends[place])}`;
    if (end <= start) {
      found.instants.add(start, 0, words, place);
    } else {
      const middle = seen <= MOST_MARKS ? [(start + end) / 2] : [];
      const into = state === "a" ? found.active : found.past;
      into.piece([start, ...middle, end], 0, words, place, room);
    }
    if (place && told.states[place - 1] === "r" && hasBounds) {
      found.bounds.add(start, -0.5, "", null);
      found.bounds.add(start, 0.5, "", null);
      found.bounds.add(null, null, "", null);
    }
    if (state === "d") {
      const isBack = place + 1 < many;
      const gone = `deleted<br>from ${utc(end)}${isBack ? `<br>until ${utc(following)}` : ""}`;
      found.gaps.piece([end, (end + following) / 2, following], 0, gone, place, room);
      found.deletions.add(end, 0, gone, place);
      if (isBack) found.returns.add(following, 0.42, `came back<br>${utc(following)}`, place + 1);
    }
  }
  const near = (room * CLUSTER_PIXELS) / MARK_PIXELS;
  for (const { first, last, count: number, place } of clustersOf(told.starts, from, to, near)) {
    found.clusters.add((first + last) / 2, 0, String(number), [place, first, last]);
  }
  told.lanes.forEach((lane, row) => {
    for (const place of lane.places) {
      const at = told.starts[place] ?? life.first;
      if (at < from || at > to) continue;
      const words = `${plain(lane.column)} changed in version ${count(place + 1)}<br>${utc(at)}`;
      found.lanes[row].piece([at - room / 2, at, at + room / 2], -row - 1, words, place, 0);
    }
  });
  return found;
}

function traces(found, hue, room) {
  const mark = (marks, symbol, color) =>
    marks.x.length > MOST_MARKS
      ? joined(marks, room).trace({ line: { color, width: 5 } })
      : marks.trace({ mode: "markers", marker: { symbol, color, size: 10, line: { color, width: 1.5 } } });
  return [
    found.gaps.trace({ line: { color: hue.deleted, width: 2, dash: "dot" } }),
    found.past.trace({ line: { color: hue.replaced, width: 20 } }),
    found.active.trace({ line: { color: hue.active, width: 20 } }),
    found.bounds.trace({ line: { color: hue.raised, width: 2 }, hoverinfo: "skip" }),
    found.clusters.trace({
      name: CLUSTERS,
      mode: "markers+text",
      marker: { symbol: "circle", color: hue.raised, size: 18, line: { color: hue.accent, width: 2 } },
      textfont: { color: hue.text, size: 11 },
      hovertemplate: "%{text} versions began here<br>click to zoom in<extra></extra>",
    }),
    mark(found.instants, "diamond", hue.warn),
    mark(found.returns, "triangle-up", hue.active),
    mark(found.deletions, "x-thin-open", hue.deleted),
    ...found.lanes.map((lane) => lane.trace({ line: { color: hue.accent, width: 14 } })),
  ];
}

/** Marks that are too many to stand alone, as a line. */
function joined(marks, room) {
  const line = new Marks();
  marks.x.forEach((x, index) => {
    const at = [x, x + room / 2];
    line.piece(at, marks.y[index] + 0.1, marks.text[index], marks.customdata[index], room);
  });
  return line;
}

/** How wide the time axis is, about: the names of columns stand beside it. */
function axisPixels(chart) {
  return Math.max(chart.clientWidth - 160, 120);
}

/**
 * Draw a record's timeline.
 *
 * @param chart the element; its `data-chart` says where the versions are told.
 * @param reset a button that shows the whole life again.
 * @param more where it is told that not all columns are drawn.
 * @param choose called with the number of a version that was clicked.
 */
export async function drawTimeline(chart, reset, more, choose) {
  const answer = await fetch(chart.dataset.chart);
  if (!answer.ok) {
    chart.innerHTML = await answer.text();
    chart.removeAttribute("aria-busy");
    times(chart);
    return;
  }
  const told = await answer.json();
  const life = lifeOf(told);
  const rows = told.lanes.length;
  chart.style.height = `${92 + rows * ROW_PIXELS}px`;
  if (told.more) {
    more.hidden = false;
    more.textContent = `Of ${count(rows + told.more)} columns that changed, those that changed most; the list has all.`;
  }

  const layoutOf = (from, to) => ({
    xaxis: { type: "date", range: [from, to].map(onAxis), fixedrange: false, showspikes: false },
    yaxis: {
      range: [-rows - 0.6, 0.8],
      tickvals: [0, ...told.lanes.map((_, row) => -row - 1)],
      ticktext: ["record", ...told.lanes.map((lane) => plain(lane.column, 28))],
      showgrid: false,
      zeroline: false,
    },
    dragmode: "zoom",
    hoverdistance: 30,
  });
  const show = (from, to) =>
    draw(chart, (hue) => {
      const room = ((to - from) * MARK_PIXELS) / axisPixels(chart);
      const found = pieces(told, life, from, to, room);
      return { data: traces(found, hue, room), layout: layoutOf(from, to) };
    });
  await show(life.first, life.last);
  chart.removeAttribute("aria-busy");

  let shown = [life.first, life.last].map(Math.round).join();
  chart.on("plotly_relayout", () => {
    const [from, to] = chart.layout.xaxis.range.map(fromAxis);
    const now = [from, to].map(Math.round).join();
    if (now === shown) return;
    shown = now;
    reset.hidden = to - from > (life.last - life.first) * 0.99;
    show(from, to);
  });
  chart.on("plotly_click", ({ points }) => {
    const cluster = points.find((point) => point.data.name === CLUSTERS);
    if (cluster) {
      const [, first, last] = cluster.customdata;
      const around = (last - first) * TAIL;
      shown = "";
      reset.hidden = false;
      show(first - around, last + around);
      return;
    }
    const place = points.find((point) => Number.isInteger(point.customdata))?.customdata;
    if (place !== undefined) choose(place + 1);
  });
  reset.addEventListener("click", () => show(life.first, life.last).then(() => (reset.hidden = true)));
}

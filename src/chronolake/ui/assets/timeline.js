// The chart of a record's timeline. Plotly creates an element for each segment of a line, so segments
// that are closer together than a mark is wide are joined: 10,000 versions need only a few elements.

import { draw, fromAxis, onAxis, plain } from "./chart.js";
import { updateTimes } from "./page.js";

const STATES = { a: "active", r: "replaced", d: "deleted", x: "archived" };
const MARK_PIXELS = 3;
const MOST_MARKS = 300;
/** Groups of versions this close together, with as much space around them, are drawn as a count. */
const CLUSTER_PIXELS = 12;
const CLUSTERS = "clusters";
/** The length of the axis for the current version, as a fraction of the time before it. */
const TAIL = 0.35;
const ROW_PIXELS = 24;

const utc = (milliseconds) =>
  milliseconds === null
    ? "open end"
    : new Date(milliseconds).toISOString().replace("T", " ").replace("Z", " UTC");
const count = (number) => number.toLocaleString("en");

/**
 * Return a record's time span without the ends of time. The current version extends it up to now at
 * most, so that years without a change do not squeeze earlier versions into a corner.
 */
function spanOf(timeline) {
  let first = Infinity;
  let last = -Infinity;
  for (const time of [...timeline.starts, ...timeline.ends]) {
    if (time === null) continue;
    if (time < first) first = time;
    if (time > last) last = time;
  }
  if (first === Infinity) first = last = Date.now();
  if (timeline.states.endsWith("a")) {
    const goesOn = last > first ? last + (last - first) * TAIL : Infinity;
    last = Math.max(last, Math.min(Date.now(), goesOn));
  }
  // A span of milliseconds keeps its scale; only an instant is widened to a minute.
  const room = last > first ? (last - first) * 0.02 : 60000;
  return { first: first - room, last: last + room };
}

/** The points of a trace. */
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

  /** Add a segment of a line, joined to the previous one if the gap is too small to see. */
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
 * Return groups of versions that begin within a few pixels, where no other version begins nearby.
 * Without a count they would look like one version.
 *
 * @param near the maximum distance in milliseconds.
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

/** Return the traces between two times; `room` is the width of a mark in milliseconds. */
function pieces(timeline, span, from, to, room) {
  const found = {
    past: new Marks(),
    active: new Marks(),
    gaps: new Marks(),
    bounds: new Marks(),
    instants: new Marks(),
    returns: new Marks(),
    deletions: new Marks(),
    clusters: new Marks(),
    lanes: timeline.lanes.map(() => new Marks()),
  };
  const many = timeline.starts.length;
  const seen = timeline.starts.filter((start) => start !== null && start >= from && start <= to).length;
  const hasBounds = seen <= MOST_MARKS / 2;
  for (let place = 0; place < many; place += 1) {
    const start = timeline.starts[place] ?? span.first;
    const end = timeline.ends[place] ?? span.last;
    const state = timeline.states[place];
    const following = place + 1 < many ? (timeline.starts[place + 1] ?? span.first) : span.last;
    if (following < from || start > to) continue;
    const began = timeline.starts[place] === null ? "the beginning" : utc(start);
    const words =
      `version ${count(place + 1)}, ${STATES[state]}<br>` +
      `from ${began}<br>until ${utc(timeline.ends[place])}`;
    if (end <= start) {
      found.instants.add(start, 0, words, place);
    } else {
      const middle = seen <= MOST_MARKS ? [(start + end) / 2] : [];
      const into = state === "a" ? found.active : found.past;
      into.piece([start, ...middle, end], 0, words, place, room);
    }
    if (place && timeline.states[place - 1] === "r" && hasBounds) {
      found.bounds.add(start, -0.5, "", null);
      found.bounds.add(start, 0.5, "", null);
      found.bounds.add(null, null, "", null);
    }
    if (state === "d" || state === "x") {
      const isBack = place + 1 < many;
      const gone = `${STATES[state]}<br>from ${utc(end)}${isBack ? `<br>until ${utc(following)}` : ""}`;
      found.gaps.piece([end, (end + following) / 2, following], 0, gone, place, room);
      found.deletions.add(end, 0, gone, place);
      if (isBack) found.returns.add(following, 0.42, `revived<br>${utc(following)}`, place + 1);
    }
  }
  const near = (room * CLUSTER_PIXELS) / MARK_PIXELS;
  for (const { first, last, count: number, place } of clustersOf(timeline.starts, from, to, near)) {
    found.clusters.add((first + last) / 2, 0, String(number), [place, first, last]);
  }
  timeline.lanes.forEach((lane, row) => {
    for (const place of lane.places) {
      const at = timeline.starts[place] ?? span.first;
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
      ? joinMarks(marks, room).trace({ line: { color, width: 5 } })
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

/** Join marks to a line, if there are too many. */
function joinMarks(marks, room) {
  const line = new Marks();
  marks.x.forEach((x, index) => {
    const at = [x, x + room / 2];
    line.piece(at, marks.y[index] + 0.1, marks.text[index], marks.customdata[index], room);
  });
  return line;
}

/** Return the approximate width of the time axis, without the column names beside it. */
function axisPixels(chart) {
  return Math.max(chart.clientWidth - 160, 120);
}

/**
 * Draw a record's timeline.
 *
 * @param chart the element; its `data-chart` is the URL of the versions.
 * @param reset a button that resets the zoom.
 * @param more an element for a note if not all columns are drawn.
 * @param choose called with the number of a version that was clicked.
 */
export async function drawTimeline(chart, reset, more, choose) {
  const response = await fetch(chart.dataset.chart);
  if (!response.ok) {
    chart.innerHTML = await response.text();
    chart.removeAttribute("aria-busy");
    updateTimes(chart);
    return;
  }
  const timeline = await response.json();
  const span = spanOf(timeline);
  const rows = timeline.lanes.length;
  chart.style.height = `${92 + rows * ROW_PIXELS}px`;
  if (timeline.more) {
    more.hidden = false;
    more.textContent = `The ${count(rows)} columns with the most changes of ${count(rows + timeline.more)}; the list contains all of them.`;
  }

  const layoutOf = (from, to) => ({
    xaxis: { type: "date", range: [from, to].map(onAxis), fixedrange: false, showspikes: false },
    yaxis: {
      range: [-rows - 0.6, 0.8],
      tickvals: [0, ...timeline.lanes.map((_, row) => -row - 1)],
      ticktext: ["record", ...timeline.lanes.map((lane) => plain(lane.column, 28))],
      showgrid: false,
      zeroline: false,
    },
    dragmode: "zoom",
    hoverdistance: 30,
  });
  const show = (from, to) =>
    draw(chart, (hue) => {
      const room = ((to - from) * MARK_PIXELS) / axisPixels(chart);
      const found = pieces(timeline, span, from, to, room);
      return { data: traces(found, hue, room), layout: layoutOf(from, to) };
    });
  await show(span.first, span.last);
  chart.removeAttribute("aria-busy");

  let shown = [span.first, span.last].map(Math.round).join();
  chart.on("plotly_relayout", () => {
    const [from, to] = chart.layout.xaxis.range.map(fromAxis);
    const now = [from, to].map(Math.round).join();
    if (now === shown) return;
    shown = now;
    reset.hidden = to - from > (span.last - span.first) * 0.99;
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
  reset.addEventListener("click", () => show(span.first, span.last).then(() => (reset.hidden = true)));
}

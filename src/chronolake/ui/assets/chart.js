// Charts drawn by Plotly in the page's colours.

const charts = new Map();

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Return the page's colours for traces. */
export function colours() {
  const names = ["active", "replaced", "deleted", "began", "ended", "grid"];
  const colors = Object.fromEntries(names.map((name) => [name, colour(`--chart-${name}`)]));
  for (const name of ["text", "muted", "accent", "raised", "line", "good", "warn", "bad", "calm"]) {
    colors[name] = colour(`--${name}`);
  }
  return colors;
}

/** Escape a text for a chart: Plotly would interpret tags as formatting and links. */
export function plain(text, longest = 60) {
  const short = text.length > longest ? `${text.slice(0, longest)}…` : text;
  return short.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** The range of a time axis. */
const YEARS = { first: Date.parse("0001-01-01T00:00:00Z"), last: Date.parse("9999-12-31T00:00:00Z") };

/**
 * Format milliseconds since 1970 as a time for a chart's axis. It is a text, because Plotly treats a
 * number as a time in the browser's own time zone, where one hour of the year is missing.
 */
export function onAxis(milliseconds) {
  if (milliseconds === null) return null;
  const clamped = Math.min(Math.max(milliseconds, YEARS.first), YEARS.last);
  const whole = Math.floor(clamped);
  const micros = Math.min(Math.round((clamped - whole) * 1000), 999);
  return new Date(whole).toISOString().replace("Z", String(micros).padStart(3, "0"));
}

/** Parse a time of an axis, the inverse of `onAxis`. Plotly removes trailing zeros. */
export function fromAxis(text) {
  const [day, time = "00:00"] = String(text).split(/[T ]/);
  return Date.parse(`${day}T${time}Z`);
}

function frame(own) {
  const hue = colours();
  const axis = {
    gridcolor: hue.grid,
    linecolor: hue.line,
    zerolinecolor: hue.line,
    tickcolor: hue.line,
    automargin: true,
    fixedrange: true,
  };
  const { xaxis = {}, yaxis = {}, ...rest } = own;
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: hue.muted },
    margin: { l: 8, r: 12, t: 8, b: 8 },
    showlegend: false,
    hovermode: "closest",
    hoverlabel: { bgcolor: hue.raised, bordercolor: hue.line, font: { color: hue.text } },
    xaxis: { ...axis, ...xaxis },
    yaxis: { ...axis, ...yaxis },
    ...rest,
  };
}

function waitForPlotly() {
  if (window.Plotly) return Promise.resolve();
  return new Promise((done) => addEventListener("load", done, { once: true }));
}

/**
 * Draw a chart, and redraw it when the theme changes.
 *
 * @param element the container, which keeps its height.
 * @param make a function from the page's colours to `{ data, layout }`.
 */
export async function draw(element, make) {
  await waitForPlotly();
  charts.set(element, make);
  const { data, layout } = make(colours());
  await window.Plotly.react(element, data, frame(layout), {
    displayModeBar: false,
    responsive: true,
    doubleClick: "reset",
  });
  element.dataset.drawn = "";
}

document.addEventListener("theme", () => {
  for (const [element, make] of charts) if (element.isConnected) draw(element, make);
});

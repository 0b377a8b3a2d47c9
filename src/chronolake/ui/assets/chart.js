// Charts by Plotly, in the page's own colours.

const shown = new Map();

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** The page's colours, for traces. */
export function colours() {
  const names = ["active", "replaced", "deleted", "began", "ended", "grid"];
  const found = Object.fromEntries(names.map((name) => [name, colour(`--chart-${name}`)]));
  for (const name of ["text", "muted", "accent", "raised", "line", "good", "warn", "bad", "calm"]) {
    found[name] = colour(`--${name}`);
  }
  return found;
}

/** A text for a chart: Plotly would take tags in it for formatting, and links. */
export function plain(text, longest = 60) {
  const short = text.length > longest ? `${text.slice(0, longest)}…` : text;
  return short.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** The years that an axis has. */
const YEARS = { first: Date.parse("0001-01-01T00:00:00Z"), last: Date.parse("9999-12-31T00:00:00Z") };

/**
 * A time for a chart's axis, from milliseconds since 1970. It is a text, because Plotly takes a
 * number for a time of the browser's own zone: there, an hour of the year is missing.
 */
export function onAxis(milliseconds) {
  if (milliseconds === null) return null;
  const inside = Math.min(Math.max(milliseconds, YEARS.first), YEARS.last);
  const whole = Math.floor(inside);
  const micros = Math.min(Math.round((inside - whole) * 1000), 999);
  return new Date(whole).toISOString().replace("Z", String(micros).padStart(3, "0"));
}

/** The inverse of `onAxis`, for what Plotly makes of it: it leaves noughts at the end out. */
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

function ready() {
  if (window.Plotly) return Promise.resolve();
  return new Promise((done) => addEventListener("load", done, { once: true }));
}

/**
 * Draw a chart, and again whenever the theme changes.
 *
 * @param element where; it keeps its height.
 * @param make given the page's colours, what `{ data, layout }` are.
 */
export async function draw(element, make) {
  await ready();
  shown.set(element, make);
  const { data, layout } = make(colours());
  await window.Plotly.react(element, data, frame(layout), {
    displayModeBar: false,
    responsive: true,
    doubleClick: "reset",
  });
  element.dataset.drawn = "";
}

document.addEventListener("theme", () => {
  for (const [element, make] of shown) if (element.isConnected) draw(element, make);
});

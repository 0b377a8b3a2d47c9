// Monthly active rows as stacked bars; the table below them contains the same numbers.

import { draw, plain } from "./chart.js";
import { load } from "./page.js";

const list = document.querySelector("[data-usage]");
const chart = document.querySelector("[data-usage-chart]");
const legend = document.querySelector("[data-usage-legend]");
const colour = (number) =>
  getComputedStyle(document.documentElement).getPropertyValue(`--series-${number}`).trim();

async function show() {
  const { months, series } = JSON.parse(list.querySelector("[data-series]").textContent);
  chart.closest("figure").hidden = series.length === 0;
  if (series.length === 0) return;
  legend.replaceChildren(
    ...series.map((table, index) => {
      const key = document.createElement("span");
      key.className = `key s${Math.min(index + 1, 7)}`;
      key.textContent = table.name;
      return key;
    }),
  );
  await draw(chart, () => ({
    data: series.map((table, index) => ({
      type: "bar",
      name: plain(table.name),
      x: months,
      y: table.rows,
      marker: { color: colour(Math.min(index + 1, 7)) },
      text: table.rows.map((rows) => `${plain(table.name)}<br>${rows.toLocaleString("en")} rows`),
      textposition: "none",
      hovertemplate: "%{text}<br>%{x}<extra></extra>",
    })),
    layout: {
      barmode: "stack",
      bargap: 0.4,
      margin: { l: 44, r: 12, t: 12, b: 28 },
      // A few months do not fill the whole width with one bar each.
      xaxis: { type: "category", range: [-0.5, Math.max(months.length, 6) - 0.5], showgrid: false },
      yaxis: { rangemode: "tozero", tickformat: "~s" },
    },
  }));
}

async function pollUnread() {
  if (!list.querySelector("[data-unread]")) return;
  await new Promise((done) => setTimeout(done, 500));
  await load(list, `/part/usage${location.search}`);
  await show();
  await pollUnread();
}

show().then(pollUnread);

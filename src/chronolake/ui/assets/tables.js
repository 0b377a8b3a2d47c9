// The list of tables: search and filters as they are typed, and tables as they are read.

import { calm, load, queryOf, say } from "./page.js";

const form = document.querySelector("[data-tables-form]");
const list = document.querySelector("[data-tables]");
form.querySelector("[data-only-without-js]").hidden = true;

let waiting;

async function show(query, { quiet = false } = {}) {
  clearTimeout(waiting);
  const text = query.toString();
  const done = await load(list, `/part/tables${text ? `?${text}` : ""}`);
  if (!done) return;
  if (!quiet) {
    history.replaceState(null, "", text ? `/?${text}` : "/");
    say(list.querySelector(".pages span, .state h2")?.textContent ?? "");
  }
  again(query);
}

function again(query) {
  if (list.querySelector("[data-unread]")) {
    waiting = setTimeout(() => show(query, { quiet: true }), 400);
  }
}

const typed = calm(90, () => show(queryOf(form)));
form.addEventListener("input", (event) => {
  const { sort, order } = form.elements;
  // As the headings do it: of numbers, the greatest first.
  if (event.target === sort) order.value = "down" in sort.selectedOptions[0].dataset ? "down" : "";
  typed();
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  typed();
});

list.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-sort], a[data-page]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const query = new URL(link.href).searchParams;
  for (const name of ["sort", "order"]) form.elements[name].value = query.get(name) ?? "";
  const place = link.matches("[data-sort]") ? link.closest("th").cellIndex : -1;
  show(query).then(() => {
    const next = place < 0 ? list.querySelector(".scroll") : list.querySelectorAll("a[data-sort]")[place];
    next?.focus();
  });
});

again(new URLSearchParams(location.search));

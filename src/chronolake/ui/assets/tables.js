// The list of tables: search and filters while typing, and tables when they have been read.

import { announce, debounce, load, queryOf } from "./page.js";

const form = document.querySelector("[data-tables-form]");
const list = document.querySelector("[data-tables]");
form.querySelector("[data-only-without-js]").hidden = true;

let timer;

async function show(query, { quiet = false } = {}) {
  clearTimeout(timer);
  const text = query.toString();
  const done = await load(list, `/part/tables${text ? `?${text}` : ""}`);
  if (!done) return;
  if (!quiet) {
    history.replaceState(null, "", text ? `/?${text}` : "/");
    announce(list.querySelector(".pages span, .state h2")?.textContent ?? "");
  }
  pollUnread(query);
}

function pollUnread(query) {
  if (list.querySelector("[data-unread]")) {
    timer = setTimeout(() => show(query, { quiet: true }), 400);
  }
}

const showSoon = debounce(90, () => show(queryOf(form)));
form.addEventListener("input", (event) => {
  const { sort, order } = form.elements;
  // As the headings do: the greatest numbers first.
  if (event.target === sort) order.value = "down" in sort.selectedOptions[0].dataset ? "down" : "";
  showSoon();
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  showSoon();
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

pollUnread(new URLSearchParams(location.search));

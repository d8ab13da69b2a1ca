"use strict";

// The theme: what the system prefers, unless the reader has chosen; a page from disk may not remember the choice.
const theme = {
  key: "rampart-theme",
  stored() {
    try { return localStorage.getItem(this.key); } catch { return null; }
  },
  store(name) {
    try { localStorage.setItem(this.key, name); } catch { /* the choice lasts as long as the page */ }
  },
  get dark() {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  },
  apply(name) {
    if (name === "dark" || name === "light") document.documentElement.dataset.theme = name;
  },
};
theme.apply(theme.stored());

function startTheme() {
  const button = document.getElementById("theme");
  const show = () => button.setAttribute("aria-pressed", String(theme.dark));
  button.hidden = false;
  button.addEventListener("click", () => {
    const name = theme.dark ? "light" : "dark";
    theme.apply(name);
    theme.store(name);
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
}

// Sorting: ascending, descending, and back to the order of the comparison; rows without a number stay last.
function startSorting(table) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  const heads = [...[...table.tHead.rows].at(-1).cells];
  const compare = (column, kind) => (left, right) => {
    const [a, b] = [left, right].map((row) => row.cells[column].dataset.value);
    if (a === undefined || b === undefined) return 0;
    return kind === "number" ? Number(a) - Number(b) : a.localeCompare(b, undefined, { numeric: true });
  };
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const next = { none: "ascending", ascending: "descending", descending: "none" }[head.getAttribute("aria-sort")];
    heads.forEach((other) => other.setAttribute("aria-sort", other === head ? next : "none"));
    let rows = original;
    if (next !== "none") {
      const known = original.filter((row) => row.cells[column].dataset.value !== undefined);
      const missing = original.filter((row) => row.cells[column].dataset.value === undefined);
      const sign = next === "ascending" ? 1 : -1;
      const order = compare(column, head.dataset.kind);
      rows = [...known.sort((a, b) => sign * order(a, b)), ...missing];
    }
    body.append(...rows);
    announce(table);
  }));
}

// Below a table stands how many of its rows are shown, and how they are sorted.
function announce(table) {
  const rows = [...table.tBodies[0].rows];
  const count = rows.filter((row) => !row.hidden).length;
  const head = table.querySelector("th[aria-sort=ascending], th[aria-sort=descending]");
  const total = rows.length === 1 ? "1 row" : `${rows.length} rows`;
  const shown = table.closest("section").querySelector(".status output");
  shown.textContent = count === rows.length ? total : `${count} of ${total}`;
  if (head) shown.textContent += `, sorted by ${head.dataset.title}, ${head.getAttribute("aria-sort")}`;
}

// Filters: every filter must agree; the words of the search may stand anywhere in the row's labels.
function startFilters(tables, form) {
  const choices = [...form.querySelectorAll("select[data-label]")];
  const apply = () => {
    const words = form.querySelector("#search").value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of tables.flatMap((table) => [...table.tBodies[0].rows])) {
      const labels = `${row.dataset.dataset} ${row.dataset.method} ${row.dataset.defense}`.toLowerCase();
      const chosen = choices.every((one) => !one.value || one.value === row.dataset[one.dataset.label]);
      row.hidden = !(chosen && words.every((word) => labels.includes(word)));
    }
    tables.forEach(announce);
    document.getElementById("nothing").hidden = [...tables[0].tBodies[0].rows].some((row) => !row.hidden);
  };
  form.hidden = false;
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(apply));
  apply(); // browsers keep what was typed when a page is loaded again
}

// Groups of columns of the whole table; their titles stay in sight beside the first column.
function startGroups(table, form) {
  const apply = () => {
    for (const box of form.querySelectorAll("input[data-group]")) {
      table.classList.toggle(`hide-${box.dataset.group}`, !box.checked);
    }
    table.style.setProperty("--first", `${[...table.tHead.rows].at(-1).cells[0].offsetWidth}px`);
  };
  form.hidden = false;
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  table.closest("details").addEventListener("toggle", apply);
  apply();
}

// Arrow keys move from cell to cell, so that what pointing shows can be read without a pointer.
function startArrows(table) {
  const visible = (cell) => cell && cell.offsetParent !== null;
  const step = (cell, key) => {
    const across = { ArrowLeft: "previousElementSibling", ArrowRight: "nextElementSibling" }[key];
    const along = { ArrowUp: "previousElementSibling", ArrowDown: "nextElementSibling" }[key];
    let next = cell;
    do {
      if (across) next = next[across];
      else next = next.parentElement[along]?.cells[cell.cellIndex];
    } while (next && !visible(next));
    return next;
  };
  const body = table.tBodies[0];
  for (const cell of body.querySelectorAll("th, td")) cell.tabIndex = -1;
  if (body.rows.length) body.rows[0].cells[0].tabIndex = 0;
  body.addEventListener("keydown", (event) => {
    const cell = event.target.closest("th, td");
    if (!event.key.startsWith("Arrow") || !cell) return;
    event.preventDefault();
    const next = step(cell, event.key);
    if (!next) return;
    cell.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
}

// One tip for whatever is pointed at or focused; it follows when the page scrolls, and Escape takes it away.
function startTips() {
  const [tip, ring] = ["tip", "ring"].map((name) => document.getElementById(name));
  let about = null, pointer = null, rests = "";
  // marks of figures have their ring here
  const surround = (box) => {
    for (const side of ["left", "top"]) ring.style[side] = `${box[side] - 5}px`;
    for (const size of ["width", "height"]) ring.style[size] = `${box[size] + 10}px`;
  };
  const place = () => {
    tip.hidden = !about;
    ring.hidden = !document.activeElement.matches(".drawing [data-tip]:focus-visible");
    if (!ring.hidden) surround(document.activeElement.getBoundingClientRect());
    if (!about) return;
    tip.textContent = about.dataset.tip;
    const at = pointer ?? about.getBoundingClientRect();
    const size = tip.getBoundingClientRect();
    const below = at.bottom + 6;
    const top = below + size.height > innerHeight ? Math.max(4, at.top - size.height - 6) : below;
    tip.style.left = `${Math.max(4, Math.min(at.left, innerWidth - size.width - 12))}px`;
    tip.style.top = `${top}px`;
  };
  const show = (event) => {
    about = event.target.closest("[data-tip]") ?? event.target.querySelector(":scope > a[data-tip]");
    pointer = null;
    place();
  };
  // Within a figure, the nearest mark is meant, and the tip follows the pointer. Where the page scrolls below a pointer
  // that rests, as when the focus moves, nothing is pointed at anew.
  const point = (event) => {
    const now = `${event.clientX} ${event.clientY}`;
    if (now === rests) return;
    rests = now;
    if (!event.target.closest(".drawing")) return show(event);
    about = markAt(event.clientX, event.clientY);
    pointer = { left: event.clientX + 8, top: event.clientY - 4, bottom: event.clientY + 8 };
    place();
  };
  const hide = () => { about = null; place(); };
  document.addEventListener("mousemove", point);
  document.addEventListener("focusin", show);
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  addEventListener("scroll", () => { pointer = null; place(); }, { passive: true, capture: true });
}

// What a link leads to is shown, also where it lies in a part that is closed.
function startLinks() {
  const reveal = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const part = target?.closest("details") ?? target?.querySelector(":scope > details");
    if (!part || part.open) return;
    part.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  reveal();
}

// On paper everything is open; afterwards the page is as it was.
function startPrinting() {
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const part of opened) part.open = true;
  });
  addEventListener("afterprint", () => { for (const part of opened) part.open = false; });
}

document.addEventListener("DOMContentLoaded", () => {
  const tables = ["rows", "comparison"].map((name) => document.getElementById(name));
  startTheme();
  for (const table of tables) {
    startSorting(table);
    startArrows(table);
  }
  startFilters(tables, document.getElementById("controls"));
  startGroups(tables[1], document.getElementById("groups"));
  startMarks();
  startChoice(tables[0]);
  startTips();
  startLinks();
  startPrinting();
});

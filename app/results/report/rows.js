
// Marks of figures and lines of tables belong to rows of the comparison: `data-rows` has their places, `data-tip` what
// a mark says. Of thin lines, those near the pointer are meant.
const NEAR = [0, 3, 6, 9];

function markAt(x, y) {
  for (const reach of NEAR) {
    for (let turn = 0; turn < (reach ? 8 : 1); turn++) {
      const angle = (turn * Math.PI) / 4;
      const found = document.elementFromPoint(x + reach * Math.cos(angle), y + reach * Math.sin(angle));
      const mark = found?.closest(".drawing [data-tip]");
      if (mark) return mark;
    }
  }
  return null;
}

// Marks can be focused: one per figure by the tab key, from there the others by arrow keys.
function startMarks() {
  for (const drawing of document.querySelectorAll(".drawing")) {
    const marks = [...drawing.querySelectorAll("[data-tip]")];
    if (!marks.length) continue;
    drawing.querySelector("svg").setAttribute("role", "group");
    marks.forEach((mark, place) => {
      mark.setAttribute("tabindex", place ? -1 : 0);
      mark.setAttribute("role", "button");
      mark.setAttribute("aria-label", mark.dataset.tip);
      mark.setAttribute("aria-pressed", "false");
    });
    drawing.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
      const place = marks.indexOf(event.target);
      if (!step || place < 0) return;
      event.preventDefault();
      const next = marks[(place + step + marks.length) % marks.length];
      marks[place].setAttribute("tabindex", -1);
      next.setAttribute("tabindex", 0);
      next.focus();
    });
  }
  for (const words of document.querySelectorAll(".legend.marks")) words.hidden = false;
}

// One row may be chosen: everything that belongs to it stays as it is, marks and lines of other rows are dimmed.
function startChoice(table) {
  const note = document.getElementById("chosen");
  const parts = [...document.querySelectorAll("[data-rows]")];
  let chosen = null;
  const choose = (row) => {
    chosen = row === chosen ? null : row;
    for (const part of parts) {
      const own = part.dataset.rows.split(" ").includes(chosen);
      part.classList.toggle("chosen", own);
      part.classList.toggle("dimmed", chosen !== null && !own);
      for (const button of [part, ...part.querySelectorAll("[aria-pressed]")]) {
        if (button.hasAttribute("aria-pressed")) button.setAttribute("aria-pressed", String(own));
      }
    }
    note.hidden = chosen === null;
    const line = [...table.tBodies[0].rows].find((one) => one.dataset.rows === chosen);
    note.firstChild.textContent = line ? `Shown: ${line.cells[0].dataset.value} on ${line.dataset.dataset}` : "";
  };
  const rowOf = (element) => {
    const row = element?.closest("tr[data-rows], .drawn")?.dataset.rows;
    return row && !row.includes(" ") ? row : null;
  };
  for (const name of table.querySelectorAll("tbody .name")) {
    for (const [key, value] of [["role", "button"], ["tabindex", 0], ["aria-pressed", "false"]]) name.setAttribute(key, value);
  }
  document.addEventListener("click", (event) => {
    if (event.target.closest("a, summary, button") || String(getSelection())) return;
    const near = event.target.closest(".drawing") && event.detail ? markAt(event.clientX, event.clientY) : null;
    const row = rowOf(event.target) ?? rowOf(near);
    if (row) choose(row);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && chosen !== null) choose(chosen);
    if (!["Enter", " "].includes(event.key) || !event.target.matches("td, th, .name, .drawing [data-tip]")) return;
    const row = rowOf(event.target);
    if (!row) return;
    event.preventDefault();
    choose(row);
  });
  note.querySelector("button").addEventListener("click", () => { if (chosen !== null) choose(chosen); });
}

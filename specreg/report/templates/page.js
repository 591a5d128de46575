// Sorts and filters the tables, labels their cells, and opens the case that the address names.
(() => {
  // In a narrow window the headings are hidden, and each cell shows its own. A page of many cases
  // has ten thousand cells, so its file doesn't hold them.
  for (const table of document.querySelectorAll(".rows table")) {
    const headings = [...table.tHead.rows[0].cells].map(cell => cell.textContent.trim());
    for (const row of table.tBodies[0].rows) {
      for (const cell of row.cells) cell.dataset.of = headings[cell.cellIndex];
    }
  }

  const number = text => {
    const match = /[-+]?[\d.]+/.exec(text);
    return match ? Number(match[0]) : Number.NEGATIVE_INFINITY;
  };
  const openTarget = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target instanceof HTMLDetailsElement) {
      target.open = true;
      target.scrollIntoView();
    }
  };
  addEventListener("hashchange", openTarget);
  openTarget();

  const filter = document.getElementById("filter");
  if (filter) {
    filter.closest("label").hidden = false;
    filter.addEventListener("input", () => {
      const words = filter.value.toLowerCase().split(/\s+/);
      for (const row of document.querySelectorAll("[data-case]")) {
        const text = row.dataset.case.toLowerCase();
        row.classList.toggle("filtered", !words.every(word => text.includes(word)));
      }
    });
  }

  for (const button of document.querySelectorAll("button.sort")) {
    button.disabled = false;
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const body = head.closest("table").tBodies[0];
      const column = head.cellIndex;
      const descends = head.getAttribute("aria-sort") === "ascending";
      for (const cell of head.parentElement.cells) cell.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", descends ? "descending" : "ascending");
      const rows = [...body.rows];
      const text = row => row.cells[column].textContent.trim();
      rows.sort((a, b) => column
        ? number(text(a)) - number(text(b))
        : text(a).localeCompare(text(b), undefined, { numeric: true }));
      if (descends) rows.reverse();
      body.append(...rows);
    });
  }
})();

"use strict";
// Tables marked "sortable": a click on a column's button sorts by it, a second click turns the order round.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = Array.from(table.tHead.rows[0].cells);
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => row.cells[column].dataset.sort;
      const numeric = (row) => row.cells[column].dataset.numeric === "1";
      const compare = (a, b) => {
        const x = key(a), y = key(b);
        if (x === "" || y === "") return (x === "") - (y === ""); // what is not known stays last
        const order = numeric(a) && numeric(b) ? Number(x) - Number(y) : x.localeCompare(y);
        return up ? order : -order;
      };
      const body = table.tBodies[0];
      body.append(...Array.from(body.rows).sort(compare));
    });
  });
}

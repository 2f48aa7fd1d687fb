// Flame graphs: a click or Enter widens a frame to the whole width, Escape shows all again; arrow keys walk the tree.
for (const graph of document.querySelectorAll(".flame")) {
  const tree = graph.querySelector("[role=tree]");
  const told = graph.querySelector("output");
  const silent = told.textContent;
  const item = (node) => node.closest("[role=treeitem]");
  const caller = (li) => item(li.parentElement);
  const wide = (li) => {
    for (const other of tree.querySelectorAll(".whole, .aside")) other.classList.remove("whole", "aside");
    for (let at = li; at; at = caller(at)) {
      at.classList.add("whole");
      for (const sibling of at.parentElement.children) if (sibling !== at) sibling.classList.add("aside");
    }
  };
  const go = (li) => {
    if (!li) return;
    for (const other of tree.querySelectorAll("[tabindex='0']")) other.tabIndex = -1;
    li.tabIndex = 0;
    li.focus({ preventScroll: true });
  };
  const say = (li) => { told.textContent = li ? li.firstElementChild.textContent : silent; };
  let zoomed = null;
  const toggle = (li) => { zoomed = zoomed === li ? null : li; wide(zoomed); };
  tree.querySelector("[role=treeitem]").tabIndex = 0;
  tree.addEventListener("click", (event) => { const li = item(event.target); if (li) { toggle(li); go(li); } });
  tree.addEventListener("focusin", (event) => say(item(event.target)));
  tree.addEventListener("mouseover", (event) => say(item(event.target)));
  tree.addEventListener("mouseleave", () => say(null));
  tree.addEventListener("keydown", (event) => {
    const li = item(event.target);
    const to = {
      ArrowRight: () => go(li.nextElementSibling), ArrowLeft: () => go(li.previousElementSibling),
      ArrowDown: () => go(li.querySelector("[role=treeitem]")), ArrowUp: () => go(caller(li)),
      Enter: () => toggle(li), " ": () => toggle(li), Escape: () => { zoomed = null; wide(null); },
    }[event.key];
    if (!to) return;
    event.preventDefault();
    to();
  });
}

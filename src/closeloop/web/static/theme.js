// Before anything is drawn: the theme that was chosen here, if one was; and keys that are pressed
// before the scripts have loaded, which app.js then takes up.
(() => {
  const chosen = localStorage.getItem("closeloop-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  window.earlyKeys = [];
  const keep = (event) => {
    if (window.earlyKeys === null) {
      document.removeEventListener("keydown", keep);
    } else if (!event.target.closest?.("input, textarea, select, [contenteditable]")) {
      window.earlyKeys.push(event);
    }
  };
  document.addEventListener("keydown", keep);
})();

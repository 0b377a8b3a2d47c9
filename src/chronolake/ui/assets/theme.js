// In the head and not a module: the theme is chosen before anything is painted.
(() => {
  const kept = (() => {
    try {
      return localStorage.getItem("chronolake-theme");
    } catch {
      return null;
    }
  })();
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();

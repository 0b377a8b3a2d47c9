// In the head, and not a module, so that the theme is applied before the page is painted.
(() => {
  const stored = (() => {
    try {
      return localStorage.getItem("chronolake-theme");
    } catch {
      return null;
    }
  })();
  if (stored === "light" || stored === "dark") document.documentElement.dataset.theme = stored;
})();

"""What axe finds on a page: it reads one as a screen reader would, and measures contrast."""

from __future__ import annotations

from importlib.resources import files

from playwright.sync_api import Page

CONTRAST = "runOnly: ['color-contrast']"
# Only violations are told, and are brought here: all that is right would be megabytes a page.
RUN = """async () => {
  const { violations } = await axe.run({ resultTypes: ['violations'], OPTIONS })
  const texts = (found) => found.nodes.slice(0, 3).map((node) => node.html.slice(0, 200))
  return Object.fromEntries(violations.map((found) => [found.id, texts(found)]))
}"""


def find_violations(page: Page, options: str = "") -> dict[str, list[str]]:
    """Each rule that a page breaks, with the first elements that break it."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text())
    violations: dict[str, list[str]] = page.evaluate(RUN.replace("OPTIONS", options))
    return violations

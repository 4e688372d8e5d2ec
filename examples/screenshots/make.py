"""Screenshots for the README and the docs, taken of the demo's dashboard.

python examples/screenshots/make.py DEMO FOLDER

DEMO is what `make demo` has built, FOLDER is where the pictures go. It takes Chromium, and
playwright from the group of test packages.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

from playwright.sync_api import Page, expect, sync_playwright

WIDTH, HEIGHT = 1180, 720
LOWER = {"review": 520}
"""Where so much would be a large file."""
LARGEST = 150_000
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def attempt_with(address: str, rule: str) -> str:
    """The newest attempt in which a rule found something."""
    with urlopen(f"{address}/api/attempts?rule={rule}&limit=1") as answer:
        return str(json.load(answer)["lines"][0]["row"]["id"])


def pictures(address: str) -> dict[str, str]:
    """By name, what is looked at."""
    spiral, dropped = attempt_with(address, "spiral"), attempt_with(address, "dropped-brief")
    return {
        "overview": "/",
        "compare": "/compare?variants=careful&variants=looping",
        "spiral": f"/attempts/{spiral}/iterations",
        "handoff": f"/attempts/{dropped}/handoffs",
        "review": "/review",
    }


def take(page: Page, address: str, folder: Path) -> None:
    for name, path in pictures(address).items():
        page.set_viewport_size({"width": WIDTH, "height": LOWER.get(name, HEIGHT)})
        page.goto(address + path)
        expect(page.get_by_text("Computing…")).to_have_count(0, timeout=60_000)
        page.wait_for_timeout(500)
        file = folder / f"{name}.png"
        page.screenshot(path=file)
        size = file.stat().st_size
        print(f"{file}: {size / 1000:.0f} KB")
        assert size <= LARGEST, f"{file} is larger than {LARGEST / 1000:.0f} KB"


def main(demo: Path, folder: Path) -> None:
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        sys.exit("There is no Chromium: install it, as with `apt install chromium`.")
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "closeloop", "serve", "--port", "0"]
    environ = {**os.environ, "LOGNAME": "ann"}
    with subprocess.Popen(
        command, cwd=demo, env=environ, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            address = re.search(r"http://\S+", server.stdout.readline())
            assert address is not None, "the server says where it listens"
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
                take(browser.new_page(), address[0], folder.absolute())
                browser.close()
        finally:
            server.terminate()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))

"""A real browser, what `make test-browser` installs beside it, and a page that is watched."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parent.parent
INSTALLED = ROOT / ".browser"
SCREENSHOTS = INSTALLED / "screenshots"


@dataclass
class Watched:
    """A page with everything that it asked for and complained about."""

    page: Page
    addresses: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def violations(self) -> list[str]:
        """What axe-core finds wrong, one line each."""
        self.page.evaluate((INSTALLED / "node_modules/axe-core/axe.min.js").read_text())
        found = self.page.evaluate("async () => (await axe.run()).violations")
        return [f"{one['id']}: {[node['html'][:120] for node in one['nodes']]}" for one in found]

    def keep(self, name: str) -> None:
        """Pictures for a person to look at, as wide as a screen and as a telephone."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        before = self.page.viewport_size
        for width in (1280, 390):
            self.page.set_viewport_size({"width": width, "height": 900})
            self.page.screenshot(path=SCREENSHOTS / f"{name}-{width}.png", full_page=True)
        if before is not None:
            self.page.set_viewport_size(before)

    def printed(self, name: str) -> int:
        """Print it to a file for a person to look at; how many pages it has."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        paper = self.page.pdf(prefer_css_page_size=True)
        (SCREENSHOTS / f"{name}.pdf").write_bytes(paper)
        return pages_of(paper)

    def overflows(self, width: int = 390) -> list[str]:
        """What sticks out to the right of a narrow screen and cannot be scrolled to."""
        self.page.set_viewport_size({"width": width, "height": 900})
        return self.page.evaluate(_OVERFLOWS)

    def too_wide_for_paper(self) -> list[str]:
        """What sticks out of an A4 page, so that the browser would shrink everything, or cut it."""
        self.page.emulate_media(media="print")
        self.page.set_viewport_size({"width": 688, "height": 1017})  # A4 within its margins
        return self.page.evaluate(_OVERFLOWS)


def pages_of(paper: bytes) -> int:
    """How many pages a PDF has."""
    return len(re.findall(rb"/Type\s*/Page\b", paper))


_OVERFLOWS = """() => {
  const wide = document.documentElement.clientWidth;
  const scrolls = (one) => one && (getComputedStyle(one).overflowX === "auto" || scrolls(one.parentElement));
  return [...document.querySelectorAll("body *")]
    .filter((one) => one.getBoundingClientRect().right > wide + 1 && !scrolls(one) && !one.closest("svg"))
    .map((one) => one.outerHTML.slice(0, 100));
}"""


@contextmanager
def launched() -> Iterator[Browser]:
    """Debian's chromium, driven by Playwright."""
    program = shutil.which("chromium")
    assert program, "run `make test-browser`, which installs chromium"
    from playwright.sync_api import sync_playwright  # the default tests collect this file without it

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def watching(browser: Browser) -> Iterator[Callable[..., Watched]]:
    """Open watched pages, light or dark, wide or narrow."""
    contexts = []

    def opened(address: str, *, scheme: Literal["light", "dark"] = "light", width: int = 1100) -> Watched:
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
        context.set_default_timeout(120_000)  # a busy machine is slow, not wrong
        contexts.append(context)
        watched = Watched(context.new_page())
        watched.page.on("request", lambda request: watched.addresses.append(request.url))
        watched.page.on("console", lambda said: said.type in ("error", "warning") and complain(said.text))
        watched.page.on("pageerror", lambda error: complain(str(error)))
        watched.page.on("dialog", lambda dialog: complain(f"a dialog: {dialog.message}"))
        complain = watched.complaints.append
        watched.page.goto(address)
        return watched

    yield opened
    for context in contexts:
        context.close()

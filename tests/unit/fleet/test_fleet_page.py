"""The HTML page of ten thousand nodes: small, complete, and usable in Chromium."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuipc_doctor.fleet import fleet_exports, fold
from gpuipc_doctor.fleet.summary import NodeReport
from tests.browser import Browser, chromium
from tests.sample_fleets import a_fleet, ten_thousand

MAX_BYTES = 2_000_000

FIRST_PAINT_MS = 1000
"""Limit for the fastest of several loads, because other tests use the processor."""

STATES: dict[str, dict[str, int]] = {"healthy": {}, "bad": {"failing": 200, "silent": 300}}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of ten thousand nodes, by state of the fleet."""
    directory = tmp_path_factory.mktemp("pages")
    return {state: written(directory, state, ten_thousand(**those)) for state, those in STATES.items()}


def written(directory: Path, name: str, reports: list[NodeReport]) -> Path:
    path = directory / f"{name}.html"
    path.write_text(fleet_exports.html(fold.fold(reports)))
    return path


@pytest.mark.full
@pytest.mark.parametrize(
    ("failing", "silent", "differing"),
    [
        (10_000, 0, True),
        *(
            pytest.param(*other, marks=pytest.mark.full)
            for other in (
                (0, 0, False),
                (200, 300, False),
                (10_000, 0, False),
                (0, 10_000, True),
                (5_000, 5_000, True),
            )
        ),
    ],
)
def test_page_of_ten_thousand_nodes_is_small_in_any_state(failing: int, silent: int, differing: bool) -> None:
    reports = ten_thousand(failing=failing, silent=silent, differing=differing)
    page = fleet_exports.html(fold.fold(reports))
    assert len(page.encode()) <= MAX_BYTES
    assert re.findall(r"<tr><td>(nid\d+)<td", page) == [report.node for report in reports]


@pytest.mark.browser
@pytest.mark.parametrize("state", STATES)
def test_first_paint_of_ten_thousand_nodes_takes_at_most_a_second(
    browser: Browser, pages: dict[str, Path], state: str
) -> None:
    paint = (
        "new Promise(done => new PerformanceObserver(list => done(list.getEntries()[0].startTime))"
        ".observe({type: 'paint', buffered: true}))"
    )
    for _ in range(10):
        browser.open(pages[state])
        if (took_ms := browser.ask(paint)) <= FIRST_PAINT_MS:
            break
    else:
        pytest.fail(f"first paint after {took_ms} ms")
    browser.picture(f"fleet-{state}.png")
    browser.style(scheme="dark")
    dark = browser.ask("getComputedStyle(document.body).backgroundColor")
    browser.picture(f"fleet-{state}-dark.png")
    browser.style(scheme="light")
    assert dark != browser.ask("getComputedStyle(document.body).backgroundColor")


@pytest.mark.browser
@pytest.mark.parametrize("state", STATES)
def test_important_parts_are_visible_at_1280_pixels(
    browser: Browser, pages: dict[str, Path], state: str
) -> None:
    browser.open(pages[state])
    heads = "[...document.querySelectorAll('#groups th, #all th')]"
    assert browser.ask(f"{heads}.map(head => head.textContent)") == [
        *("nodes", "how many", "worst", "what"),
        *("node", "worst", "what"),
    ]
    assert browser.ask(f"Math.max(...{heads}.map(head => head.getBoundingClientRect().right))") <= 1280
    assert browser.ask("document.documentElement.scrollWidth") <= 1280
    cells = "[...document.querySelectorAll('td, article')]"
    assert browser.ask(f"Math.max(...{cells}.map(cell => cell.getBoundingClientRect().right))") <= 1280


@pytest.mark.browser
@pytest.mark.parametrize("width", [400, 360])
def test_everything_fits_a_telephone(browser: Browser, tmp_path: Path, width: int) -> None:
    pages = {"sample": a_fleet(), **{state: ten_thousand(**those)[:600] for state, those in STATES.items()}}
    for name, reports in pages.items():
        browser.open(written(tmp_path, name, reports), width=width)
        assert browser.ask("document.documentElement.scrollWidth") <= width
        cells = "[...document.querySelectorAll('h1, p, th, td, article, input')]"
        parts = f"{cells}.filter(one => one.checkVisibility() && !one.closest('.scroll'))"
        assert browser.ask(f"Math.max(...{parts}.map(one => one.getBoundingClientRect().right))") <= width
        browser.picture(f"fleet-{name}-{width}.png")


def test_page_begins_with_the_verdict() -> None:
    page = fleet_exports.html(fold.fold(a_fleet()))
    verdict = re.search("<h1>(.*?)</h1>", page)
    assert verdict
    assert re.match(r"REJECT \d+ \(.*\), CANNOT TELL \d+ \(.*\), ACCEPT \d+$", verdict[1])
    assert f"<title>{verdict[1]}</title>" in page


@pytest.mark.browser
def test_headers_sort_by_severity_with_the_keyboard(browser: Browser, tmp_path: Path) -> None:
    browser.open(written(tmp_path, "page", a_fleet()))
    seen = (
        "[...new Set([...document.querySelectorAll('#all td:nth-child(2)')]"
        ".map(cell => cell.textContent.trim().split(' ')[1]))].join()"
    )
    for _ in range(100):
        browser.press("Tab")
        if (
            browser.ask("document.activeElement.closest('#all') && document.activeElement.textContent")
            == "worst"
        ):
            break
    order = []
    for key in ("Enter", "Space"):
        browser.press(key)
        order.append((browser.ask("document.activeElement.ariaSort"), browser.ask(seen)))
    assert order == [("ascending", "FAIL,ERROR,PASS"), ("descending", "PASS,ERROR,FAIL")]
    browser.press("Tab")
    browser.press("Enter")
    assert browser.ask("document.querySelectorAll('#all [aria-sort]').length") == 1


@pytest.mark.browser
def test_node_is_found_by_its_reason_and_unfolds_to_its_findings(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["bad"])

    def shown(word: str) -> list[str]:
        browser.ask("document.querySelector('input').value = ''; document.querySelector('input').focus()")
        browser.call("Input.insertText", text=word)
        found: list[str] = browser.ask(
            "[...document.querySelectorAll('#all tbody tr')].filter(row => !row.hidden)"
            ".map(row => row.cells[0].textContent)"
        )
        return found

    assert len(shown("fan 3 is dead")) == 60
    assert shown("nid000123") == ["nid000123"]
    row = "[...document.querySelectorAll('#all tbody tr')].find(row => !row.hidden)"
    browser.ask(f"{row}.querySelector('summary').focus()")
    browser.press("Enter")
    words = f"{row}.querySelector('details p')"
    assert browser.ask(f"{words}.checkVisibility()")
    assert "0x7b000" in browser.ask(f"{words}.textContent")
    browser.ask(f"{row}.scrollIntoView({{block: 'center'}})")
    browser.picture("fleet-bad-node.png")


@pytest.mark.browser
def test_silent_node_links_to_its_cause(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["bad"])
    causes = browser.ask(
        "[...document.querySelectorAll('#all tbody tr a')].map(a => "
        "[a.textContent, document.querySelector(a.getAttribute('href')).textContent])"
    )
    assert len(causes) == 300
    assert all(text.partition(":")[0] in cause for text, cause in causes)


@pytest.mark.browser
def test_printed_page_has_the_bad_nodes_unfolded(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["bad"])
    browser.style(media="print")
    rows = "[...document.querySelectorAll('#all tbody tr')].filter(row => row.checkVisibility()).length"
    folded = "document.querySelector('#all details p').checkVisibility({contentVisibilityAuto: true})"
    assert (browser.ask(rows), browser.ask(folded)) == (500, True)
    assert browser.ask("document.querySelector('input').checkVisibility()") is False
    browser.call(
        "Emulation.setDeviceMetricsOverride", width=794, height=1123, deviceScaleFactor=1, mobile=False
    )
    browser.picture("fleet-bad-print.png")
    browser.style()

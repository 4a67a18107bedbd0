"""The HTML page is readable without script, and shows everything in a report as text only."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given

from gpuipc_doctor.fleet import fleet_exports, fold
from gpuipc_doctor.model import Fact, Finding
from gpuipc_doctor.report import node_exports
from gpuipc_doctor.report_types import Report, Result
from tests.sample_fleets import a_fleet
from tests.sample_reports import PROPERTY, REOPEN_ISSUE, gpus, healthy, replaced, reports, seed_002
from tests.waiting import LIMIT_S

HOSTILE = "</script><img src=x onerror=document.title='taken'><b>\x1b[31m{{ 7 * 7 }}\"'"


class Elements(HTMLParser):
    """The tags of a page, and the text between them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not any(name.startswith("on") for name, _ in attrs)
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def hostile() -> Report:
    """A report in which every external text is an attack."""
    told = Finding.fail("hostile", HOSTILE + " {x}", HOSTILE, remedy=HOSTILE, x=HOSTILE)
    report = replaced(healthy(gpus(1)), Result("ipc-stale", told, ("cuda:0",), HOSTILE))
    return replaced(report, host=HOSTILE, simulated=HOSTILE, inventory=(Fact("kernel", HOSTILE, HOSTILE),))


def test_page_has_each_known_issue_once_with_its_remedy() -> None:
    text = Elements(node_exports.html(seed_002())).text
    assert text.count(f"Known issue nvidia-ipc-reopen CONFIRMED: {REOPEN_ISSUE.title}") == 1
    assert "Known issue nvidia-ipc-reopen CONFIRMED, see above." in text
    assert text.count(f"Do: {REOPEN_ISSUE.remedy}") == text.count(REOPEN_ISSUE.remedy) == 1
    assert "The name after each is its key" in text


def test_page_has_the_number_of_passed_pairs() -> None:
    text = Elements(node_exports.html(seed_002())).text
    assert ("✗ FAIL" in text, "✓ PASS" in text, "4/4" in text) == (True, True, False)


@pytest.mark.parametrize("needs_gpu", [True, False])
def test_page_of_checks_without_gpus_does_not_say_nothing_was_tested(needs_gpu: bool) -> None:
    page = node_exports.html(replace(healthy(gpus(1)), probes_run=0, needs_gpu=needs_gpu))
    assert ("NOTHING WAS TESTED" in page) is needs_gpu


def test_hostile_strings_are_escaped() -> None:
    page = Elements(node_exports.html(hostile()))
    harmless = Elements(node_exports.html(replaced(hostile(), host="x")))
    assert page.tags == harmless.tags
    assert "img" not in page.tags
    assert "\x1b" not in page.text
    assert "{{ 7 * 7 }}" in page.text


@PROPERTY
@given(reports)
def test_any_report_is_a_page(report: Report) -> None:
    undrawn = tuple(replace(result, series=()) for result in report.results)  # pictures take long
    Elements(node_exports.html(replace(report, results=undrawn)))


def test_fleet_page() -> None:
    page = Elements(fleet_exports.html(fold.fold(a_fleet())))
    for said in ("40 nodes", "nid[0035-0036]", "no report: not reachable", "450.102.04", "nid0007"):
        assert said in page.text
    assert "Known issue nvidia-ipc-reopen CONFIRMED: " in page.text
    assert page.text.count("keep the importer's context") == 1


@pytest.mark.browser
def test_browser_executes_no_text_of_a_report(tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    assert browser
    (tmp_path / "page.html").write_text(node_exports.html(hostile()))
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}/profile",
        "--dump-dom",
    ]
    ended = subprocess.run(
        [browser, *options, f"file://{tmp_path}/page.html"], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert "<title>taken</title>" not in ended.stdout
    assert "<table" in ended.stdout
    assert '<input data-filters="facts"' in ended.stdout  # no longer hidden: our own script ran

"""The documentation site builds without a warning and loads nothing from the network."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuipc_doctor import knownissues
from gpuipc_doctor.api.loader import LoadedCheck
from gpuipc_doctor.cli.main import COMMANDS
from gpuipc_doctor.cli.schema import schemas
from gpuipc_doctor.run import check_files
from tests.waiting import LIMIT_S

REPOSITORY = Path(__file__).parents[2]
PICTURES = REPOSITORY / "build/docs/pictures"

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("site")]  # Sphinx takes 79 processor seconds


def build(builder: str, target: Path) -> None:
    options = ("--quiet", "--fail-on-warning", "--nitpicky", "-b", builder, "-d", str(target / "doctrees"))
    ended = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, "docs", str(target / builder)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    build("html", directory)
    return directory / "html"


def test_each_check_command_schema_and_known_issue_is_on_the_site(site: Path) -> None:
    for item in check_files.load():
        assert isinstance(item, LoadedCheck)
        assert item.check.id in (site / f"generated/check-{item.check.id}.html").read_text()
    commands = (site / "generated/commands.html").read_text()
    assert all(f"gpuipc-doctor {name}" in re.sub(r"<[^>]*>", "", commands) for name in COMMANDS)
    assert all(f'id="{name}"' in (site / "generated/schemas.html").read_text() for name in schemas())
    listed = (site / "generated/known-issues.html").read_text()
    for issue in knownissues.load():
        assert issue.references[0].url in (site / f"generated/issue-{issue.id}.html").read_text()
        assert issue.withdrawn or f"issue-{issue.id}.html" in listed
    for message in knownissues.load_messages():
        assert message.id in (site / f"generated/message-{message.id}.html").read_text()
    caught = (site / "generated/check-ipc-release.html").read_text()
    assert "leak-on-open" in caught
    assert '"Xid 79"' in (site / "searchindex.js").read_text()  # a heading, which the search prefers
    assert "hang-ipc-open" in (site / "generated/profiles.html").read_text()


def test_titles_are_what_people_search_for_and_indices_name_each_page(site: Path) -> None:
    timeout = (site / "generated/message-pytorch-collective-timeout.html").read_text()
    title, *_ = re.findall("<title>(.*?)</title>", timeout)
    assert title.startswith("Watchdog caught collective operation timeout")
    pages = {str(page.relative_to(site)) for page in site.rglob("*.html")}
    pages -= {"genindex.html", "search.html"}  # Sphinx's own
    assert set(re.findall(r"\]\(([^)]*\.html)\)$", (site / "llms.txt").read_text(), re.MULTILINE)) == pages
    assert set(re.findall("<loc>(.*?)</loc>", (site / "sitemap.xml").read_text())) == pages


LOADED = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*\bsrc="(\w+:)?//|<link[^>]*\bhref="(\w+:)?//|url\(["']?https?:"""
)


def test_a_reader_needs_no_network(site: Path) -> None:
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(pages) > 40
    assert [page.name for page in pages if LOADED.search(page.read_text())] == []


def test_the_manual_page_names_every_command(site: Path) -> None:
    build("man", site.parent)
    text = (site.parent / "man/gpuipc-doctor.1").read_text().replace("\\-", "-")
    assert text.count(".TH") == 1
    assert "\u2013" not in text  # an en dash in place of --
    assert all(name in text for name in COMMANDS)


@pytest.mark.browser
@pytest.mark.parametrize("width", [400, 1280])
def test_a_browser_draws_it(site: Path, tmp_path: Path, width: int) -> None:
    """The screenshots stay in build/docs/pictures for inspection."""
    browser = shutil.which("chromium")
    assert browser
    PICTURES.mkdir(parents=True, exist_ok=True)
    for page in ("index", "generated/check-ipc-release"):
        picture = PICTURES / f"{Path(page).name}-{width}.png"
        picture.unlink(missing_ok=True)
        options = (
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--allow-file-access-from-files",
        )
        subprocess.run(
            [
                browser,
                *options,
                f"--user-data-dir={tmp_path}/profile",
                f"--window-size={width},1600",
                f"--screenshot={picture}",
                f"file://{site}/{page}.html",
            ],
            capture_output=True,
            check=True,
            timeout=LIMIT_S,
        )
        assert picture.stat().st_size > 20_000

"""Sphinx: the pages of this directory, and pages generated from the checks, their drills and the commands."""

from __future__ import annotations

import inspect
import posixpath
import re
import textwrap
from collections import Counter, defaultdict
from functools import cache
from importlib.metadata import metadata
from pathlib import Path

from sphinx.application import Sphinx

from gpuipc_doctor import __version__, knownissues
from gpuipc_doctor.api import loader
from gpuipc_doctor.api.loader import LoadedCheck
from gpuipc_doctor.cli import explain
from gpuipc_doctor.cli.main import COMMANDS
from gpuipc_doctor.cli.schema import schemas
from gpuipc_doctor.files import tables
from gpuipc_doctor.histories.legality import rules
from gpuipc_doctor.histories.memory_operations import TYPES
from gpuipc_doctor.knownissues import KnownIssue, Message, issue_content
from gpuipc_doctor.run import check_files
from gpuipc_doctor.simulator import profile

REPOSITORY = Path(__file__).parent.parent

project = "gpuipc-doctor"
author = copyright = "The gpuipc-doctor authors"  # noqa: A001 (Sphinx's name)
version = release = __version__
extensions = ["myst_parser", "sphinx_click"]
myst_enable_extensions = ["attrs_inline"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"gpuipc-doctor {__version__}"
html_copy_source = html_show_sphinx = False
highlight_language = "none"
smartquotes = False  # else the manual page, which shares the doctrees, has dashes for --
man_pages = [("generated/commands", "gpuipc-doctor", "diagnose GPU IPC and GPU-aware MPI", [author], 1)]

GENERATED = Path(__file__).parent / "generated"
CHAPTERS = {
    "CONTRIBUTING.md": "generated/contributing.md",
    "SECURITY.md": "generated/security.md",
    "benchmarks/README.md": "generated/measurements.md",
}
FOUND_BY_LINKS = {
    f"benchmarks/{file.name}": f"generated/measured-{file.name}"
    for file in (REPOSITORY / "benchmarks").glob("*.md")
    if file.name != "README.md"
} | {"tests/conformance/cuda-vmm-semantics-h200.md": "generated/cuda-vmm-semantics-h200.md"}
"""Measurements, to which other pages link, and which are no chapters of the site."""

PAGES = CHAPTERS | FOUND_BY_LINKS
"""Pages outside this directory → their names on the site."""

ORPHAN = "---\norphan: true\n---\n"


def generate(_: Sphinx) -> None:
    """Write the generated pages; a page that would not change is left alone, an earlier version's goes."""
    pages = {
        name.removeprefix("generated/"): ORPHAN * (file in FOUND_BY_LINKS) + (REPOSITORY / file).read_text()
        for file, name in PAGES.items()
    }
    caught = drilled_faults()
    checks = [item for item in check_files.load() if isinstance(item, LoadedCheck)]
    pages |= {f"check-{item.check.id}.md": check_page(item, caught[item.check.id]) for item in checks}
    pages |= {f"issue-{issue.id}.md": issue_page(issue) for issue in knownissues.load()}
    pages |= {f"message-{message.id}.md": message_page(message) for message in knownissues.load_messages()}
    pages["messages.md"] = messages_page()
    pages["profiles.md"] = profiles_page()
    words = tables.table(explain.TABLE)["words"].items()
    rows = "".join(f"| {word} | {escaped(says)} |\n" for word, says in words)
    pages["words.md"] = (
        f"# Words\n\n`gpuipc-doctor explain WORD` says one.\n\n| word | meaning |\n|---|---|\n{rows}"
    )
    pages["known-issues.md"] = issue_content.markdown(knownissues.load())
    pages["commands.rst"] = commands_page()
    pages["legality.md"] = legality_page()
    pages["schemas.md"] = "# Schemas\n\n`gpuipc-doctor schema NAME` prints a schema.\n" + "".join(
        f"\n## {name}\n\n```{{literalinclude}} /../{file.relative_to(REPOSITORY)}\n:language: json\n```\n"
        for name, file in schemas().items()
    )
    GENERATED.mkdir(exist_ok=True)
    for earlier in {page.name for page in GENERATED.iterdir()} - pages.keys():
        (GENERATED / earlier).unlink()
    for name, text in pages.items():
        page = GENERATED / name
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


def drilled_faults() -> dict[str, list[tuple[str, str]]]:
    """Check id → the profiles whose faults it must catch, each with its description."""
    caught: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for name in profile.names():
        simulated = profile.load(name)
        expected = {check for stated in simulated.expect.values() for check in stated.checks}
        for check in sorted(expected):
            caught[check].append((name, simulated.description))
    return caught


def check_page(item: LoadedCheck, faults: list[tuple[str, str]]) -> str:
    """What `explain ID` prints, and the faults that it catches."""
    rows = "".join(f"| `{name}` | {escaped(text)} |\n" for name, text in faults)
    table = f"| profile | fault |\n|---|---|\n{rows}" if rows else "No simulated fault of its own.\n"
    facts = "".join(f"- {name}: {text}\n" for name, text in explain.facts(item.check, knownissues.load()))
    breaks, do, *_ = tables.table(explain.TABLE)["checks"][item.check.id]
    return (
        f"# {item.check.id}: {item.check.title}\n\n"
        f"- If it fails, these break: {breaks}\n- Then: {do}\n\n"
        f"{inspect.getdoc(loader.module(item.file))}\n\n{facts}\n"
        f"## Faults that it catches\n\n`gpuipc-doctor drill PROFILE` shows each.\n\n{table}"
    )


def logged(entry: KnownIssue | Message) -> str:
    """The line of a log that people search for, without ranks and times before it; empty if there is none."""
    samples = (signature.sample for signature in entry.signatures if not signature.finding)
    lines = (" ".join(line.split()) for sample in samples for line in sample.splitlines()[:1])
    return next((re.sub(r"^(\[[^]]*\]:? *)+", "", line) or line for line in lines if line), "")


@cache
def pages_of_lines() -> Counter[str]:
    return Counter(map(logged, (*knownissues.load(), *knownissues.load_messages())))


def searched(entry: KnownIssue | Message, says: str) -> str:
    """A page's title: the line of a log, else, and if several pages have that line, what the entry says."""
    line = logged(entry)
    title = line if pages_of_lines()[line] == 1 else says
    return escaped(textwrap.shorten(title, 110, placeholder=" …"))


def entry_page(
    entry: KnownIssue | Message, says: str, printed: str, before: str = "", after: str = ""
) -> str:
    """What `explain ID` prints, below the text that people search for and what the entry says."""
    return (
        f"{ORPHAN}# {searched(entry, says)}\n\n{escaped(says)}.{before}\n\n"
        f"`gpuipc-doctor explain {entry.id}` prints\n\n~~~text\n{printed}\n~~~\n{after}"
    )


def issue_page(issue: KnownIssue) -> str:
    """The page of a known issue, with its sources as links."""
    links = "\n" + "".join(f"- <{reference.url}>\n" for reference in issue.references)
    return entry_page(issue, issue.title, issue_content.page(issue), after=links)


def message_page(message: Message) -> str:
    """The page of a message. An Xid that it names is a heading: the site's search prefers headings, so that
    "Xid 79" leads there."""
    samples = " ".join(signature.sample for signature in message.signatures)
    xids = dict.fromkeys(re.findall(r"\bXid \([^)]*\): (\d+)", samples))
    headings = "".join(f"\n\n## Xid {xid}" for xid in xids)
    return entry_page(message, message.says, issue_content.message_page(message), before=headings)


def messages_page() -> str:
    """All messages with links to their pages, by component."""
    by_component: dict[str, list[Message]] = defaultdict(list)
    for message in knownissues.load_messages():
        by_component[message.component].append(message)
    return "# Messages\n\nTexts in logs, what they mean and what to do, by component.\n" + "".join(
        f"\n## {component}\n\n"
        + "".join(
            f"- [{message.id}](message-{message.id}.md): {escaped(message.says)}\n" for message in messages
        )
        for component, messages in sorted(by_component.items())
    )


def profiles_page() -> str:
    rows = "".join(f"| `{name}` | {escaped(profile.load(name).description)} |\n" for name in profile.names())
    return (
        "# Shipped profiles\n\n`gpuipc-doctor check --all --simulate NAME` checks the node; "
        "[what a profile may hold](../simulator.md).\n\n"
        f"| name | node |\n|---|---|\n{rows}\n## Schema\n\n"
        "```{literalinclude} /../gpuipc_doctor/simulator/profile.schema.json\n:language: json\n```\n"
    )


def legality_page() -> str:
    """What histories may do, by vendor, with the sources; and the operations that they have."""
    rows = "".join(
        f"| {case} | {backend} | {ruling.value} | {linked(ruling.source)} |\n"
        for case, of_backend in rules().items()
        for backend, ruling in of_backend.items()
    )
    operations = "".join(f"| `{do}` | {escaped(each.says)} |\n" for do, each in TYPES.items())
    return (
        "# What histories may do\n\nillegal: no history does it; declared: no vendor promises it and"
        " applications rely on it, so operations of their own do it, and a failure says so.\n\n"
        f"| what is done | on | ruling | source |\n|---|---|---|---|\n{rows}\n"
        f"## Operations\n\n| name | what happens |\n|---|---|\n{operations}"
    )


def linked(text: str) -> str:
    """The text with its addresses as links, named after what they lead to."""
    parts = re.split(r"(https://\S*[^\s:;,])", text)
    return "".join(
        f"[{escaped(part.rpartition('/')[2])}]({part})" if place % 2 else escaped(part)
        for place, part in enumerate(parts)
    )


def escaped(text: str) -> str:
    return re.sub(r"([|<>*_\[\]])", r"\\\1", " ".join(text.split()))


def commands_page() -> str:
    title = "Commands reference"
    sections = [f"{title}\n{'=' * len(title)}\n"]
    for name, (module, _) in COMMANDS.items():
        options = f"   :prog: gpuipc-doctor {name}\n   :nested: full\n"
        sections.append(f".. click:: gpuipc_doctor.cli.{module}:command\n{options}")
    return "\n".join(sections)


PICTURE = re.compile(
    r'<picture>\n.*\n.*src="(?:docs/)?(?P<file>\S+)-light\.svg".*alt="(?P<alt>[^"]*)">\n</picture>\n'
)
ON_SITE = r"![\g<alt>](/\g<file>-light.svg){.only-light}![\g<alt>](/\g<file>-dark.svg){.only-dark}\n"


def adapt(app: Sphinx, page: str, source: list[str]) -> None:
    """Links between files of the repository become links between pages; HTML anchors become MyST's."""
    text = source[0]
    if page == "index":
        app.env.note_dependency(str(REPOSITORY / "README.md"))
        _, _, head = (REPOSITORY / "README.md").read_text().partition("\n\n## ")[0].partition("\n")
        text = text.replace("<!-- README's head -->", head.replace("](docs/", "]("))
    text = PICTURE.sub(ON_SITE, text)  # in the colours that the reader chose
    if page == "generated/known-issues":  # here, an issue's id leads to its page instead of its first source
        text = re.sub(r'(<a id="([^"]+)"></a>\[[^]]*\])\([^)]*\)', r"\1(/generated/issue-\2.md)", text)
    text = re.sub(r'<a id="([^"]+)"></a>\[', r"[]{#\1}[", text)
    outside = next((Path(file).parent for file, name in PAGES.items() if name == f"{page}.md"), Path("docs"))

    def on_site(link: re.Match[str]) -> str:
        file, anchor = link["file"], link["anchor"] or ""
        target = (REPOSITORY / outside / file).resolve()
        if not file or not target.exists() or page.startswith("generated/check"):
            return link[0]
        inside = str(target.relative_to(REPOSITORY))
        if inside in PAGES:
            return f"](/{PAGES[inside]}{anchor})"
        if target.is_relative_to(REPOSITORY / "docs"):
            return f"](/{target.relative_to(REPOSITORY / 'docs')}{anchor})"
        return f"](/../{inside})"

    source[0] = re.sub(r"\]\((?P<file>[^)#:\s]*)(?P<anchor>#[^)]*)?\)", on_site, text)


def index_for_machines(app: Sphinx, failure: Exception | None) -> None:
    """Write llms.txt and sitemap.xml: each page with its title. Addresses are relative unless `make docs
    SITE=https://host/` says where the site will be; search engines need that."""
    if failure or app.builder.name != "html":
        return
    rows = defaultdict[str, str](str)
    urls = ""
    for page in sorted(app.env.found_docs):
        address = posixpath.join(app.config.html_baseurl, f"{page}.html")
        title = re.sub(r"([][])", r"\\\1", app.env.titles[page].astext())
        kind = re.match(r"generated/(check|issue|message)-", page)
        rows[f"{kind[1]}s" if kind else "pages"] += f"- [{title}]({address})\n"
        urls += f"<url><loc>{address}</loc></url>\n"
    parts = "".join(f"\n## {name}\n\n{rows[name]}" for name in ("pages", "checks", "issues", "messages"))
    summary = metadata("gpuipc-doctor")["Summary"]
    (Path(app.outdir) / "llms.txt").write_text(f"# gpuipc-doctor\n\n> {summary}\n{parts}")
    urlset = f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{urls}</urlset>\n'
    (Path(app.outdir) / "sitemap.xml").write_text(urlset)


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", generate)
    app.connect("source-read", adapt)
    app.connect("build-finished", index_for_machines)

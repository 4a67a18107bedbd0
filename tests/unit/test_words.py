"""Words that a reader sees: advice begins with a verb, and the tool's own bookkeeping is not shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuipc_doctor import knownissues
from gpuipc_doctor.files import tables

PACKAGE = Path(__file__).parents[2] / "gpuipc_doctor"
SOURCES = [
    file
    for folder in (PACKAGE, PACKAGE.parent / "checks")
    for file in (*folder.rglob("*.py"), *folder.rglob("*.yaml"))
]

VERBS = """
allocate allow back boot build call check choose close compare complete configure copy correct
create delete disable do drain drop enable exclude explain export find give have import initialise
install judge keep leave let link load look mount name power preload print put read reboot reduce
register remove replace replay request rerun reseat reset resubmit round run search see send set
share show start switch take test try turn unset update use wait
"""

CONDITION = re.compile(r"(if|on|in|at|until|for|to|with|while|before|after|where|when|also)\b")
"""What may stand before the verb: "on PCIe nodes, set …"."""

BOOKKEEPING = (
    "the key of a finding",
    "none read",
    "not in the sources",
    "sources were read in",
    "hidden from this process",
    "possibly part of this run",
    "writes contents",
    'and compares"',
    "which no vendor allows",
    "ticket FILE",
    'replay FILE"',
    "it hides losses",
    "no room: ",
)
"""Texts that stopped a reader; each names the tool's own state instead of the node's."""


def test_each_advice_on_a_message_begins_with_a_verb() -> None:
    advice = [(each.id, text) for each in knownissues.load_messages() for text in each.look]
    assert [each for each in advice if not (begins_with_a_verb(each[1]) or CONDITION.match(each[1]))] == []


def test_each_workaround_and_remedy_of_a_table_begins_with_a_verb_or_its_condition() -> None:
    texts = [(issue.id, each.do) for issue in knownissues.load() for each in issue.workarounds]
    rows = tables.table(PACKAGE / "api/health_rows.yaml")
    texts += [(key, row["do"]) for part in ("fail", "warn") for key, row in rows[part].items() if "do" in row]
    texts += [(key, row[1]) for key, row in tables.table(PACKAGE / "cli/explained.yaml")["checks"].items()]
    found = [
        (id_, text)
        for id_, text in texts
        if text[0] != "{" and not (begins_with_a_verb(text) or CONDITION.match(text))
    ]
    assert found == []


def begins_with_a_verb(text: str) -> bool:
    return text.split()[0].strip(",:;") in VERBS.split()


@pytest.mark.parametrize("words", BOOKKEEPING)
def test_bookkeeping_is_not_shown(words: str) -> None:
    assert [str(file) for file in SOURCES if words in file.read_text("utf-8")] == []

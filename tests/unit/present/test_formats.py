"""Blocks on a terminal and in Markdown: each kind, on wide and on narrow pages."""

from __future__ import annotations

import re

import pytest

from gpuipc_doctor.present import markdown
from gpuipc_doctor.present.blocks import (
    Block,
    Chain,
    Closing,
    Column,
    Entry,
    Grid,
    Group,
    Item,
    Lines,
    Notice,
    Parts,
    Table,
    do,
)
from gpuipc_doctor.present.terminal import screen, table

FAIL = Entry("FAIL", "ipc-stale on cuda:0", (Item("stale bytes", hang=0), Item(""), do("reboot the node")))
STATUSES = tuple((status, status) for status in ("PASS", "FAIL"))


def grid(**narrow: object) -> Grid:
    wide = tuple(Column(f"a-check-with-a-long-name-{n}", STATUSES) for n in range(3))
    return Grid("nodes", ("n1", "n2"), wide, **narrow)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("block", "lines"),
    [
        (FAIL, ["FAIL  ipc-stale on cuda:0", "      stale bytes", "      Do: reboot the node"]),
        (Entry("ERROR", "no report", gap=1), ["ERROR no report"]),
        (Entry("ERROR", "no report"), ["ERROR  no report"]),
        (Entry("WARN", "x", (Chain(("a", "b")),)), ["WARN  x", "      a < b"]),
        (Group((Notice("SIMULATED", "WARN"), Parts(("n1", "1 report")))), ["SIMULATED", "n1 · 1 report"]),
        (Lines(("one", "two")), ["one", "two"]),
        (Table((("a", "b"), ("long", "c"))), ["a     b", "long  c"]),
        (Closing(("1 PASS",), "exit 0"), ["1 PASS" + " " * 48 + "exit 0"]),
        (Closing(("x" * 54,), "exit 10"), ["x" * 54, " " * 53 + "exit 10"]),
        (grid(entries=(FAIL, Entry("PASS", "n1"))), ["FAIL  ipc-stale on cuda:0", "      stale bytes"]),
        (grid(folded=(Column("all", STATUSES),)), ["nodes   all", "n1     PASS", "n2     FAIL"]),
    ],
)
def test_block_on_a_narrow_terminal(block: Block, lines: list[str]) -> None:
    assert screen([block], width=60).splitlines()[: len(lines)] == lines


def test_grid_without_a_narrower_form_is_split() -> None:
    parts = [part.splitlines() for part in screen([grid()], width=60).rstrip().split("\n\n")]
    assert [part[0].split() for part in parts] == [
        ["nodes", f"a-check-with-a-long-name-{n}"] for n in range(3)
    ]
    assert [[line.split()[0] for line in part[1:]] for part in parts] == [["n1", "n2"]] * 3


def test_colour_is_around_the_word_only() -> None:
    assert screen([FAIL], color=True).startswith("\x1b[31;1mFAIL\x1b[0m  ipc-stale")


def test_table_with_a_rule_has_80_columns_and_sanitised_cells() -> None:
    lines = table([("a", "word " * 30), ("b\x1b[31m", "x")], ("id", "text"), wrapped=1).splitlines()
    assert lines[:2] == ["id    text", "----  " + "-" * len(lines[1].split()[1])]
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in "".join(lines)


def test_entry_in_a_ticket_has_its_text_in_the_first_line() -> None:
    ticket = markdown.render("head", [FAIL, Table((("a", "b"), ("1", "|")))])
    assert ticket.splitlines() == [
        "## head",
        "",
        "**FAIL** ipc-stale on cuda:0: stale bytes",
        "*Do:* reboot the node",
        "",
        "| a | b |",
        "|---|---|",
        r"| 1 | \| |",
    ]


@pytest.mark.parametrize(
    "name",
    ["a](http://x)", "<img src=x>", "`x`", "*b*", "a\n# b", "|x|", "a\x1b[31m", "&lt;", "_a_", "~~a~~"],
)
def test_heading_of_a_document_is_no_markup(name: str) -> None:
    heading, *rest = markdown.render(f"{name} (exit 0)", ()).splitlines()
    assert heading.startswith("## ")
    assert not any(rest)
    assert not re.search(r"(?<!\\)[`*_<\[\]|#~&]", heading.removeprefix("## "))

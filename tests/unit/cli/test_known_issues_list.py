"""``known-issues list``: filters, an upgrade's difference, and one line for what contradicts itself."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from gpuipc_doctor.cli.main import cli

DRIVER = ("--component", "nvidia-driver")


def listed(*arguments: str) -> str:
    ended = CliRunner().invoke(cli, ["known-issues", "list", *arguments])
    assert ended.exit_code == 0, ended.output
    return ended.output


def test_upgrade_is_three_groups_with_titles_and_a_count() -> None:
    text = listed(*DRIVER, "--version", "450.102.04", "--upgrade-from", "460.32.03")
    assert "New with nvidia-driver 450.102.04: none" in text
    only = text.partition("Only with nvidia-driver 460.32.03: ")[2]
    assert "nvidia-ipc-reopen (error)\n    an IPC handle cannot be reopened" in only
    assert text.splitlines()[-1].split()[1:3] == ["known", "issues;"]


def test_json_says_verdict_and_change() -> None:
    asked = (*DRIVER, "--version", "460.32.03", "--upgrade-from", "450.102.04", "--json")
    [reopen] = [one for one in json.loads(listed(*asked)) if one["id"] == "nvidia-ipc-reopen"]
    assert (reopen["verdict"], reopen["upgrade"]) == ("bad", "new")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--version", "1.0"), "--version also needs --component"),
        ((*DRIVER, "--upgrade-from", "1.0"), "--upgrade-from also needs --version"),
        ((*DRIVER, "--version", "new"), "--version: 'new' is no version of nvidia-driver"),
        (
            (*DRIVER, "--version", "1", "--upgrade-from", "?"),
            "--upgrade-from: '?' is no version of nvidia-driver",
        ),
        (("--component", "nvidia-drivr"), "did you mean 'nvidia-driver'"),
        (("--check", "ipc-reopn"), "did you mean 'ipc-reopen'"),
    ],
)
def test_contradictions_are_one_line(arguments: tuple[str, ...], says: str) -> None:
    ended = CliRunner().invoke(cli, ["known-issues", "list", *arguments])
    assert ended.exit_code != 0
    assert says in (ended.output or str(ended.exception))


@pytest.mark.parametrize(
    "words", [("nccl", "timeout"), ("timeout", "nccl"), ("nccl timeout",), ("NCCL", "timed-out")]
)
def test_words_are_found_in_any_order_and_spelling(words: tuple[str, ...]) -> None:
    assert "pytorch-collective-timeout (message" in listed(*words)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nccl", "tmieout"), "No entry has 'tmieout'; did you mean 'timeout'?; nearest:"),
        (("qqq",), "No entry has 'qqq'; without a word, all are listed"),
        (("nccl", "qqq"), "No entry has 'qqq'; nearest:\n  "),
        (("mpihc",), "did you mean 'mpich'?"),
        (("nccl", "timeout", "--check", "ipc-reopen"), "leave an option out"),
        (("a\x1bb",), "No entry has 'a"),
    ],
)
def test_no_entry_says_the_nearest(words: tuple[str, ...], says: str) -> None:
    text = listed(*words)
    assert text.startswith("0 known issues, 0 messages\n")
    assert says in text
    assert "\x1b" not in text


def test_an_error_of_a_driver_is_found_in_samples() -> None:
    assert "nvidia-ipc-reopen (error)" in listed("CUDA_ERROR_INVALID_HANDLE")


def test_words_are_found_at_their_beginnings() -> None:
    assert listed("our").startswith("0 known issues, 0 messages")
    assert "cudaMalloc" in listed("malloc")
    assert listed("malloc") == listed("Malloc")

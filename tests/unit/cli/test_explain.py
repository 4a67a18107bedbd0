"""A check's page: its file's docstring, reformatted, and the known issues that it detects."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from gpuipc_doctor.cli.explain import command

CHECK = '''\
"""Look at something that takes a long sentence to say what it is, longer than eighty columns.

What it looks at:
- the first thing, which also takes a long sentence to say, so that this item has two lines
  of its own;
- the second.

    left as it is:   two words
"""

from gpuipc_doctor.api import Check, Finding


class SiteLook(Check):
    id = "site-look"
    title = "something is there"

    def probes(self, ctx):
        return ()

    def judge(self, done):
        return ()


CHECK = SiteLook()
'''


def explained(*arguments: str) -> str:
    ended = CliRunner().invoke(command, arguments)
    assert ended.exit_code == 0
    return ended.stdout


def test_docstring_of_a_check_is_wrapped_to_80_columns(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "site_look.py").write_text(CHECK)
    config = tmp_path / "site.yaml"
    config.write_text("checks_dirs: [.]\n")
    assert """\
site-look: something is there

Look at something that takes a long sentence to say what it is, longer than
eighty columns.

What it looks at:
- the first thing, which also takes a long sentence to say, so that this item
  has two lines of its own;
- the second.

    left as it is:   two words

tier      acceptance
""" in explained("site-look", "--config", str(config))


def test_ids_of_known_issues_are_not_wrapped() -> None:
    page = explained("ipc-peer")
    assert "rocm-ipc-between-containers" in page
    assert "nccl-container-without-peers" in page


def test_known_versions_detects_all_issues_with_versions() -> None:
    assert "detects   every known issue with versions\n" in explained("known-versions")

"""Every mistake in a YAML file becomes a message with file and line; no other exception escapes."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuipc_doctor.files.near_miss import did_you_mean
from gpuipc_doctor.files.yamlfile import BadFile, read

SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["id"],
    "properties": {
        "id": {"type": "string", "pattern": "^[a-z-]+$", "description": "lower-case words joined by hyphens"},
        "class": {"enum": ["leak", "hang", "crash"]},
        "versions": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "deadline_s": {"type": "number", "exclusiveMinimum": 0},
        "env": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "propertyNames": {"pattern": "^[A-Z_]+$", "description": "the name of an environment variable"},
        },
        "anything": {},
    },
}


def mistakes(tmp_path: Path, text: str | bytes) -> list[str]:
    """The messages for this text, without the directory."""
    path = tmp_path / "x.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(BadFile) as caught:
        read(path, SCHEMA)
    assert str(caught.value).splitlines() == [str(m) for m in caught.value.mistakes]
    return [str(m).removeprefix(f"{tmp_path}/") for m in caught.value.mistakes]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "x.yaml: is empty"),
        ("# a comment\n", "x.yaml: is empty"),
        ("---\n", "x.yaml:2: the file must be a mapping (key: value), not empty"),
        ("- id\n", "x.yaml:1: the file must be a mapping (key: value), not a list"),
        ("id: a\nclas: leak\n", "x.yaml:2: unknown key 'clas'; did you mean 'class'?"),
        ("id: a\nzzz: 1\n", "x.yaml:2: unknown key 'zzz'"),
        ("class: leak\n", "x.yaml:1: key 'id' is missing"),
        ("id: a\nclass: leek\n", "x.yaml:2: class: 'leek' is not known; did you mean 'leak'?"),
        ("id: a\nclass: 7\n", "x.yaml:2: class: 7 is not known; it must be one of leak, hang, crash"),
        ("id: A b\n", "x.yaml:1: id: 'A b' is not lower-case words joined by hyphens"),
        ("id: a\nversions:\n- '1'\n- 12.10\n", "x.yaml:4: versions[1] must be text; quote it: '12.10'"),
        ("id: a\nversions: [460.32]\n", "x.yaml:2: versions[0] must be text; quote it: '460.32'"),
        ("id: a\nversions: []\n", "x.yaml:2: versions must not be empty"),
        ("id: a\nversions: 1.2.3\n", "x.yaml:2: versions must be a list, not '1.2.3'"),
        ("id: a\ndeadline_s: soon\n", "x.yaml:2: deadline_s must be a number, not 'soon'"),
        ("id: a\ndeadline_s: yes\n", "x.yaml:2: deadline_s must be a number, not 'yes'"),
        ("id: a\ndeadline_s: true\n", "x.yaml:2: deadline_s must be a number, not true"),
        ("id: a\ndeadline_s: 1e999\n", "x.yaml:2: deadline_s must be a number, not '1e999'"),
        ("id: a\ndeadline_s: .inf\n", "x.yaml:2: deadline_s must be a number, not '.inf'"),
        ("id: a\ndeadline_s: -1\n", "x.yaml:2: deadline_s must be more than 0, not -1"),
        ("id: a\nenv: {A: 0}\n", "x.yaml:2: env.A must be text; quote it: '0'"),
        ("id: a\nenv:\n  a-b: x\n", "x.yaml:3: env: key 'a-b' is not the name of an environment variable"),
        ("id: a\n\nid: b\n", "x.yaml:3: key 'id' was given before, on line 1"),
        ("id: a\n[1]: b\n", "x.yaml:2: a key must be plain text"),
        ("id:\n\t- b\n", "x.yaml:2: is indented with a tab; YAML requires spaces"),
        (
            "id: a\nenv: {A: b\n",
            "x.yaml:3: is not YAML: did not find expected ',' or '}' while parsing a flow mapping",
        ),
        ("id: a: b\n", "x.yaml:1: is not YAML: mapping values are not allowed in this context"),
        ("id: &a b\nclass: *a\n", "x.yaml:2: alias *a is not supported; write the value out"),
        ("id: !!python/none x\n", "x.yaml:1: unsupported tag 'tag:yaml.org,2002:python/none': remove it"),
        ("id: a\n---\nid: b\n", "x.yaml:2: a second document begins; write one document per file"),
        ("anything: " + "[" * 40 + "]" * 40, "x.yaml:1: is nested deeper than 32 levels"),
        ("[" * (4 << 20), "x.yaml:1: is nested deeper than 32 levels"),
        ("id: a\nclass: \x1b[31m\n", "x.yaml:2: holds the control character '\\x1b'"),
        ('id: a\nanything: "\\e[31m"\n', "x.yaml:2: holds the control character '\\x1b'"),
        (b"id: a\nclass: \xff\n", "x.yaml:2: is not UTF-8 text; save the file as UTF-8"),
        ("id: a\n".encode("utf-16"), "x.yaml:1: is not UTF-8 text; save the file as UTF-8"),
    ],
)  # fmt: skip
def test_each_mistake_is_one_clear_line(tmp_path: Path, text: str | bytes, told: str) -> None:
    assert mistakes(tmp_path, text) == [told]


def test_all_mistakes_are_reported_at_once_and_in_order(tmp_path: Path) -> None:
    text = "deadline: 3\nclass: leek\nversions: [1.5]\nclass: leak\n"
    assert mistakes(tmp_path, text) == [
        "x.yaml:1: key 'id' is missing",
        "x.yaml:1: unknown key 'deadline'; did you mean 'deadline_s'?",
        "x.yaml:3: versions[0] must be text; quote it: '1.5'",
        "x.yaml:4: key 'class' was given before, on line 2",
    ]


def test_unreadable_file_is_reported_without_a_line(tmp_path: Path) -> None:
    (tmp_path / "big.yaml").write_bytes(b"#" * (5 << 20))
    for path, told in (
        (tmp_path / "none.yaml", "cannot be read: No such file or directory"),
        (tmp_path, "is a directory, not a file"),
        (Path("/dev/zero"), "is not a regular file"),
        (tmp_path / "a\0b", "is not a file name"),
        (tmp_path / "big.yaml", "is longer than 4 MiB"),
    ):
        with pytest.raises(BadFile) as caught:
            read(path, SCHEMA)
        assert [str(m) for m in caught.value.mistakes] == [f"{path}: {told}"]


def test_name_with_a_newline_makes_no_second_line(tmp_path: Path) -> None:
    with pytest.raises(BadFile) as bad:
        read(tmp_path / "two\nlines", SCHEMA)
    assert len(str(bad.value).splitlines()) == 1


def test_valid_file_has_its_data_and_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        "\ufeff# comment\nid: off\nversions:\n  - 455.32.00\n  - '12.10'\nanything:\n"
        "  {n: 12, f: 1.5, e: 1e3, o: 0777, t: 1:30, d: 2026-11-20, y: yes, b: false, none: ~}\n"
        "deadline_s:\n  2.5\n",
        encoding="utf-8",
    )
    document = read(path, SCHEMA)
    assert document.data == {
        "id": "off",
        "versions": ["455.32.00", "12.10"],
        "anything": {
            "n": 12, "f": 1.5, "e": 1000.0, "o": 777, "t": "1:30", "d": "2026-11-20", "y": "yes", "b": False,
            "none": None,
        },
        "deadline_s": 2.5,
    }  # fmt: skip
    assert [document.line(*keys) for keys in ((), ("id",), ("versions", 1), ("deadline_s",))] == [2, 2, 5, 8]
    assert document.line("versions", 7, "absent") == 3
    assert str(document.mistake("no such check", "versions", 0)) == f"{path}:4: no such check"


def test_slower_parser_reads_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import yaml

    path = tmp_path / "x.yaml"
    path.write_text("id: 'a'\nversions: [1.2.3, \"4\"]\nanything: {a: ~, b: 0.5}\n")
    fast = read(path, SCHEMA)
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    assert read(path, SCHEMA) == fast
    assert mistakes(tmp_path, 'id: "\\ud800"\n') == ["x.yaml:1: holds the control character '\\ud800'"]


def test_only_a_close_name_is_suggested() -> None:
    assert did_you_mean("ipc-repoen", ["ipc-reopen", "ipc-release"]) == "; did you mean 'ipc-reopen'?"
    assert did_you_mean("gpu", ["ipc-reopen"]) == ""


yamlish = st.text("id:- [],{}&*!?|>'\"#%.~1x<\\ud80@\n\t\x00\udead")


@given(st.binary() | st.one_of(st.text(), yamlish).map(lambda text: text.encode(errors="surrogatepass")))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory, "x.yaml")
        path.write_bytes(raw)
        for schema in (SCHEMA, {}):
            try:
                document = read(path, schema)
            except BadFile as bad:
                told = [(m.path, m.line >= 0, "\n" in str(m)) for m in bad.mistakes]
                assert set(told) == {(path, True, False)}
            else:
                assert document.line() >= 1
                str(document.data).encode()

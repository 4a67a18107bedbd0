"""JSON logs are read as the lines that programs wrote, with their time and host."""

import json
import random
import resource
from collections.abc import Iterable
from pathlib import Path

import pytest

from gpuipc_doctor import knownissues
from gpuipc_doctor.diagnose import records
from gpuipc_doctor.diagnose.diagnosis import Diagnosis
from gpuipc_doctor.diagnose.examination import Examination
from gpuipc_doctor.diagnose.flight_recorder import Dump
from gpuipc_doctor.diagnose.readers import diagnose

XID = "NVRM: Xid (PCI:0000:44:00): 79, pid=7, GPU has fallen off the bus."
JOURNAL = {"__REALTIME_TIMESTAMP": "1732410000123456", "_HOSTNAME": "n17", "SYSLOG_IDENTIFIER": "kernel"}
IN_JOURNAL = f"2024-11-24T01:00:00.123456+00:00 n17 kernel: {XID}"
EVENTS = {
    "apiVersion": "v1",
    "kind": "EventList",
    "items": [
        {
            "kind": "Event",
            "involvedObject": {"kind": "Pod", "name": "train-3"},
            "source": {"component": "kubelet", "host": "gpu-n4"},
            "lastTimestamp": "2026-11-24T01:02:03Z",
            "reason": "OOMKilling",
            "message": "Memory cgroup out of memory: Killed process 15617 (python3) total-vm:11892kB",
        }
    ],
}
POD = {"status": {"containerStatuses": [{"state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]}}


def read(text: str | bytes, *, block: int = 1 << 16) -> list[str]:
    data = text.encode() if isinstance(text, str) else text
    blocks = (data[at : at + block] for at in range(0, len(data), block))
    return joined(records.lines(blocks, lambda _: None, list[Dump]().append)).splitlines()


def joined(blocks: Iterable[bytes | None]) -> str:
    return b"".join(block or b"" for block in blocks).decode("utf-8", "replace")


def found(text: str, tmp_path: Path) -> Diagnosis:
    log = tmp_path / "some.json"
    log.write_text(text, encoding="utf-8")
    return diagnose([str(log)], Examination([*knownissues.load(), *knownissues.load_messages()]))


def journal(message: object) -> str:
    return json.dumps({**JOURNAL, "MESSAGE": message})


@pytest.mark.parametrize(
    "text",
    [
        journal(XID) + "\n",
        journal(XID),
        journal(list(XID.encode())) + "\n",
        json.dumps({**JOURNAL, "MESSAGE": XID}, indent=8) + "\n",
        f"\x1e{journal(XID)}\n",
        f"data: {journal(XID)}\n\n",
    ],
    ids=["json", "no newline", "bytes", "json-pretty", "json-seq", "json-sse"],
)
@pytest.mark.parametrize("block", [7, 1 << 16])
def test_journal_in_each_form_is_the_line_of_the_kernel(text: str, block: int) -> None:
    assert [line for line in read(text, block=block) if line] == [IN_JOURNAL]


def test_journal_has_host_time_and_line(tmp_path: Path) -> None:
    (one,) = found(f"{journal('idle')}\n{journal(XID)}\n", tmp_path).found
    assert one.issue.id == "nvidia-gpu-lost"
    first = one.lines.first
    assert (first.line, first.host, first.time) == (2, "n17", "2024-11-24T01:00:00.123456+00:00")


def test_message_too_long_for_the_journal_leaves_the_other_fields() -> None:
    (line,) = read(journal(None) + "\n")
    assert "SYSLOG_IDENTIFIER=kernel" in line


def test_message_of_several_lines_stays_one_number() -> None:
    lines = joined(
        records.lines([f"{journal(f'a{chr(10)}b')}\n{{}}\n".encode()], lambda _: None, list[Dump]().append)
    ).split("\n")
    assert len(lines) == 3
    assert [part.rpartition(" ")[2] for part in lines[0].split("\r")] == ["a", "b"]


def test_traceback_beside_the_message_follows_the_message() -> None:
    record = {"message": "x failed", "exc_info": "Traceback:\nRuntimeError: y"}
    assert read(json.dumps(record)) == ["x failed", "Traceback:", "RuntimeError: y"]


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (
            {"log": "a b\n", "stream": "stderr", "time": "2026-11-24T01:02:03.5Z"},
            "2026-11-24T01:02:03.5Z a b",
        ),
        ({"level": "error", "ts": 1732410000.5, "msg": "x"}, "2024-11-24T01:00:00.500000+00:00 error: x"),
        ({"severity": "ERROR", "textPayload": "x"}, "ERROR: x"),
        (
            {
                "@timestamp": "2026-11-24T01:02:03Z",
                "log": "x",
                "kubernetes": {"host": "n4", "pod_name": "p-0"},
            },
            "2026-11-24T01:02:03Z n4 log: x",
        ),
        ({"message": "x", "time": "yesterday", "level": 30}, "x"),
        ({"ts": float("inf"), "msg": "x"}, "x"),
        ({"level": "error", "msg": "x failed", "error": "y"}, "error: x failed: y"),
        ({"message": "x failed: y", "err": "y", "exc_info": None}, "x failed: y"),
        ({"a": 1, "b": {"c": True}}, "a=1"),
    ],
)
def test_records_of_containers_and_loggers_are_lines(record: dict[str, object], line: str) -> None:
    assert read(json.dumps(record) + "\n")[0] == line


@pytest.mark.parametrize("indent", [None, 4])
def test_kubernetes_events_and_pods_are_diagnosed(indent: int | None, tmp_path: Path) -> None:
    (one,) = found(json.dumps(EVENTS, indent=indent), tmp_path).found
    assert one.issue.kind == "fatal"
    assert (one.lines.first.host, one.lines.first.time) == ("gpu-n4", "2026-11-24T01:02:03Z")
    assert "reason=OOMKilled exitCode=137" in read(json.dumps(POD, indent=indent))


@pytest.mark.parametrize(
    "text",
    [
        "[rank0]: Traceback\n",
        '{"lr": 0.1}\n[rank0] step\n',
        '{\n "lr": 0.1\n}\n[rank0] step\n',
        '{"a": \n',
        "[" * 100_000 + '{"',
        '{"a":' * 100_000,
        '[{"a": 1},\n',
        "{} and so on\n",
    ],
)
def test_incomplete_json_is_kept_as_text(text: str) -> None:
    lines = read(text)
    assert lines[-1] == text.splitlines()[-1]
    assert len(lines) == len(text.splitlines())


def test_damaged_record_among_others_is_kept_as_text() -> None:
    assert read(f'{journal(XID)}\n{{"MESSAGE":\n{journal(XID)}\n') == [IN_JOURNAL, '{"MESSAGE":', IN_JOURNAL]


@pytest.mark.parametrize("levels", [records.DEEPEST + 1, 990, 5000])
@pytest.mark.parametrize("end", ["", "\n"])
def test_deeper_levels_stay_as_they_stand(levels: int, end: str) -> None:
    text = '{"a": ' * levels + '{"b": "cxil_map() failed"}' + "}" * levels + end
    assert read(text) == [text.rstrip()]


def test_long_value_is_complete() -> None:
    assert read(json.dumps({"rank": 3, "error": "x" * 100_000 + " lost"}))[0].endswith("x lost")


def test_endless_line_is_not_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LONGEST", 1000)
    blocks = iter([b'{"a": "', *[b"x" * 100] * 100])
    reading = records.lines(blocks, lambda _: None, list[Dump]().append)
    first = next(block for block in reading if block)
    assert len(first) <= 1100
    assert sum(len(block or b"") for block in reading) + len(first) == 10_007


def test_any_bytes_are_lines() -> None:
    rng = random.Random(30)
    text = json.dumps({**JOURNAL, "MESSAGE": [XID, {"a": [1, None]}]}).encode()
    for _ in range(2000):
        data = bytearray(text)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        read(bytes(data), block=rng.randrange(1, 300))


@pytest.mark.parametrize(
    "text",
    [
        '{"time": 1' + "0" * 400 + ', "message": "x"}\n',
        '{"time": 1e999, "message": "x"}\n',
        '{"time": NaN, "ts": -1e308, "message": "x"}\n',
        '{"time": true, "message": "x"}\n',
        '{"time": {"a": 1}, "message": "x"}\n',
        '{"MESSAGE": [1e999, -1, 256, [[[]]], "x"]}\n',
        '{"time": 1' + "0" * 5000 + ', "message": "x"}\n',
        '{"message": "x\\ud800"}\n',
        '{"level": ' + "9" * 300 + ', "message": "x"}\n',
        '{"a": ' + "9" * 4000 + ', "message": "x"}\n',
    ],
    ids=range(10),
)
def test_hostile_values_of_a_record_end_nothing(text: str) -> None:
    for form in (text, text * 2, f"[{text}]"):
        assert "x" in "".join(read(form))


def test_document_beyond_the_limits_of_its_parser_is_read_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """48 MB of empty objects took 1.2 GB of memory, and five minutes."""
    monkeypatch.setattr(records, "PARSE_S", 0.01)  # the memory's limit: tests/unit/files/test_foreign.py
    text = "[" + "{},\n" * 1_000_000 + "{}]"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert len(read(text, block=len(text))) == 1_000_001
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 96 << 10  # KiB

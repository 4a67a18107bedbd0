"""Convert JSON logs to lines: systemd's journal, Kubernetes' objects, logs of containers and of loggers.

A record becomes the program's line, prefixed by time and host; a record without a message becomes a line of
its values. Line numbers are kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from functools import partial
from typing import Any

from gpuipc_doctor.diagnose.flight_recorder import Dump
from gpuipc_doctor.files import foreign

LONGEST = 1 << 26
"""Maximum bytes of a document or record of JSON; longer ones are read as text."""
LONGEST_RECORD = 1 << 20
"""Maximum bytes of a record, or of a document, that is parsed in this process: it takes at most 60 MB."""
PARSE_S = 60.0
"""Maximum seconds to parse documents; then they are read as text."""
DEEPEST = 50
"""Maximum levels of nested JSON; a deeper document is read as text."""
TAKEN = b"(a dump of PyTorch's Flight Recorder)\n"
"""The line in place of a document that another reader has handled."""

_BEGIN = re.compile(rb'(?:\x1e|data: )?\s*(?:\{\s*(?:"|\})|\[\s*(?:\{|\]))')
"""Start of a JSON document or record, also as ``journalctl -o json-seq`` and ``-o json-sse`` write it."""
_NEXT = re.compile(r"\s*(?:\x1e\s*)?(?=\S)")
_MESSAGES = ("MESSAGE", "log", "message", "msg", "textPayload", "text", "event", "body")
_TIMES = (
    *("__REALTIME_TIMESTAMP", "_SOURCE_REALTIME_TIMESTAMP", "time", "timestamp", "@timestamp", "ts"),
    *("asctime", "lastTimestamp", "eventTime", "firstTimestamp", "finishedAt", "receiveTimestamp"),
)
_ERRORS = ("error", "err", "exception", "exc_info")
"""Fields in which a logger puts an error or a traceback beside the message."""
_HOSTS = ("_HOSTNAME", "hostname", "host", "node_name", "nodeName", "node", "pod_name", "pod", "instance")
_PROGRAMS = ("SYSLOG_IDENTIFIER", "_COMM", "container_name", "reason", "logger", "name")
_LEVELS = ("level", "levelname", "severity", "lvl")
_WITHIN = ("kubernetes", "source", "resource", "labels", "fields", "attributes", "involvedObject")
"""Objects that may contain a record's host and program."""


def is_json(sample: bytes) -> bool:
    """Whether a log that starts with ``sample`` may be JSON."""
    return bool(_BEGIN.match(sample))


DumpOf = Callable[[Any], "Dump | None"]


def lines(
    blocks: Iterable[bytes | None], dump_of: DumpOf, take: Callable[[Dump], object]
) -> Iterator[bytes | None]:
    """JSON in UTF-8 as lines of text; other text unchanged.

    A document of which ``dump_of`` makes a dump gives no lines; ``take`` is called with the dump.
    """
    for piece in _lines(blocks, dump_of):
        if isinstance(piece, Dump):
            take(piece)
            yield TAKEN
        else:
            yield piece


def _lines(blocks: Iterable[bytes | None], dump_of: DumpOf) -> Iterator[bytes | Dump | None]:
    waiting = bytearray()
    by_line: bool | None = None
    for block in blocks:
        if block is None:
            yield from _rest(bytes(waiting), dump_of)
            waiting, by_line = bytearray(), None
            yield None
            continue
        waiting += block
        if by_line is None and b"\n" in block:
            by_line = _parsed(bytes(waiting.partition(b"\n")[0])) is not None
        if by_line and b"\n" in block:
            ended, newline, waiting = waiting.rpartition(b"\n")
            ready = bytearray()
            for line in bytes(ended + newline).splitlines(keepends=True):
                piece = _line(line, dump_of)
                if isinstance(piece, Dump):
                    yield bytes(ready)
                    yield piece
                    ready.clear()
                else:
                    ready += piece
            yield bytes(ready)
        elif not block:
            yield b""
        if len(waiting) > LONGEST:
            yield bytes(waiting)
            yield from blocks
            return
    yield from _rest(bytes(waiting), dump_of)


def _rest(text: bytes, dump_of: DumpOf) -> Iterator[bytes | Dump]:
    """The lines and dumps of consecutive documents; the unchanged text if it is not all JSON."""
    if len(text) <= LONGEST_RECORD:
        yield from _converted(dump_of, text)
        return
    try:
        yield from foreign.parsed(partial(_converted, dump_of), text, limit_s=PARSE_S)
    except foreign.Refused:
        yield text


def _converted(dump_of: DumpOf, text: bytes) -> list[bytes | Dump]:
    documents = _documents(text.decode("utf-8", "replace"))
    return [text] if documents is None else [piece for each in documents for piece in _pieces(each, dump_of)]


def _pieces(document: Any, dump_of: DumpOf) -> Iterator[bytes | Dump]:
    if dump := dump_of(document):
        yield dump
    elif text := "".join(f"{line}\n" for line in of_value(document)):
        yield text.encode("utf-8", "replace")


def _documents(text: str) -> list[Any] | None:
    decoder, documents, at = json.JSONDecoder(), [], 0
    while match := _NEXT.match(text, at):
        try:
            document, at = decoder.raw_decode(text, match.end())
            _check_depth(document)
        except (ValueError, RecursionError):
            return None
        documents.append(document)
    return documents


def _parsed(line: bytes) -> dict[str, Any] | None:
    text = line.strip(b"\x1e \t\r\n").removeprefix(b"data: ")
    if not text.startswith(b"{") or len(text) > LONGEST_RECORD:
        return None
    try:
        value = json.loads(text)
        _check_depth(value)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _check_depth(value: Any, depth: int = 0) -> None:
    """Raise `RecursionError` for more than `DEEPEST` levels."""
    if depth > DEEPEST:
        raise RecursionError
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        if isinstance(item, dict | list):
            _check_depth(item, depth + 1)


def _line(line: bytes, dump_of: DumpOf) -> bytes | Dump:
    """A record as one line; carriage returns separate its lines, so that line numbers stay correct."""
    record = _parsed(line)
    if record is None:
        return line
    if dump := dump_of(record):
        return dump
    return "\r".join(of_value(record)).replace("\n", "\r").encode("utf-8", "replace") + b"\n"


def of_value(value: Any) -> Iterator[str]:
    """Lines of a record, of a list of records, or of an object that contains records."""
    if isinstance(value, list):
        for item in value:
            yield from of_value(item)
    elif isinstance(value, dict):
        said = _said(value)
        if said is not None:
            head = _head(value)
            yield from (f"{head}{line}" for line in _with_error(said, value).splitlines())
            return
        own = [
            f"{name}={_short(item)}" for name, item in value.items() if isinstance(item, str | int | float)
        ]
        if own:
            yield _stamp(value) + " ".join(own)
        for item in value.values():
            yield from of_value(item)


def _said(record: dict[str, Any]) -> str | None:
    """A record's message; journald writes a message that is not UTF-8 as byte values."""
    for name in _MESSAGES:
        value = record.get(name)
        if isinstance(value, str):
            return value
        if name == "MESSAGE" and isinstance(value, list):
            if all(isinstance(byte, int) and 0 <= byte < 256 for byte in value):
                return bytes(value).decode("utf-8", "replace")
            return "\n".join(filter(None, (_said({name: part}) for part in value)))
    return None


def _with_error(said: str, record: dict[str, Any]) -> str:
    """A record's message, and what the record's error says beyond the message."""
    for name in _ERRORS:
        value = record.get(name)
        if isinstance(value, str) and value.strip() and value not in said:
            said = said.rstrip() + ("\n" if "\n" in value else ": ") + value
    return said


def _head(record: dict[str, Any]) -> str:
    """The start of a line, ``2026-11-24T01:02:03.000000+00:00 n17 kernel: ``, or the parts that a record
    has."""
    around = [record, *(record[name] for name in _WITHIN if isinstance(record.get(name), dict))]
    around += [inner["labels"] for inner in around[1:] if isinstance(inner.get("labels"), dict)]
    host = _first(around, _HOSTS)
    program = _first(around, _PROGRAMS)
    level = _first([record], _LEVELS)
    text = _stamp(record)
    if text and host:
        text += f"{host} {program or 'log'}: "
    elif program:
        text += f"{program}: "
    return text + (f"{level}: " if level and not level.isdigit() else "")


def _first(objects: Iterable[dict[str, Any]], names: Iterable[str]) -> str:
    names = tuple(names)
    return next(
        (
            value
            for record in objects
            for name in names
            if isinstance(value := record.get(name), str) and re.fullmatch(r"[\w./@-]{1,80}", value)
        ),
        "",
    )


def _stamp(record: dict[str, Any]) -> str:
    """The time as ISO 8601 and a space; systemd counts microseconds, loggers seconds since 1970."""
    value = next((record[name] for name in _TIMES if record.get(name)), None)
    if isinstance(value, str) and re.match(r"\d{4}-\d\d-\d\d[T ]\d\d:", value):
        return value[:40].replace(" ", "T", 1) + " "
    try:
        seconds = float(value)  # type: ignore[arg-type]
        seconds /= next((unit for unit in (1, 1e3, 1e6, 1e9) if 1e8 < seconds / unit < 1e11), 0)
        return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="microseconds") + " "
    except (TypeError, ValueError, ArithmeticError):
        return ""


def _short(value: object) -> str:
    return str(value).replace("\n", " ")

"""Feed damaged and odd inputs to every reader of files from outside; prints a Markdown table.

    python benchmarks/fuzz_readers.py [--inputs N] [--seed N] [TARGET]...

An input is a valid one with a few changes: bytes and lines are cut, doubled, swapped or replaced by awkward
ones, and in JSON values change their type. A reader may reject it with a message or accept it; an accepted
input is printed as for a user, without control sequences. Any other result, and any input that takes longer
than `LIMIT_S`, is reported with the number that reproduces it.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpuipc_doctor import knownissues
from gpuipc_doctor.cli import inventory, saved
from gpuipc_doctor.diagnose import diagnosis_content
from gpuipc_doctor.diagnose.examination import Examination
from gpuipc_doctor.diagnose.readers import diagnose
from gpuipc_doctor.files.yamlfile import BadFile
from gpuipc_doctor.knownissues import mistakes, parse
from gpuipc_doctor.node import elf
from gpuipc_doctor.prolog import state
from gpuipc_doctor.report import node_content, node_exports, report_json
from gpuipc_doctor.simulator import profile
from gpuipc_doctor.site import config
from tests.sample_reports import gpus, healthy, seed_002

REPOSITORY = Path(__file__).parent.parent
LIMIT_S = 20
"""Limit for one input, also on a busy machine."""

ACTED_UPON = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

AWKWARD = (
    *b"0 -1 1e999 NaN 99999999999 null true [ ] { } ' *a &a !!python/object:os.system %s {x} ../../x".split(),
    *(b"", b"9" * 40, b'"', b": ", b"- ", b"\t", b"\r", b"\0", b"\xff", b"A" * 5000),
    *(b"\x1b[31m", "\x9b2J".encode(), "\u202e".encode()),
)
"""Texts that confuse readers or control terminals."""


class Refused(Exception):
    """The reader rejected the input with a message."""


@dataclass(frozen=True)
class Target:
    share: int
    """Number of inputs out of a hundred."""
    suffix: str
    seeds: tuple[bytes, ...]
    read: Callable[[Path], Iterable[str]]
    """The output for an accepted file. Raises `Refused`."""


# -- the readers ----------------------------------------------------------------------------------------


def report(path: Path) -> Iterable[str]:
    try:
        found = saved.report(path)
    except BadFile as refused:
        raise Refused(str(refused)) from None
    yield node_content.screen(found, width=80)
    yield node_exports.junit(found)
    yield node_exports.prometheus(found)
    report_json.dumps(found)


def facts(path: Path) -> Iterable[str]:
    try:
        found = saved.inventory(path)
    except BadFile as refused:
        raise Refused(str(refused)) from None
    yield inventory.page(found, ())
    yield inventory.page_of_changes(found, ())


def site_config(path: Path) -> Iterable[str]:
    try:
        config.load(path)
    except BadFile as refused:
        raise Refused(str(refused)) from None
    found, _ = config.examine(path)
    for document in found.documents:
        config.unknown_checks(document, ["ipc-reopen"])
    state.look_up(path, "0")
    return ()


def known_issues(path: Path) -> Iterable[str]:
    documents, _, wrong = parse.read_all([path])
    issues, clashes = parse.merge(documents)
    entries = (found for document in documents for found in parse.placed(document))
    told = [
        *wrong,
        *clashes,
        *(mistake for found in entries for mistake in mistakes.of_entry(found, None, {})),
    ]
    if told:
        raise Refused("\n".join(map(str, told)))
    yield from (issue.bad_versions for issue in issues)


def simulated_node(path: Path) -> Iterable[str]:
    try:
        profile.load(str(path))
    except BadFile as refused:
        raise Refused(str(refused)) from None
    return ()


def log(examination_of: Callable[[], Examination], path: Path) -> Iterable[str]:
    said: list[str] = []
    diagnosis = diagnose([str(path)], examination_of(), say=said.append)
    yield diagnosis_content.screen(diagnosis, width=80, color=False, exit_code=0)


def library(path: Path) -> Iterable[str]:
    try:
        elf.needed(path)
    except elf.Damaged as refused:
        raise Refused(str(refused)) from None
    return ()


def prolog_state(path: Path) -> Iterable[str]:
    try:
        state.loads(path.read_bytes()).age({"boot": "1"}, "0", 1.0, 600.0)
    except ValueError as refused:
        raise Refused(str(refused)) from None
    return ()


def targets() -> dict[str, Target]:
    issues = knownissues.load()
    examination_of = partial(Examination, issues[:40])
    database = sorted(knownissues.files(), key=lambda file: file.stat().st_size)
    reports = [report_json.dumps(found).encode() for found in (healthy(gpus(2)), seed_002())]
    found = [("kernel", "6.1", "/proc"), ("mig", None, "NVML"), ("ucx", "1.15.0", "/usr/lib64")]
    facts_found = [dict(zip(("name", "value", "source"), one, strict=True)) for one in found]
    remembered = state.State({"boot": "1"}, {"0": 1.0, "all": 2.0}, ("1",))
    written = {"host": "n", "facts": facts_found}
    return {
        "report": Target(6, ".json", tuple(reports), report),
        "inventory": Target(21, ".json", (json.dumps(written, indent=1).encode(),), facts),
        "site config": Target(10, ".yaml", _files("site-configs/*.yaml"), site_config),
        "known issues": Target(6, ".yaml", tuple(file.read_bytes() for file in database[:4]), known_issues),
        "profile": Target(8, ".yaml", _files("gpuipc_doctor/simulator/profiles/*.yaml"), simulated_node),
        "log": Target(1, ".log", _files("tests/logs/*/*.log"), partial(log, examination_of)),
        "ELF": Target(30, ".so", (_library(),), library),
        "prolog's state": Target(18, ".json", (state.dumps(remembered),), prolog_state),
    }


def _files(pattern: str) -> tuple[bytes, ...]:
    return tuple(file.read_bytes()[:20_000] for file in sorted(REPOSITORY.glob(pattern)))


def _library() -> bytes:
    """The smallest library that this Python has loaded."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    names = {line.split(None, 5)[5] for line in maps if ".so" in line}
    return min((Path(name).read_bytes() for name in names), key=len)


# -- the inputs -----------------------------------------------------------------------------------------


def changed(seed: bytes, suffix: str, rng: random.Random) -> bytes:
    """The seed with one or a few random changes."""
    data = seed
    if suffix == ".json" and rng.random() < 0.5:
        document = json.loads(seed)
        for _ in range(rng.choice((1, 1, 2))):
            _change_a_value(document, rng)
        return json.dumps(document, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    for _ in range(rng.randint(1, 4)):
        data = (
            _change_lines(data, rng) if suffix != ".so" and rng.random() < 0.5 else _change_bytes(data, rng)
        )
    return data


def _change_a_value(document: Any, rng: random.Random) -> None:
    """Replace, double or remove a random value in a JSON document."""
    within: list[Any] = [document] if document else []
    for found in within:
        inner = found.values() if isinstance(found, dict) else found
        within += [value for value in inner if isinstance(value, dict | list) and value]
    if not within:
        return
    here = rng.choice(within)
    key = rng.choice(list(here) if isinstance(here, dict) else range(len(here)))
    kinds = (
        None,
        True,
        -1,
        1e300,
        10**40,
        "",
        "x\x1b[31m\u202e",
        "\x9b2J",
        [],
        {},
        [[1]],
        {"a": {}},
        "A" * 999,
    )
    if rng.random() < 0.2:
        del here[key]
    elif rng.random() < 0.2 and isinstance(here, list):
        here.append(here[key])
    elif isinstance(here[key], str) and rng.random() < 0.6:
        here[key] += rng.choice(("é", "\x1b[2J", " ", "\n", "0", "\ud800"))
    else:
        here[key] = rng.choice(kinds)


def _change_lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(5):
        case 0:
            del lines[at]
        case 1:
            lines.insert(other, lines[at])
        case 2:
            lines[at], lines[other] = lines[other], lines[at]
        case 3:
            lines[at] = re.sub(rb"[0-9]+", lambda _: rng.choice(AWKWARD[:6]), lines[at])
        case _:
            lines[at] += rng.choice((b" # x", b" ", b"0", b"x", rng.choice(AWKWARD)))
    return b"\n".join(lines)


def _change_bytes(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    end = min(at + rng.choice((0, 1, 1, 2, 8, 64)), len(data))
    match rng.randrange(4):
        case 0:
            return data[:at] + rng.choice(AWKWARD) + data[end:]
        case 1:
            return data[:at] + bytes(rng.randrange(256) for _ in range(end - at)) + data[end:]
        case 2:
            return data[:at] + data[at:end] * rng.randint(0, 3) + data[end:]
        case _:
            return data[:at] if rng.random() < 0.2 else data[:at] + data[end:]


# -- the run --------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--inputs", type=int, default=100_000, help="of all targets  [default: 100000]")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    known = targets()
    print("| reader | inputs | accepted | refused | neither | seconds |\n|---|---|---|---|---|---|")
    failed = 0
    with tempfile.TemporaryDirectory() as directory:
        for name in options.targets or known:
            count = options.inputs * known[name].share // 100
            started = time.monotonic()
            ends = fuzz(name, known[name], count, options.seed, Path(directory))
            seconds = time.monotonic() - started
            told = " | ".join(str(ends[end]) for end in ("accepted", "refused", "neither"))
            print(f"| {name} | {count} | {told} | {seconds:.0f} |", flush=True)
            failed += ends["neither"]
    sys.exit(bool(failed))


def fuzz(name: str, target: Target, count: int, seed: int, directory: Path) -> Counter[str]:
    ends: Counter[str] = Counter()
    seen: set[str] = set()
    signal.signal(signal.SIGALRM, _too_long)
    for number in range(count):
        rng = random.Random(f"{seed} {name} {number}")
        path = directory / f"input{target.suffix}"
        path.write_bytes(changed(rng.choice(target.seeds), target.suffix, rng))
        signal.alarm(LIMIT_S)
        try:
            shown = "".join(target.read(path))
            ends["accepted"] += 1
            if found := ACTED_UPON.search(shown):
                raise AssertionError(f"{found[0]!r} would reach a terminal")
        except Refused:
            ends["refused"] += 1
        except Exception as error:
            ends["neither"] += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            if (told := f"{type(error).__name__} in {where.filename}:{where.lineno}") not in seen:
                seen.add(told)
                print(f"{name} {number} (seed {seed}): {told}: {error}"[:300], file=sys.stderr)
        finally:
            signal.alarm(0)
    return ends


def _too_long(*_: object) -> None:
    raise TimeoutError(f"an input takes longer than {LIMIT_S} s")


if __name__ == "__main__":
    main()

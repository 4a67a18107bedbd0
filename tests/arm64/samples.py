"""Samples of ranks that wait in MPI, with as much of the code as is read to find their stacks.

A rank of `waiting.c` samples itself; this reduces its file to what is needed, and adds it to the recordings::

    python -m tests.arm64.samples NAME FILE [ROOT]

ROOT is the root file system in which the rank ran; its libraries are read there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuipc_doctor.stacks import arm64, code, mappings
from gpuipc_doctor.stacks.code import Code
from gpuipc_doctor.stacks.thread import MPI_LIBRARY, Stack

RECORDINGS = Path(__file__).with_name("samples.json")

LIBRARIES = "/usr/lib"
"""Directory that stands for all of a recording."""

Json = dict[str, Any]


def stacks(recording: Json) -> list[Stack]:
    """The frames of the recorded samples, found by the methods of `code`."""
    found = _code(recording, recording["segments"])
    segments = {segment.file: segment for segment in found._segments}
    images = {file: _image(excerpt) for file, excerpt in recording["files"].items()}
    keys = {(file, segment.device, segment.inode): images[file] for file, segment in segments.items()}
    code._images.update(keys)
    try:
        return [found.frames(counter, _packed(words), link) for counter, link, *words in recording["samples"]]
    finally:
        for key in keys:
            del code._images[key]


def _code(recording: Json, segments: list[Any]) -> Code:
    found = Code.__new__(Code)
    found._pid, found.is_arm64 = 0, recording["is_arm64"]
    found._segments = [
        mappings.Mapping(begin, end, "r-xp", offset, "00:00", 0, file, is_removed=False)
        for begin, end, offset, file in segments
    ]
    found._mpi = [segment for segment in found._segments if MPI_LIBRARY.search(segment.file)]
    return found


def _image(excerpt: Json) -> code._Image:
    image = code._Image.__new__(code._Image)
    image._raw, image._is_arm64 = _Excerpt(excerpt["parts"]), excerpt["is_arm64"]
    image._loads = [(offset, address, nbytes) for offset, address, nbytes in excerpt["loads"]]
    image._functions = sorted((begin, nbytes, name) for begin, nbytes, name in excerpt["functions"])
    image.__dict__["_imports"] = {int(slot): name for slot, name in excerpt["imports"].items()}
    return image


def _packed(words: list[int]) -> bytes:
    return b"".join(word.to_bytes(8, "little") for word in words)


class _Excerpt(code._File):
    """The parts of a file that were read when it was recorded, or that are to be recorded from it."""

    def __init__(self, parts: dict[str, str], file: code._File | None = None) -> None:
        self._fd, self._parts, self._file = -1, parts, file

    def __getitem__(self, part: slice) -> bytes:
        name = f"{part.start}:{part.stop}"
        if self._file:
            self._parts[name] = self._file[part].hex()
        return bytes.fromhex(self._parts.get(name, ""))


class _Noted(dict[int, str]):
    """The imports that were asked for."""

    def __init__(self, all_imports: Mapping[int, str]) -> None:
        self._all = all_imports

    def get(self, slot: int, default: Any = None) -> Any:
        if slot in self._all:
            self[slot] = self._all[slot]
        return self._all.get(slot, default)


def record(text: str, root: str) -> Json:
    """What of a file of `waiting.c` is needed to find the frames of its samples."""
    samples = [
        [int(word, 16) for word in line.split()]
        for line in text.splitlines()
        if " " in line and "-" not in line
    ]
    mapped = sorted(mappings.mappings(text[text.index("-") - 16 :]))
    segments = [
        [each.begin, each.end, each.offset, root + each.file]
        for each in mapped
        if "x" in each.rights and each.file.startswith("/")
    ]
    files: Json = {}
    program = code._Image(code._File([segments[0][3]]))
    recording: Json = {"is_arm64": program._is_arm64, "files": files}
    found = _code(recording, segments)
    recording["samples"] = [
        [counter, link, *(word for word in words if found._segment(arm64.address(word)))]
        for counter, link, *words in samples
    ]
    with _noting(files):
        for counter, link, *words in recording["samples"]:
            found.frames(counter, _packed(words), link)
    recording["segments"] = [
        [*numbers, f"{LIBRARIES}/{Path(file).name}"] for *numbers, file in segments if file in files
    ]
    recording["files"] = {f"{LIBRARIES}/{Path(file).name}": excerpt for file, excerpt in files.items()}
    return recording


@contextmanager
def _noting(files: Json) -> Iterator[None]:
    """Note what is read of each file while frames are found."""
    original = code._image

    def noted(file: str, segment: mappings.Mapping | None = None, pid: int = 0) -> code._Image | None:
        image = original(file, segment, pid)
        if image and file not in files:
            files[file] = excerpt = {"is_arm64": image._is_arm64, "loads": image._loads, "parts": {}}
            imports, functions, function = image._imports, image._functions, image._function
            excerpt["functions"] = kept = []
            excerpt["imports"] = image.__dict__["_imports"] = _Noted(imports)
            image._raw = _Excerpt(excerpt["parts"], image._raw)

            def note(offset: int) -> tuple[int, str]:
                found = function(offset)
                same = [each for each in functions if (each[0], each[2]) == found]
                kept.extend(each for each in same[-1:] if each not in kept)
                return found

            image._function = note  # type: ignore[method-assign]
        return image

    code._image = noted
    try:
        yield
    finally:
        code._image = original


def main(name: str, file: str, root: str = "") -> None:
    recordings = json.loads(RECORDINGS.read_text()) if RECORDINGS.exists() else {}
    recordings[name] = record(Path(file).read_text(), root)
    lines = (
        f"{json.dumps(each)}:{json.dumps(recordings[each], separators=(',', ':'))}"
        for each in sorted(recordings)
    )
    RECORDINGS.write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Plain data in a pickle, read without importing or calling anything named in it."""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any

from gpuipc_doctor.diagnose.decompress import Unreadable

MOST_STEPS = 20_000_000
"""Maximum steps of a pickle, about 30 s; a dump of 2,000 collectives has a million. Also the maximum
values in a pickle; a value that is used in several places counts in each."""
_MOST_BITS = 64
_MAX_DEPTH = 100

_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_PASSED_OVER = frozenset(["PROTO", "FRAME"])
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUTS = frozenset(["PUT", "BINPUT", "LONG_BINPUT"])
_GETS = frozenset(["GET", "BINGET", "LONG_BINGET"])
_VALUES = frozenset(
    [
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING"),
        *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    ]
)


def is_pickle(sample: bytes) -> bool:
    """Whether the data starts as in protocols 2 to 5, with an opcode after the version."""
    return len(sample) > 2 and sample[0] == 0x80 and 2 <= sample[1] <= 5 and sample[2:3] in b"}](K\x95"


def plain(data: bytes) -> Any:
    """The dictionaries, lists, tuples, texts and numbers in a pickle. Raises `Unreadable`.

    Reading ends at a step that would import or call something.
    """
    machine = _Machine()
    try:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if opcode.name == "STOP":
                _refuse_unless_tree_like(machine.stack[-1])
                return machine.stack[-1]
            if number == MOST_STEPS:
                raise Unreadable(f"is a pickle of more than {MOST_STEPS} steps; not read")
            machine.step(opcode.name, argument)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError) as error:
        raise Unreadable(f"has damaged pickle data ({error})") from None
    raise Unreadable("is truncated pickle data")


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _VALUES:
            if isinstance(argument, int) and argument.bit_length() > _MOST_BITS:
                raise ValueError(f"an integer of {argument.bit_length()} bits")
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _PUTS:
            self._memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in _GETS:
            stack.append(self._memo[argument])
        elif name == "MARK":
            self._marks.append(len(stack))
        elif name in _TUPLES:
            self._build(tuple, len(stack) - _TUPLES[name])
        elif name in ("TUPLE", "LIST"):
            self._build(tuple if name == "TUPLE" else list, self._marks.pop())
        elif name == "DICT":
            items = self._since(self._marks.pop())
            stack.append(_dictionary(items))
        elif name in ("APPEND", "APPENDS"):
            items = self._since(self._marks.pop() if name == "APPENDS" else len(stack) - 1)
            stack[-1].extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self._since(self._marks.pop() if name == "SETITEMS" else len(stack) - 2)
            stack[-1].update(_dictionary(items))
        elif name not in _PASSED_OVER:
            named = f" {argument.replace(' ', '.')}" if isinstance(argument, str) else ""
            raise Unreadable(f"is a pickle that would run code when loaded ({name}{named}); no code was run")

    def _build(self, kind: type, begin: int) -> None:
        self.stack.append(kind(self._since(begin)))

    def _since(self, begin: int) -> list[Any]:
        items = self.stack[begin:]
        if begin < 0 or begin > len(self.stack):
            raise IndexError("the stack is empty")
        del self.stack[begin:]
        return items


def _dictionary(items: list[Any]) -> dict[Any, Any]:
    """A dictionary of keys and values in turn. Raises `ValueError` for a key that is no text or number: the
    hash of a tuple that holds itself twice, thirty times over, takes as long as all its values."""
    keys = items[::2]
    if wrong := next((key for key in keys if isinstance(key, tuple | list | dict)), None):
        raise ValueError(f"a {type(wrong).__name__} as a key")
    return dict(zip(keys, items[1::2], strict=True))


def _refuse_unless_tree_like(value: Any) -> None:
    """Raise `ValueError` for data that is not a tree of at most `MOST_STEPS` values: what reads it would not
    come to an end."""
    sizes: dict[int, int] = {}

    def size(value: Any, depth: int) -> int:
        if not isinstance(value, tuple | list | dict):
            return 1
        if depth > _MAX_DEPTH:
            raise ValueError(f"nested deeper than {_MAX_DEPTH} levels")
        if id(value) not in sizes:
            inner = value.values() if isinstance(value, dict) else value
            sizes[id(value)] = 1 + sum(size(each, depth + 1) for each in inner)
        return sizes[id(value)]

    if size(value, 0) > MOST_STEPS:
        raise ValueError(f"more than {MOST_STEPS} values")

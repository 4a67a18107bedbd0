"""How a message's bytes lie in its buffer: contiguous, or in the blocks of a derived type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BLANK = 0xE7
"""Value of the bytes of a buffer that belong to no message."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Blocks of ``block`` bytes whose starts are ``stride`` bytes apart; contiguous if ``block`` is 0.

    ``begin`` is the offset of the first block. ``split`` is the size of a gap after the first third of the
    message.
    """

    begin: int = 0
    block: int = 0
    stride: int = 0
    split: int = 0

    @property
    def is_derived(self) -> bool:
        """Whether the layout needs an MPI derived type."""
        return bool(self.block or self.split)

    def fits(self, nbytes: int) -> bool:
        """Whether a message of ``nbytes`` consists of whole blocks."""
        return nbytes % self.block == 0 if self.block else True

    def extent(self, nbytes: int) -> int:
        """Bytes from the start of the buffer to the end of the message."""
        if self.block and nbytes:
            return self.begin + (nbytes // self.block - 1) * self.stride + self.block
        return self.begin + nbytes + self.split

    def spread(self, data: bytes, whole: int, total: int) -> bytes:
        """A buffer of ``total`` bytes that has received ``data``, the first bytes of a message of ``whole``
        bytes."""
        image = bytearray([BLANK]) * total
        if self.block:
            blocks, rest = divmod(len(data), self.block)
            for place in range(self.block):
                here = data[place :: self.block]
                end = self.begin + place + (blocks + (place < rest)) * self.stride
                image[self.begin + place : end : self.stride] = here[: blocks + (place < rest)]
        else:
            first = whole // 3 if self.split else len(data)
            image[self.begin : self.begin + len(data[:first])] = data[:first]
            behind = self.begin + first + self.split
            image[behind : behind + len(data[first:])] = data[first:]
        return bytes(image)


LAYOUTS: Mapping[str, Layout] = {
    "": Layout(),
    "shifted": Layout(begin=1),
    "blocks-of-8": Layout(block=8, stride=24),
    "blocks-of-256": Layout(block=256, stride=512),
    "two-blocks": Layout(split=16),
}
"""Value of `Operation.kind` → layout of the message."""

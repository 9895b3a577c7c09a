"""The file that `torch.save` writes, laid out before it is written: so that several processes can write it at once.

It is a zip file whose members are stored as they are: `data.pkl`, the values with a reference in the place of each
tensor's memory, and `data/0`, `data/1` and so on, those memories. Here every member begins at a multiple of 64 bytes,
so that the file can be mapped into memory, and sizes are 64 bits wide (zip 6.3.10, sections 4.3 and 4.5.3).
"""

import io
import pickle
import struct
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._utils import _rebuild_tensor_v2  # what a file names for torch.load to call
from torch.storage import _dtype_to_storage_type_map

ALIGNMENT = 64
POLYNOMIAL = 0xEDB88320
"""Of the checksum of zip files, bits reflected: the highest one is the coefficient of x^0."""
ONE = 1 << 31


@dataclass
class Member:
    """A part of the file: `num_bytes` from `start` on, behind its header, which begins at `header_start`."""

    name: str
    num_bytes: int
    header_start: int
    crc: int = 0

    @property
    def start(self) -> int:
        end = self.header_start + 30 + len(self.name) + 20 + 4
        return -(-end // ALIGNMENT) * ALIGNMENT

    def header(self) -> bytes:
        """Its header, filled up so that the content begins where it should."""
        sizes = struct.pack("<HHQQ", 1, 16, self.num_bytes, self.num_bytes)
        padding = self.start - (self.header_start + 30 + len(self.name) + len(sizes) + 4)
        extra = sizes + struct.pack("<HH", 0x4246, padding) + bytes(padding)
        fixed = (45, 0, 0, 0, 0x21, self.crc, 0xFFFFFFFF, 0xFFFFFFFF, len(self.name), len(extra))
        return struct.pack("<4s5H3I2H", b"PK\3\4", *fixed) + self.name.encode() + extra

    def entry(self) -> bytes:
        """Its line in the table of contents."""
        extra = struct.pack("<HHQQQ", 1, 24, self.num_bytes, self.num_bytes, self.header_start)
        sizes = (self.crc, 0xFFFFFFFF, 0xFFFFFFFF, len(self.name), len(extra), 0, 0, 0, 0, 0xFFFFFFFF)
        return struct.pack("<4s6H3I5H2I", b"PK\1\2", 45, 45, 0, 0, 0, 0x21, *sizes) + self.name.encode() + extra


def laid_out(sizes: Mapping[str, int]) -> list[Member]:
    """Members of these names and sizes in bytes, one after the other."""
    members, end = [], 0
    for name, num_bytes in sizes.items():
        member = Member(f"archive/{name}", num_bytes, end)
        members.append(member)
        end = member.start + num_bytes
    return members


def table_of_contents(members: Sequence[Member]) -> bytes:
    """What ends the file, behind the last of `members`."""
    start = members[-1].start + members[-1].num_bytes
    entries = b"".join(member.entry() for member in members)
    number, end = len(members), start + len(entries)
    return (
        entries
        + struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, number, number, len(entries), start)
        + struct.pack("<4sIQI", b"PK\6\7", 0, end, 1)
        + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    )


def pickled(value: Any) -> tuple[bytes, list[Tensor]]:
    """data.pkl of a file with `value`, and the tensors in it: the n-th one's memory is `data/n`."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    return file.getvalue(), pickler.tensors


def joined_crc(first: int, second: int, num_bytes: int) -> int:
    """Checksum of two pieces in a row, from theirs; the second one has `num_bytes`.

    The first one's is moved on by as many zero bytes: multiplied by x^(8 num_bytes), modulo the polynomial.
    """
    factor, power, exponent = ONE, ONE >> 8, num_bytes  # x^0, x^8
    while exponent:
        if exponent & 1:
            factor = _product(factor, power)
        power = _product(power, power)
        exponent >>= 1
    return _product(first, factor) ^ second


def _product(one: int, other: int) -> int:
    """Of two polynomials over two elements, modulo that of the checksum."""
    total = 0
    for bit in range(31, -1, -1):
        if one >> bit & 1:
            total ^= other
        other = other >> 1 ^ (POLYNOMIAL if other & 1 else 0)
    return total


class _Memory:
    """Stands for the memory of the tensor `number` while it is pickled."""

    def __init__(self, number: int, like: Tensor) -> None:
        self.reference = ("storage", getattr(torch, _dtype_to_storage_type_map()[like.dtype]), str(number), "cpu")
        self.num_elements = like.numel()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=2)  # that of torch.save
        self.tensors: list[Tensor] = []

    def persistent_id(self, value: Any) -> Any:
        return (*value.reference, value.num_elements) if isinstance(value, _Memory) else None

    def reducer_override(self, value: Any) -> Any:
        """A tensor of any kind becomes one that has its memory alone, row after row."""
        if not isinstance(value, Tensor):
            return NotImplemented
        memory = _Memory(len(self.tensors), value)
        self.tensors.append(value)
        shape = tuple(value.shape)
        strides = torch.empty(shape, device="meta").stride()
        return _rebuild_tensor_v2, (memory, 0, shape, strides, False, OrderedDict())

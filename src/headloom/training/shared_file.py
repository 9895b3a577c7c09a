"""A sharded save that ends as one file: each rank writes its part of every tensor to its place there.

torch.distributed.checkpoint says who has which part, and makes a failure of one rank that of all. No rank sees the
tensors of another: what a save takes in memory is one part of one tensor.
"""

import errno
import math
import os
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

from headloom.data.whole_files import written_beside
from headloom.ranks import Ranks
from headloom.training.archive import Member, joined_crc, laid_out, pickled, table_of_contents
from headloom.training.checkpoint import FORMAT, MAGIC, NOT_AS_WRITTEN, saying_why

READ_BYTES = 1 << 24


def save_shared(path: Path, contents: Mapping[str, Any], ranks: Ranks) -> None:
    """What `save_checkpoint` does, of `contents` whose tensors are in parts on `ranks`: the file is the same.

    Tensors that are not in parts, and plain values, are rank 0's. All ranks call it, and write to one file system.

    Raises:
        CheckpointError: see `save_checkpoint`; on all ranks.
        RankLost: another rank ended.
    """
    data, tensors = pickled({"magic": MAGIC, "format": FORMAT, **contents})
    parts: dict[str, Any] = {f"data/{n}": tensor for n, tensor in enumerate(tensors) if isinstance(tensor, DTensor)}
    others = {f"data/{n}": _bytes(tensor) for n, tensor in enumerate(tensors) if not isinstance(tensor, DTensor)}
    whole: dict[str, bytes | memoryview] = {"data.pkl": data, "byteorder": b"little", "version": b"3\n", **others}
    sizes = {name: len(content) for name, content in whole.items()}
    sizes |= {name: tensor.numel() * tensor.element_size() for name, tensor in parts.items()}
    with saying_why(path, num_bytes=lambda: sum(sizes.values())), ExitStack() as stack, ranks.watching():
        try:
            save(parts, storage_writer=_OneFile(path, sizes, whole, stack), process_group=ranks.control)
        except CheckpointException as failed:
            cause, _ = failed.failures[min(failed.failures)]
            raise cause from failed


class _OneFile(StorageWriter):
    """Writes to a file beside `path`, and gives it that name when all is written. `stack` removes it otherwise."""

    def __init__(
        self, path: Path, sizes: Mapping[str, int], whole: Mapping[str, bytes | memoryview], stack: ExitStack
    ) -> None:
        self._path = path
        self._whole = whole
        self._members: dict[str, Member] = dict(zip(sizes, laid_out(sizes), strict=True))
        self._stack = stack

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        pass

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On rank 0: the file, which the others are told of."""
        self._partial = self._stack.enter_context(written_beside(self._path))
        self._partial.touch(exist_ok=False)
        return [replace(plan, storage_data=str(self._partial)) for plan in plans]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        results = []
        with Path(plan.storage_data).open("r+b") as file:
            for item in plan.items:
                part = planner.resolve_data(item)
                assert isinstance(part, Tensor)
                content = _bytes(part)
                start = self._members[item.index.fqn].start + _offset(item)
                _write(file, start, content)
                piece = (start, len(content), zlib.crc32(content))
                results.append(WriteResult(index=item.index, size_in_bytes=len(content), storage_data=piece))
            os.fsync(file.fileno())
            for result in results:
                _check(file, *result.storage_data)
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On rank 0, when all have written."""
        pieces = sorted((result.storage_data, result.index.fqn) for of_rank in results for result in of_rank)
        for (_, num_bytes, crc), name in pieces:
            member = self._members[name]
            member.crc = joined_crc(member.crc, crc, num_bytes)
        with self._partial.open("r+b") as file:
            for name, content in self._whole.items():
                self._members[name].crc = zlib.crc32(content)
                _write(file, self._members[name].start, content)
            members = list(self._members.values())
            for member in members:
                _write(file, member.header_start, member.header())
            _write(file, members[-1].start + members[-1].num_bytes, table_of_contents(members))
            os.fsync(file.fileno())
        with zipfile.ZipFile(self._partial) as archive:
            if archive.namelist() != [member.name for member in members]:
                raise OSError(errno.EIO, NOT_AS_WRITTEN.format("its table of contents"))
            for name in self._whole:
                archive.read(self._members[name].name)  # compares it with its checksum
        self._stack.close()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _offset(item: WriteItem) -> int:
    """Bytes of the tensor before this part of it."""
    assert item.tensor_data is not None
    chunk, shape = item.tensor_data.chunk, item.tensor_data.size
    assert chunk.sizes[1:] == shape[1:], "fully_shard cuts a tensor along its first dimension"
    return sum(chunk.offsets[:1]) * math.prod(shape[1:]) * item.tensor_data.properties.dtype.itemsize


def _write(file: BinaryIO, start: int, content: bytes | memoryview) -> None:
    file.seek(start)
    file.write(content)


def _check(file: BinaryIO, start: int, num_bytes: int, crc: int) -> None:
    """Read back what was written.

    Raises:
        OSError: it is something else.
    """
    file.seek(start)
    found, left = 0, num_bytes
    while left and (content := file.read(min(left, READ_BYTES))):
        found = zlib.crc32(content, found)
        left -= len(content)
    if left or found != crc:
        raise OSError(errno.EIO, NOT_AS_WRITTEN.format(f"a part of {num_bytes} bytes"))

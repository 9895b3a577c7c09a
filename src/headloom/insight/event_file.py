"""TensorBoard's event file, written record by record.

`torch.utils.tensorboard` hands records to a thread: a write error there prints a traceback, kills the
thread and then the training, and a kill of the process loses what was queued. A record here is on its
way to the disk when the call returns, and an error costs that record and one warning.
"""

import io
import os
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from tensorboard.summary.writer.record_writer import RecordWriter

from headloom.insight.records_file import RecordsFile


class EventFile:
    """One more event file in `folder`, which TensorBoard shows as one run however many files it holds.

    What earlier files recorded at step `purge_from` and later is removed from them, so that a curve
    continued after a kill has each step once for every reader; one that has read it already is told.

    Raises:
        OSError: the folder cannot be made or written to.
    """

    def __init__(self, folder: Path, *, purge_from: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("events.out.tfevents.*"):
            _remove_later_events(path, purge_from)
        started_at, is_first = _start_time(folder)
        self._records = RecordsFile(folder / f"events.out.tfevents.{started_at:010d}.headloom")
        self._append(Event(file_version="brain.Event:2"))
        if not is_first:
            self._append(Event(step=purge_from, session_log=SessionLog(status=SessionLog.START)))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Record every value under its own tag."""
        self._summary(step, *(Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()))

    def text(self, step: int, tag: str, markdown: str) -> None:
        """Record text that TensorBoard renders as Markdown."""
        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        # A lone surrogate has no UTF-8 form; the question mark stands for it.
        content = TensorProto(dtype=DT_STRING, string_val=[markdown.encode("utf-8", "replace")], tensor_shape=shape)
        self._summary(step, Summary.Value(tag=tag, metadata=metadata, tensor=content))

    def image(self, step: int, tag: str, png: bytes, *, width: int, height: int) -> None:
        """Record a PNG of RGB pixels; width and height in pixels."""
        image = Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=png)
        self._summary(step, Summary.Value(tag=tag, image=image))

    def close(self) -> None:
        self._records.close()

    def _summary(self, step: int, *values: Summary.Value) -> None:
        self._append(Event(step=step, summary=Summary(value=values)))

    def _append(self, event: Event) -> None:
        event.wall_time = time.time()
        framed = io.BytesIO()
        RecordWriter(framed).write(event.SerializeToString())
        self._records.append(framed.getvalue())


def _start_time(folder: Path) -> tuple[int, bool]:
    """The time for a new file's name, and whether it is the folder's first.

    TensorBoard reads a folder's files by name, so a resumed run's file has to sort after its
    predecessor's even when both start within one second or the clock was set back.
    """
    latest = 0
    for path in folder.glob("events.out.tfevents.*"):
        stamp = path.name.split(".")[3]
        if stamp.isdecimal():
            latest = max(latest, int(stamp))
    return max(int(time.time()), latest + 1), latest == 0


def _remove_later_events(path: Path, purge_from: int) -> None:
    """Rewrite an event file without events of step `purge_from` and later, or an end that a kill has torn.

    TensorBoard also purges by itself, but not every kind of record in every reader.
    """
    temporary = path.with_name(path.name.replace("tfevents", "partial"))  # no reader takes it for an event file
    num_kept_bytes = 0
    with path.open("rb") as old, temporary.open("wb") as new:
        for frame, event in _frames(old):
            if event.file_version or event.step < purge_from:
                num_kept_bytes += new.write(frame)
        new.flush()
        os.fsync(new.fileno())
    if num_kept_bytes < path.stat().st_size:
        temporary.replace(path)
    else:
        temporary.unlink()


def _frames(file: BinaryIO) -> Iterator[tuple[bytes, Event]]:
    """Each whole record as it stands in the file, and its event; ends where readers end, at the first torn one.

    A frame is the length in 8 bytes, a checksum of that, the event, a checksum of the event. The last one
    is not looked at: in pure Python it takes 20 seconds for 100 MB of pictures.
    """
    while len(header := file.read(12)) == 12:
        length, checksum = struct.unpack("<QI", header)
        if checksum != masked_crc32c(header[:8]):
            return
        rest = file.read(length + 4)
        if len(rest) < length + 4:
            return
        try:
            event = Event.FromString(rest[:length])
        except DecodeError:
            return
        yield header + rest, event

"""Columns: the messages of a batch, joined into a few long arrays that a kernel makes records of.

As long as messages differ in bodies, keys and tags only, nothing here is done for one message after the other in
Python: texts are joined, and their lengths taken, by calls that loop in C.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from whence.errors import UsageError
from whence.formats.rocketmq.body import BatchItem
from whence.formats.rocketmq.properties import (
    RECORD_CRC,
    UNIQUE_ID,
    VALUE_END,
    decode_properties,
    encode_properties,
    encode_text,
    join_properties,
)
from whence.store.put_rules import KEY_END, Properties, join_keys_and_tags

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PAD = "\0" * 64  # behind a text, for a kernel that looks at so many bytes at once


class Columns:
    """The messages of a batch. ``rows`` and the arrays are those of kernels/records.py."""

    def __init__(self, bodies: Sequence[bytes], flags: int | Sequence[int]) -> None:
        from whence.kernels.records import ROW

        try:
            self.bodies = _array(b"".join(bodies))
            self.rows = np.zeros(len(bodies), ROW)
            self.rows["body_size"] = np.fromiter(map(len, bodies), np.int64, len(bodies))
            self.rows["flag"] = flags
        except (TypeError, ValueError, OverflowError) as error:
            raise UsageError(f"bodies are a list of bytes, and a flag is a 32-bit number: {error}") from error
        self.rows["makes_id"] = 1
        self.keys = self.tags = self.given = _array(b"")
        self.common = b""  # properties of all messages
        self._given_ids: Sequence[str | None] = ()  # ids that messages came with, if any did
        self._items: Sequence[BatchItem] = ()  # of a client
        self._positions = np.zeros(4, np.int64)  # how far the columns are encoded
        self._has_record_crc = False

    def add_keys(self, keys: Sequence[Sequence[str]]) -> None:
        """The keys of each message, which become its KEYS."""
        self._check_length(keys, "keys")
        try:
            counts = np.fromiter(map(len, keys), np.int64, len(keys))
            text = VALUE_END.join(chain(map(KEY_END.join, keys), (_PAD,)))
        except TypeError as error:
            raise UsageError(f"keys are a list of texts for each message: {error}") from error
        self.keys, is_good = self._measure(text, counts, "keys_size")
        # A text in the place of a list is taken for a list of its characters. As none has more than four bytes, this
        # need not be looked for where keys are longer.
        if (self.rows["keys_size"] < 5 * counts).any() and not {str, bytes}.isdisjoint(map(type, keys)):
            raise UsageError("keys are a list of texts for each message, not one text")
        if not is_good:
            for message_keys in keys:
                join_keys_and_tags(message_keys, None)
            raise AssertionError("one of these keys must have been refused")

    def add_tags(self, tags: str | Sequence[str | None]) -> None:
        """One tag for all messages, or one for each; None or an empty text is none."""
        if isinstance(tags, str):
            self.common += encode_text(join_keys_and_tags((), tags))
            return
        self._check_length(tags, "tags")
        try:
            text = VALUE_END.join(chain((tag or "" for tag in tags), (_PAD,)))
        except TypeError as error:
            raise UsageError(f"tags are texts: {error}") from error
        self.tags, is_good = self._measure(text, np.empty(0, np.int64), "tags_size")
        if not is_good:
            raise UsageError("a tag must not hold the byte 02, which ends it")

    def add_properties(self, properties: Properties | Sequence[Properties]) -> None:
        """Further properties of all messages, or of each."""
        if isinstance(properties, Mapping):
            self.common += encode_text(join_properties(properties))
            if UNIQUE_ID in properties:
                self._add_ids([properties[UNIQUE_ID]] * len(self.rows))
            return
        self._check_length(properties, "properties")
        self._add_given([encode_text(join_properties(one)) for one in properties])
        if any(UNIQUE_ID in one for one in properties):
            self._add_ids([one.get(UNIQUE_ID) for one in properties])

    @classmethod
    def of_items(cls, items: Sequence[BatchItem], *, with_record_crc: bool) -> Columns:
        """The messages that a client sent: properties as they are, and no ids of ours."""
        columns = cls([item.body for item in items], [item.flag for item in items])
        given = [item.properties_data for item in items]
        columns._add_given([_ready_for_crc(data) for data in given] if with_record_crc else given)
        columns.rows["makes_id"] = 0
        columns._items = items
        return columns

    def finish(self, *, id_size: int, record_crc_size: int, empty_record_size: int) -> None:
        """Work out the sizes of properties and records."""
        from whence.kernels.records import size_records

        self._has_record_crc = record_crc_size > 0
        size = size_records(self.rows, len(self.common) + record_crc_size, id_size, empty_record_size)
        if size != len(self.bodies):
            raise UsageError("bodies are bytes, not arrays of larger items")

    @property
    def made_id_count(self) -> int:
        """How many messages get an id."""
        return int(np.count_nonzero(self.rows["makes_id"]))

    def encode(
        self,
        messages: slice,
        head: bytes,
        topic_data: bytes,
        id_start: bytes,
        id_number: int,
        queue_offset: int,
        physical_offset: int,
        out: NDArray[np.uint8],
    ) -> int:
        """Make the records of the next messages; ``id_number`` is the next id's, and so is what is returned."""
        from whence.kernels.records import Shared, write_records

        return write_records(
            self.rows[messages],
            Shared(_array(head), _array(topic_data), _array(id_start), _array(self.common)),
            (self.bodies, self.keys, self.tags, self.given),
            self._positions,
            id_number,
            queue_offset,
            physical_offset,
            self._has_record_crc,
            out,
        )

    def ids(self, made: Iterable[str]) -> list[str]:
        """The ids of all messages. Those that were made are taken from ``made``, in order."""
        if self._items:
            return [decode_properties(item.properties_data).get(UNIQUE_ID, "") for item in self._items]
        made = iter(made)
        return [own or next(made) for own in self._given_ids] if self._given_ids else list(made)

    def _check_length(self, column: Sequence[object], what: str) -> None:
        if len(column) != len(self.rows):
            raise UsageError(f"{len(column)} {what} for {len(self.rows)} bodies")

    def _measure(self, text: str, counts: NDArray[np.int64], name: str) -> tuple[NDArray[np.uint8], bool]:
        """The bytes of a column of texts, their sizes in ``rows[name]``; and whether they are what they should be."""
        from whence.kernels.records import measure_texts

        data = _array(encode_text(text))
        sizes = np.empty(len(self.rows), np.int64)
        is_good = bool(measure_texts(data, counts, sizes))
        self.rows[name] = sizes
        return data, is_good

    def _add_given(self, given: Sequence[bytes]) -> None:
        self.given = _array(b"".join(given))
        self.rows["given_size"] = np.fromiter(map(len, given), np.int64, len(given))

    def _add_ids(self, ids: Sequence[str | None]) -> None:
        self._given_ids = ids
        self.rows["makes_id"] = np.fromiter((one is None for one in ids), np.int32, len(ids))


def _ready_for_crc(properties_data: bytes) -> bytes:
    """Properties to which a record CRC can be added: they have none, and end as they should."""
    if RECORD_CRC.encode() in properties_data:
        properties = decode_properties(properties_data)
        properties.pop(RECORD_CRC, None)
        return encode_properties(properties)
    end = VALUE_END.encode()
    return properties_data if not properties_data or properties_data.endswith(end) else properties_data + end


def _array(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data or b"\0", np.uint8)[: len(data)]

"""Judge: every right answer of a log, found by looking at every message of it.

``tests/reference.py`` says what matches a question (``find``); where all keys and ids of a log are asked, one pass
over the log collects the same answers, and a test holds the two equal.
"""

from collections.abc import Iterable
from random import Random

from tests.reference import Record, find, is_system_topic
from whence.lookup.answer import Answer


def offsets(answer: Answer) -> list[int]:
    """The physical offsets of an answer's messages, in its order."""
    return [message.physical_offset for message in answer]


class Judge:
    def __init__(self, records: Iterable[Record]) -> None:
        self.records = list(records)
        self.by_key: dict[str, list[int]] = {}
        self.by_topic_and_key: dict[tuple[str, str], list[int]] = {}
        self.by_id: dict[str, list[int]] = {}
        """A key, a unique id or an offset id: whatever a message bears."""
        self._with_key: dict[str, list[Record]] = {}
        for record in self.records:
            for key in record.keys:
                self._with_key.setdefault(key, []).append(record)
        for record in reversed(self.records):
            names = [record.offset_id, *record.keys]
            if record.unique_id and not record.is_rollback:
                names.append(record.unique_id)
            for name in dict.fromkeys(names):
                self.by_id.setdefault(name, []).append(record.physical_offset)
            for key in record.keys:
                self.by_topic_and_key.setdefault((record.topic, key), []).append(record.physical_offset)
                if not is_system_topic(record.topic):
                    self.by_key.setdefault(key, []).append(record.physical_offset)

    def window(
        self, since_ms: int | None, until_ms: int | None, *, key: str | None = None, topic: str | None = None
    ) -> list[int]:
        """The answer to a question with a window, newest first: the twin's."""
        records = self.records if key is None else self._with_key.get(key, [])
        found = find(records, since_ms=since_ms, until_ms=until_ms, key=key, topic=topic)
        return [record.physical_offset for record in found]

    @property
    def hot_keys(self) -> list[str]:
        """The ten keys with the most messages."""
        return sorted(self.by_key, key=lambda key: len(self.by_key[key]), reverse=True)[:10]

    def windows(self, count: int, seed: int) -> list[tuple[int | None, int | None]]:
        """Windows whose ends lie at messages' times, one millisecond beside them, or nowhere."""
        random = Random(seed)
        times = [record.store_timestamp_ms for record in self.records]
        edges: list[int | None] = [time + step for time in times for step in (-1, 0, 1)]
        edges += [None] * (len(edges) // 10) + [0, min(times) - 10_000, max(times) + 10_000]
        chosen: list[tuple[int | None, int | None]] = []
        while len(chosen) < count:
            since_ms, until_ms = random.choice(edges), random.choice(edges)
            if since_ms is not None and until_ms is not None and since_ms > until_ms:
                since_ms, until_ms = until_ms, since_ms
            chosen.append((since_ms, until_ms))
        return chosen

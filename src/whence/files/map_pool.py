"""MapPool: maps of many files, of which only the last used ones stay open."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Hashable

from whence.files.mapped_file import MappedFile

OPEN_MAPS_MAX = 64  # a Python map holds a file descriptor, and a store has thousands of files


class MapPool:
    """A map that falls out of the pool lives on while someone holds its data."""

    def __init__(self) -> None:
        self._maps: OrderedDict[Hashable, MappedFile] = OrderedDict()

    def __len__(self) -> int:
        return len(self._maps)

    def get(self, key: Hashable) -> MappedFile | None:
        mapped = self._maps.get(key)
        if mapped is not None:
            self._maps.move_to_end(key)
        return mapped

    def put(self, key: Hashable, mapped: MappedFile) -> MappedFile:
        self._maps[key] = mapped
        self._maps.move_to_end(key)
        while len(self._maps) > OPEN_MAPS_MAX:
            self._maps.popitem(last=False)
        return mapped

    def keep(self, keys: Container[Hashable]) -> None:
        """Let go of all maps but those of these keys."""
        for key in [key for key in self._maps if key not in keys]:
            del self._maps[key]

    def clear(self) -> None:
        self._maps.clear()

"""What the crash tests share."""

from collections.abc import Iterator

import pytest

from tests.crash.workload import BATCH_FILE_SIZE, set_batch_file_size


@pytest.fixture
def small_batch_queues() -> Iterator[None]:
    """A file of a batch queue has 13 MB, whatever ``create`` is told: too much to be copied again and again."""
    size = set_batch_file_size(BATCH_FILE_SIZE)
    yield
    set_batch_file_size(size)

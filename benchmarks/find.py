"""A whole ``store.find`` of one key in a store of 1 GiB, warm: walk, read, verify, decode, receipt."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import whence
from benchmarks.data import LOG_SIZE, sample_store
from benchmarks.harness import Comparison, Options, Peer, Result, Target, measure, timed
from whence.lookup.answer import Answer

FINDS = 5_000  # a round


def results(options: Options) -> Iterator[Result]:
    sample = sample_store(LOG_SIZE >> 6 if options.is_small else LOG_SIZE)
    count = FINDS // 50 if options.is_small else FINDS

    def numbers(round_number: int) -> list[int]:
        chosen: list[int] = np.random.default_rng(round_number).integers(0, sample.message_count, count).tolist()
        return chosen

    with whence.open(sample.path) as store:

        def by_key(asked: list[tuple[str, str]]) -> int:
            return _count(store.find(key=key, topic=topic) for topic, key in asked)

        def by_id(asked: list[tuple[str, str]]) -> int:
            return _count(store.find(id=unique_id) for _, unique_id in asked)

        keys = timed(lambda n: [(sample.topic(i), sample.key(i)) for i in numbers(n)], by_key)
        ids = timed(lambda n: [(sample.topic(i), sample.unique_id(i)) for i in numbers(n)], by_id)
        misses = timed(lambda n: [(sample.topic(i), f"{sample.key(i)}x") for i in numbers(n)], by_key)
        for work, run, target in (
            ("find of one key, with its topic", keys, Target(10_000, 30_000, "a second")),
            ("find of one unique id, in all topics", ids, None),
            ("find of a key that is not there", misses, None),
        ):
            yield measure(Comparison(work, [Peer("whence", run)], target, count, "find"), options)


def _count(answers: Iterator[Answer]) -> int:
    count = 0
    for answer in answers:
        assert answer.receipt.complete
        count += len(answer.messages)
    return count

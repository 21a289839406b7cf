"""Golden stores, damaged in thousands of ways: a question ends in a sound and honest answer, or in an error of ours.

A failure names its case; ``python -m tests.hostile.fuzz NUMBER FOLDER`` makes that damage again, to be looked at.
"""

import pytest

from tests.hostile.fuzz import run_cases

SHORT_COUNT = 500
FAILURES_SHOWN = 20


def check(numbers: range) -> None:
    report = run_cases(numbers)
    print(report)
    assert not report.failures, "\n".join([str(report), *report.failures[:FAILURES_SHOWN]])
    assert report.cases == len(numbers)
    # The mutations would prove little if all of them left the answers as they were, or none did.
    assert min(report.outcomes[name] for name in ("complete answers", "incomplete answers", "errors")) > 0


@pytest.mark.slow
def test_damaged_store_gives_sound_and_honest_answers_or_errors():
    check(range(SHORT_COUNT))


@pytest.mark.long(part=1, count=100_000)
def test_damaged_store_gives_sound_and_honest_answers_or_errors_a_hundred_thousand_times(long_count: int):
    check(range(SHORT_COUNT, SHORT_COUNT + long_count))

"""The walk of a search as a teacher would tell it: what was looked at, in which order, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from whence.cli.terminal import Screen, counted, printable, size_text, time_text
from whence.formats.rocketmq.index_file import slot_position
from whence.lookup.answer import Answer
from whence.lookup.explain import STEPS_MAX, Explanation, Step
from whence.lookup.question import ScanMode

ITEMS_SHOWN = 8  # of one chain, and those that answer the question; JSON has every step
ITEMS_BRIEF = 50  # if more were visited, a chain without the hash takes one line
HASHES_SHOWN = 24
VERIFIED = "read: it answers the question"


def explanation_text(explanation: Explanation, screen: Screen) -> None:
    """The question, the walk in numbered steps, and what it cost; the caller renders the answer."""
    screen.line(screen.bold("Question: ") + printable(_question(explanation.answer)))
    teller = _Teller(explanation, screen)
    teller.tell_road()
    for step in explanation.steps:
        teller.tell(step)
    teller.end_file()
    screen.line()
    if len(explanation.steps) >= STEPS_MAX:
        screen.line(f"Only the first {STEPS_MAX} steps are told; the counts below go on.")
    screen.line(f"Read in all: {size_text(explanation.bytes_read)} of index and log.")
    screen.line()


def _question(answer: Answer) -> str:
    asked = answer.question.to_dict()
    words = []
    for name, value in asked.items():
        if value is None or name == "cursor":
            continue
        if name.endswith("_ms"):
            words.append(f"{name.removesuffix('_ms')} {time_text(value)}")
        elif value is True:
            words.append(name.replace("_", " "))
        else:
            shown = " or ".join(value) if isinstance(value, list) else value
            words.append(f"{name.replace('_', ' ')} {shown}")
    return ", ".join(words)


class _Teller:
    """Tells steps as they come. Those of one index file are kept until the next begins, and told chain by chain."""

    def __init__(self, explanation: Explanation, screen: Screen) -> None:
        self._screen = screen
        self._question = explanation.answer.question
        self._hashes = explanation.hashes
        self._topics_from = explanation.answer.receipt.topics_from
        self._brief = explanation.answer.receipt.items_visited > ITEMS_BRIEF
        self._seam_told = False
        self._number = 0
        self._file: Step | None = None
        self._in_file: list[Step] = []

    # -- the steps -------------------------------------------------------------------------------------------

    def tell_road(self) -> None:
        """How a question of this kind is answered."""
        asked = self._question
        if asked.fields:
            self._title(
                "A field's value is computed when the log is indexed. Beside each item of its index files stand 128 "
                'bits of the hash of "topic#value", and they decide.'
            )
            self._tell_hashes()
        elif asked.offset is not None:
            self._title("A physical offset is the byte address of a record in the CommitLog: it is read there.")
        elif asked.queue_offset is not None:
            self._title(
                "A queue offset counts the messages of a queue. Its ConsumeQueue says where each of them lies."
            )
        elif asked.scan is ScanMode.EVERYTHING:
            self._title("--scan trusts no index: every record of the log is looked at.")
        elif asked.id is not None:
            self._title(
                "An id may be one that the broker gave, made of its address and the physical offset, or one that the "
                "producer gave, or a key. If it can name an offset, the record there is read; in any case it is "
                "looked up like a key."
            )
            self._tell_hashes()
        elif asked.keys:
            self._tell_hashes()
        else:
            self._title("Index files hold hashes of keys, and times only roughly: the log itself is scanned.")

    def _tell_hashes(self) -> None:
        """What is looked for in the index files."""
        if not self._hashes:
            return
        texts = sorted((text, key_hash) for key_hash, texts in self._hashes.items() for text in texts)
        words = 'An index file knows a message by the Java hash of "topic#key", without its sign.'
        if self._topics_from in ("broker", "sidecar"):
            words += (
                " No topic was named, so it is looked up in each one that the folders of consumequeue/ and "
                f"config/topics.json name: {counted(len(texts), 'text')}."
            )
        self._title(words)
        rows = [(key_hash, text) for text, key_hash in texts[:HASHES_SHOWN]]
        self._screen.table(("hash", "of the text"), rows, "     ")
        if len(texts) > HASHES_SHOWN:
            self._screen.line(f"     ... and {len(texts) - HASHES_SHOWN} more; --json has them all")

    def tell(self, step: Step) -> None:
        if self._file is not None and step.name in ("item", "verified", "rejected", "bad_chain"):
            self._in_file.append(step)
            return
        self.end_file()
        details = step.details
        match step.name:
            case "topics":
                pass  # told with the hashes
            case "index_file":
                self._file = step
            case "skipped":
                if details["file"] is not None:
                    self._title(f"Index file {_name(details['file'])} is passed over: {details['why']}.")
                else:
                    self._title(f"A part of the log without an index is passed over: {details['why']}.")
            case "time_blocks":
                kept, ruled_out = (size_text(details[name]) for name in ("kept_bytes", "ruled_out_bytes"))
                self._title(
                    f"Time blocks tell that {ruled_out} of the log have no message of the window; {kept} may."
                )
            case "scan":
                self._title(self._scan_words(details))
            case "bare":
                self._title(
                    f"No message at offsets {details['from_offset']} to {details['to_offset']} has items: whence "
                    "indexed that part of the log, and made all of its index files."
                )
            case "not_scanned":
                self._title(
                    f"No index file covers offsets {details['from_offset']} to {details['to_offset']}, and --no-scan "
                    "forbids to scan them. The answer is not complete."
                )
            case "queue":
                queue = f"queue {self._question.queue} of topic {self._question.topic}"
                entry, offset = details["queue_offset"], details["physical_offset"]
                self._title(f"Entry {entry} of {queue} leads to offset {offset}.")
            case "verified" | "rejected":
                self._line(_outcome(step))
            case _:
                words = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in details.items())
                self._title(f"{step.name.replace('_', ' ').capitalize()}: {words}.")

    # -- one index file --------------------------------------------------------------------------------------

    def end_file(self) -> None:
        """Tell the chains of the index file that was walked last."""
        file, steps = self._file, self._in_file
        self._file, self._in_file = None, []
        if file is None:
            return
        details = file.details
        self._title(
            f"Index file {_name(details['file'])} covers offsets {details['from_offset']} to "
            f"{details['to_offset']}; it has {details['slots']} slots and {counted(details['items'], 'item')}."
        )
        outcomes = {s.details["physical_offset"]: s for s in steps if s.name in ("verified", "rejected")}
        chains: dict[int, list[Step]] = {key_hash: [] for key_hash in self._hashes}
        for step in steps:
            if step.name == "item":
                chains[step.details["wanted"]].append(step)
        misses: list[tuple[int, list[Step]]] = []
        for key_hash, chain in chains.items():
            if any(s.details["key_hash"] == key_hash for s in chain) or len(self._hashes) == 1:
                self._tell_chain(key_hash, details, chain, outcomes)
            else:
                misses.append((key_hash, chain))
        if misses:
            self._tell_misses(misses, details)
        for step in steps:
            if step.name == "bad_chain":
                self._line(
                    self._screen.red(f"{printable(step.details['why'])}: what is left of its part is scanned.")
                )

    def _tell_chain(
        self, key_hash: int, file: dict[str, Any], chain: Sequence[Step], outcomes: dict[int, Step]
    ) -> None:
        slot = key_hash % file["slots"]
        texts = " or ".join(printable(text) for text in self._hashes[key_hash])
        where = f"{texts}: hash {key_hash} modulo {file['slots']} is slot {slot}, at byte {slot_position(slot)}."
        items = [step.details for step in chain]
        if not items:
            self._line(f"{where} It is empty: no such key here.")
            return
        if self._brief and all(item["key_hash"] != key_hash for item in items):
            first, last = items[0], items[-1]
            stretch = f"item {first['number']} at byte {first['position']}"
            if len(items) > 1:
                stretch += f" down to item {last['number']} at byte {last['position']}"
            self._line(f"{where} Its chain: {counted(len(items), 'item')}, {stretch}; all are of other keys.")
            return
        self._line(f"{where} Its chain, newest first:")
        seen: set[int] = set()
        rows = []
        for item in items:
            words = self._item_words(item, file, outcomes, seen)
            rows.append((item["number"], item["position"], item["key_hash"], item["physical_offset"], words))
            if item["key_hash"] == key_hash:
                seen.add(item["physical_offset"])
        shown = [row for number, row in enumerate(rows) if number < ITEMS_SHOWN or row[-1] == VERIFIED]
        self._screen.table(("item", "at byte", "hash", "offset", ""), shown[: 2 * ITEMS_SHOWN], "       ")
        hidden = len(rows) - len(shown[: 2 * ITEMS_SHOWN])
        if hidden:
            self._screen.line(f"       and {counted(hidden, 'item')} more; --json has them all")

    @staticmethod
    def _item_words(item: dict[str, Any], file: dict[str, Any], outcomes: dict[int, Step], seen: set[int]) -> str:
        offset = item["physical_offset"]
        if item["key_hash"] != item["wanted"]:
            if offset < file["from_offset"]:
                return "another key, and before this part: nothing more here"
            return "another key in the same slot"
        if offset in seen:
            return "the same message once more"
        if offset in outcomes:
            step = outcomes[offset]
            return VERIFIED if step.name == "verified" else f"read and rejected: {printable(step.details['why'])}"
        if not file["from_offset"] <= offset < file["to_offset"]:
            return "at this file's edge, where the log itself is read"
        return "not looked at: it is not on this page"

    def _tell_misses(self, misses: Sequence[tuple[int, list[Step]]], file: dict[str, Any]) -> None:
        visited = sum(len(chain) for _, chain in misses)
        slots = ", ".join(str(slot) for slot in sorted({key_hash % file["slots"] for key_hash, _ in misses}))
        rest = "All" if len(misses) == len(self._hashes) else "The other"
        self._screen.paragraph(
            f"{rest} {counted(len(misses), 'hash', 'hashes')} lead to slots {slots}: "
            f"{counted(visited, 'item')} in their chains, none with the hash that was looked for.",
            "     ",
            "   - ",
        )

    # -- lines -----------------------------------------------------------------------------------------------

    def _scan_words(self, details: dict[str, Any]) -> str:
        stretch = f"offsets {details['from_offset']} to {details['to_offset']}"
        size = size_text(details["to_offset"] - details["from_offset"])
        found = counted(details["hits"], "candidate")
        if not details["seam"]:
            uncovered = self._question.scan is not ScanMode.EVERYTHING and bool(self._hashes)
            why = ", which no index file covers," if uncovered else ""
            return f"The log at {stretch}{why} is scanned ({size}): {found}."
        if self._seam_told:
            return f"A seam between index files: the records at {stretch} are read ({size}): {found}."
        self._seam_told = True
        return (
            f"At {stretch} an index file ends. The items of records at which index files end and begin may lie in "
            f"two of them, or not all be there yet, so these records are always read ({size}): {found}."
        )

    def _title(self, words: str) -> None:
        self._number += 1
        first = f"{self._number}. "
        self._screen.line()
        self._screen.paragraph(printable(words), " " * len(first), first)

    def _line(self, text: str) -> None:
        self._screen.paragraph(text, "     ", "   - ")


def _name(file: str) -> str:
    return file.rsplit("/", 1)[-1]


def _outcome(step: Step) -> str:
    offset = step.details["physical_offset"]
    if step.name == "verified":
        return f"the message at {offset} was read: it answers the question"
    return f"the message at {offset} was read and rejected: {printable(step.details['why'])}"

"""CommitLog: where it begins and ends, what is whole in it, and what is damage."""

import hashlib
import ipaddress
import shutil
from dataclasses import replace

import pytest

from tests.golden import ALL, ANSWERED, CRASHED, DAMAGED
from tests.reference import (
    COMPRESSED,
    crc_property,
    encode_blank,
    encode_properties,
    encode_record,
    i32,
)
from tests.store_maker import FILE_SIZE, log_bytes, make_store, message, place
from whence.errors import CorruptError, FormatError, NotFoundError
from whence.store.commit_log import CommitLog
from whence.store.damage import Damage, DamageKind
from whence.store.scan import Sieve

HALF_RECORD = "v5-damaged-half-record"


def host(value):
    return f"{value.address}|{value.port}"


def as_recorded(stored, position):
    """A message of ours in the words of ``messages.jsonl``."""
    is_compressed = bool(stored.sys_flag & COMPRESSED)
    return {
        "position": position,
        "physical_offset": stored.physical_offset,
        "size": stored.size,
        "topic": stored.topic,
        "queue_id": stored.queue,
        "queue_offset": stored.queue_offset,
        "sys_flag": stored.sys_flag,
        "flag": stored.flag,
        "body_crc": stored.body_crc,
        "born_timestamp": stored.born_timestamp_ms,
        "born_host": host(stored.born_host),
        "store_timestamp": stored.store_timestamp_ms,
        "store_host": host(stored.store_host),
        "reconsume_times": stored.reconsume_times,
        "prepared_transaction_offset": stored.prepared_transaction_offset,
        "offset_message_id": stored.offset_id,
        "body_size": stored.body_size,
        "body_sha256": hashlib.sha256(stored.stored_body).hexdigest(),
        "inflated_size": len(stored.body) if is_compressed else None,
        "inflated_sha256": hashlib.sha256(stored.body).hexdigest() if is_compressed else None,
        "properties": stored.properties,
    }


def plain_host(recorded):
    """Java writes an IPv6 address in full, ours is the short form."""
    address, port = recorded.split("|")
    return f"{ipaddress.ip_address(address.strip('/[]'))}|{port}"


class TestGolden:
    @pytest.mark.parametrize("name", ALL)
    def test_every_message_is_read_as_rocketmq_reads_it(self, golden, opened, name):
        store = opened(name)
        end = store.commit_log.end_offset()
        recorded = [known for known in golden(name).messages if known["position"] < end]
        scanned = list(store.scan())
        assert len(scanned) == len(recorded)
        for stored, known in zip(scanned, recorded, strict=True):
            wanted = known | {
                "born_host": plain_host(known["born_host"]),
                "store_host": plain_host(known["store_host"]),
            }
            assert as_recorded(stored, stored.physical_offset) == wanted
            assert store.read(known["position"]) == stored

    @pytest.mark.parametrize("name", ANSWERED)
    def test_the_log_begins_and_ends_where_rocketmq_says(self, golden, opened, name):
        log = opened(name).commit_log
        begin, end = golden(name).log_range
        assert log.begin_offset == begin
        if name == HALF_RECORD:
            # The body's checksum leaves out topic and properties, so RocketMQ keeps a record of which the
            # second half was never written. Ours ends before it: a record that is being written looks alike.
            end = golden(name).messages[-1]["position"]
        assert log.end_offset() == end

    @pytest.mark.parametrize("name", CRASHED)
    def test_a_crashed_log_ends_behind_its_last_message(self, golden, opened, name):
        """Behind it lie zeros, and a file of zeros that was made ahead of need."""
        last = golden(name).messages[-1]
        assert opened(name).commit_log.end_offset() == last["position"] + last["size"]

    @pytest.mark.parametrize("name", sorted(set(ALL) - set(DAMAGED)))
    def test_a_sound_log_has_no_damage(self, opened, name):
        log = opened(name).commit_log
        assert log.damage(log.end_offset()) == []

    def test_whole_records_behind_a_flipped_byte_are_told(self, golden, opened):
        log = opened("v5-damaged-body-flip").commit_log
        end = log.end_offset()
        [(begin, _, damage)] = log.damage(end)
        # RocketMQ deleted the file that begins behind the cut, and with it the last message of the base.
        kept = golden("v5-damaged-body-flip").log_files[-1]
        kept_end = int(kept["file"]) + kept["size"]
        base = golden(golden("v5-damaged-body-flip").base).messages
        behind = [known["position"] for known in base if end < known["position"] < kept_end]
        assert begin == end
        assert damage.kind is DamageKind.RECORDS_BEHIND_END
        assert damage.kind.hides_messages
        assert f"{len(behind)} whole records" in damage.detail
        assert f"the first at offset {behind[0]}, the last at {behind[-1]}" in damage.detail
        assert (damage.path, damage.position) == tuple(map_path(log, end))

    def test_a_half_record_is_told_and_hides_nothing(self, golden, opened):
        log = opened(HALF_RECORD).commit_log
        end = log.end_offset()
        [(_, _, damage)] = log.damage(end)
        assert damage.kind is DamageKind.HALF_RECORD
        assert not damage.kind.hides_messages
        [[name, position, _, _]] = golden(HALF_RECORD).damage
        assert damage.path.endswith(name)
        assert damage.position < position

    def test_a_lost_page_leaves_zeros_and_nothing_behind_them(self, opened):
        log = opened("v5-damaged-lost-page").commit_log
        assert log.damage(log.end_offset()) == []


def map_path(log, offset):
    path, position = log.path_of(offset)
    return str(path), position


# -- made by hand -------------------------------------------------------------------------------------------


def open_log(folder):
    return CommitLog(folder / "commitlog")


def log_of(folder, data, base=0):
    """A CommitLog of these bytes, in files of FILE_SIZE."""
    (folder / "commitlog").mkdir()
    data = data + bytes(-len(data) % FILE_SIZE)
    for at in range(0, len(data), FILE_SIZE):
        (folder / "commitlog" / f"{base + at:020d}").write_bytes(data[at : at + FILE_SIZE])
    return open_log(folder)


def scan_all(log):
    """All records by a scan, and the damage that it met."""
    damage: list[Damage] = []
    offsets = []
    for begin, end in log.pieces(log.begin_offset, log.end_offset()):
        offsets += log.scan(begin, end, Sieve(), damage)
    return offsets, damage


MESSAGES = [message(keys=f"key-{number}", at=number) for number in range(120)]


def test_a_log_without_files_is_empty(tmp_path):
    (tmp_path / "commitlog").mkdir()
    log = open_log(tmp_path)
    assert (log.begin_offset, log.end_offset()) == (0, 0)
    assert log.pieces(0, 100) == []
    with pytest.raises(NotFoundError, match="no log file"):
        log.read(0)


def test_a_log_of_zeros_ends_where_it_begins(tmp_path):
    log = log_of(tmp_path, bytes(FILE_SIZE), base=3 * FILE_SIZE)
    assert (log.begin_offset, log.end_offset()) == (3 * FILE_SIZE, 3 * FILE_SIZE)
    assert log.damage(log.end_offset()) == []


@pytest.mark.usefixtures("road")
def test_records_are_read_across_files_and_blanks(tmp_path):
    made = make_store(tmp_path, MESSAGES, base=2 * FILE_SIZE)
    log = open_log(tmp_path)
    assert len(made.log_files) > 2
    assert (log.begin_offset, log.end_offset()) == (2 * FILE_SIZE, made.end_offset)
    assert scan_all(log) == (made.offsets, [])
    assert [stored.keys for stored in log.messages(log.begin_offset, log.end_offset())] == [
        tuple(record.keys) for record in made.records
    ]


class TestReadOneRecord:
    def test_an_offset_in_no_file_is_not_found_and_the_reason_told(self, tmp_path):
        made = make_store(tmp_path, MESSAGES, base=2 * FILE_SIZE)
        log = open_log(tmp_path)
        with pytest.raises(NotFoundError, match="expired"):
            log.read(0)
        with pytest.raises(NotFoundError, match="in no file"):
            log.read(made.end_offset + 5 * FILE_SIZE)

    def test_an_offset_between_two_records_is_an_error_with_file_and_byte(self, tmp_path):
        made = make_store(tmp_path, MESSAGES)
        offset = made.offsets[-1] + 3
        with pytest.raises(FormatError) as error:
            open_log(tmp_path).read(offset)
        assert error.value.path == str(made.log_files[-1])
        assert error.value.position in range(offset % FILE_SIZE, offset % FILE_SIZE + 9)

    def test_a_record_must_say_that_it_lies_where_it_lies(self, tmp_path):
        """What a copy of another log's bytes would break, and what RocketMQ does not check."""
        [placed] = place([message(keys="moved")])
        log = log_of(tmp_path, encode_record(replace(placed, physical_offset=77)))
        assert log.end_offset() == 0
        with pytest.raises(CorruptError, match="offset 77, not 0"):
            log.read(0)

    def test_a_body_must_fit_its_checksum(self, tmp_path):
        data = bytearray(encode_record(*place([message(body=b"some body")])))
        data[data.index(b"some body")] ^= 1
        log = log_of(tmp_path, bytes(data))
        assert log.end_offset() == 0
        with pytest.raises(CorruptError, match="CRC"):
            log.read(0)

    def test_a_record_must_fit_its_own_checksum_where_it_has_one(self, tmp_path):
        """The record CRC covers topic and properties too: one flipped letter of a key is noticed."""
        [placed] = place([message(keys="a-key", tags="a-tag")])
        blob = placed.properties_data + bytes(20)
        whole = encode_record(replace(placed, properties_data=blob))
        data = bytearray(whole[:-20] + crc_property(whole[:-20]))
        assert log_of(tmp_path, bytes(data)).end_offset() == len(data)
        data[data.index(b"a-key")] ^= 1
        shutil.rmtree(tmp_path / "commitlog")
        log = log_of(tmp_path, bytes(data))
        assert log.end_offset() == 0
        with pytest.raises(CorruptError, match="CRC"):
            log.read(0)


def is_boundary(log, offset):
    damage: list[Damage] = []
    found = log.is_boundary(offset, damage)
    assert damage == []
    return found


@pytest.mark.usefixtures("road")
class TestBoundaries:
    def test_only_a_walk_tells_records_from_bytes_that_look_like_one(self, tmp_path):
        """A body may hold a whole record, its physical offset and all."""
        [inner] = place([message(keys="inner")])
        body_at = 88
        inner = replace(inner, physical_offset=body_at)
        outer = message(keys="outer", body=encode_record(inner))
        log = log_of(tmp_path, encode_record(*place([outer])))
        assert log.read(body_at).keys == ("inner",)
        assert is_boundary(log, 0)
        assert not is_boundary(log, body_at)
        assert scan_all(log) == ([0], [])

    def test_the_end_of_the_log_is_a_boundary_too_and_nothing_beyond(self, tmp_path):
        made = make_store(tmp_path, MESSAGES[:3])
        log = open_log(tmp_path)
        assert [offset for offset in range(made.end_offset) if is_boundary(log, offset)] == made.offsets
        assert not is_boundary(log, 10 * FILE_SIZE)

    def test_damage_before_an_offset_is_told_with_the_answer(self, tmp_path):
        """The walk goes on behind it, from a place that looks like a record: not the same as a proof."""
        made = make_store(tmp_path, MESSAGES)
        data = bytearray(made.log_files[0].read_bytes())
        data[made.offsets[4] + 90] ^= 1
        made.log_files[0].write_bytes(data)
        log = open_log(tmp_path)
        damage: list[Damage] = []
        assert log.is_boundary(made.offsets[9], damage)
        assert [told.position for told in damage] == [made.offsets[4]]

    def test_behind_a_file_s_last_record_the_next_one_begins_in_the_next_file(self, tmp_path):
        made = make_store(tmp_path, MESSAGES)
        last = max(record.physical_offset for record in made.records if record.physical_offset < FILE_SIZE)
        size = next(record.size for record in made.records if record.physical_offset == last)
        log = open_log(tmp_path)
        assert log.next_boundary(last + size) == FILE_SIZE
        assert log.next_boundary(last) == last


@pytest.mark.usefixtures("road")
class TestTheEnd:
    """A record counts at the log's end only if it is whole."""

    def test_a_cut_record_is_not_part_of_the_log(self, tmp_path):
        made = make_store(tmp_path, MESSAGES[:5], queues=False)
        whole = made.log_files[0].read_bytes()
        last = made.records[-1]
        for cut in range(last.physical_offset + 1, made.end_offset):
            made.log_files[0].write_bytes(whole[:cut] + bytes(FILE_SIZE - cut))
            assert open_log(tmp_path).end_offset() == last.physical_offset, cut
        made.log_files[0].write_bytes(whole)
        assert open_log(tmp_path).end_offset() == made.end_offset

    def test_zeros_in_the_last_record_s_properties_end_the_log_before_it(self, tmp_path):
        blob = encode_properties({"KEYS": "a"}) + b"\0\0\0\0"
        records = place([message(keys="first"), replace(message(), properties_data=blob)])
        log = log_of(tmp_path, b"".join(map(encode_record, records)))
        assert log.end_offset() == records[1].physical_offset
        [(_, _, damage)] = log.damage(log.end_offset())
        assert damage.kind is DamageKind.HALF_RECORD

    @pytest.mark.parametrize("follower", ["record", "blank"])
    def test_zeros_in_properties_are_taken_once_something_whole_follows(self, tmp_path, follower):
        blob = encode_properties({"KEYS": "a"}) + b"\0\0\0\0"
        records = place([replace(message(), properties_data=blob), message(keys="next")])
        data = encode_record(records[0])
        data += encode_record(records[1]) if follower == "record" else encode_blank(FILE_SIZE - len(data))
        log = log_of(tmp_path, data)
        assert log.end_offset() == (
            records[1].physical_offset + records[1].size if follower == "record" else FILE_SIZE
        )
        assert log.damage(log.end_offset()) == []

    def test_files_made_ahead_of_need_are_behind_the_end(self, tmp_path):
        made = make_store(tmp_path, MESSAGES[:5])
        for number in (1, 2):
            (tmp_path / "commitlog" / f"{number * FILE_SIZE:020d}").write_bytes(bytes(FILE_SIZE))
        log = open_log(tmp_path)
        assert log.end_offset() == made.end_offset
        assert log.damage(log.end_offset()) == []

    def test_a_log_that_ends_in_a_blank_goes_on_in_the_next_file(self, tmp_path):
        data = log_bytes(place(MESSAGES[:2]))["00000000000000000000"].rstrip(b"\0")
        log = log_of(tmp_path, data + encode_blank(FILE_SIZE - len(data)))
        assert log.end_offset() == FILE_SIZE
        (tmp_path / "commitlog" / f"{FILE_SIZE:020d}").write_bytes(bytes(FILE_SIZE))
        assert log.end_offset() == FILE_SIZE
        [record] = place(MESSAGES[2:3], base=FILE_SIZE)
        (tmp_path / "commitlog" / f"{FILE_SIZE:020d}").write_bytes(encode_record(record).ljust(FILE_SIZE, b"\0"))
        assert log.end_offset() == FILE_SIZE + record.size

    def test_damage_is_no_end_once_another_file_is_begun(self, tmp_path):
        """Also for a reader that was there before: it must not wait at the damage for ever."""
        files = log_bytes(place(MESSAGES))
        made = make_store(tmp_path, MESSAGES[:1])
        log = open_log(tmp_path)
        assert log.end_offset() == made.end_offset
        data = bytearray(files[f"{0:020d}"])
        data[made.end_offset + 88] ^= 1  # of the body
        made.log_files[0].write_bytes(data)
        assert log.end_offset() == made.end_offset
        for name in sorted(files)[1:]:
            (tmp_path / "commitlog" / name).write_bytes(files[name])
        assert log.end_offset() == open_log(tmp_path).end_offset() > FILE_SIZE

    def test_a_boundary_that_is_known_spares_the_walk_to_it(self, tmp_path):
        made = make_store(tmp_path, MESSAGES)
        assert open_log(tmp_path).end_offset(boundary=made.offsets[-1]) == made.end_offset

    def test_bytes_of_an_older_log_behind_the_end_are_told(self, tmp_path):
        """A cut log is not wiped: whole records may lie behind the first one that fails."""
        made = make_store(tmp_path, MESSAGES[:8], queues=False)
        data = bytearray(made.log_files[0].read_bytes())
        data[made.offsets[5] + 90] ^= 1
        made.log_files[0].write_bytes(data)
        log = open_log(tmp_path)
        assert log.end_offset() == made.offsets[5]
        [(begin, _, damage)] = log.damage(made.offsets[5])
        assert begin == made.offsets[5]
        assert damage.kind is DamageKind.RECORDS_BEHIND_END
        assert "2 whole records" in damage.detail


@pytest.mark.usefixtures("road")
class TestDamageBeforeTheEnd:
    """A record that fails while later files begin with whole ones: the log goes on behind it."""

    def flip(self, path, position):
        data = bytearray(path.read_bytes())
        data[position] ^= 1
        path.write_bytes(data)

    def test_a_scan_tells_the_record_that_fails_and_takes_the_others(self, tmp_path):
        made = make_store(tmp_path, MESSAGES)
        bad = made.offsets[4]
        self.flip(made.log_files[0], bad + 90)
        offsets, damage = scan_all(open_log(tmp_path))
        assert offsets == [offset for offset in made.offsets if offset != bad]
        [told] = damage
        assert (told.path, told.position, told.kind) == (str(made.log_files[0]), bad, DamageKind.BAD_RECORD)
        assert f"the next whole record begins at byte {made.offsets[5]}" in told.detail

    @pytest.mark.parametrize("size", [0, 1, 90, 2**31 - 1, -5])
    def test_a_wrong_size_is_found_again_by_a_search(self, tmp_path, size):
        made = make_store(tmp_path, MESSAGES)
        data = bytearray(made.log_files[0].read_bytes())
        data[made.offsets[4] : made.offsets[4] + 4] = i32(size)
        made.log_files[0].write_bytes(data)
        offsets, damage = scan_all(open_log(tmp_path))
        assert offsets == made.offsets[:4] + made.offsets[5:]
        assert [told.position for told in damage] == [made.offsets[4]]

    def test_a_failing_record_s_body_is_not_searched_for_records_if_its_size_leads_on(self, tmp_path):
        body = encode_record(replace(message(keys="inner"), physical_offset=88))
        made = make_store(tmp_path, [message(body=body), *MESSAGES])
        self.flip(made.log_files[0], 20)  # of the queue offset: no harm
        self.flip(made.log_files[0], 88 + 30)  # of the body, so its checksum fails
        offsets, damage = scan_all(open_log(tmp_path))
        assert offsets == made.offsets[1:]
        assert [told.position for told in damage] == [0]

    def test_zeros_in_the_middle_are_damage(self, tmp_path):
        made = make_store(tmp_path, MESSAGES)
        data = bytearray(made.log_files[0].read_bytes())
        data[made.offsets[2] : made.offsets[6]] = bytes(made.offsets[6] - made.offsets[2])
        made.log_files[0].write_bytes(data)
        offsets, damage = scan_all(open_log(tmp_path))
        assert offsets == made.offsets[:2] + made.offsets[6:]
        assert [(told.kind, told.position) for told in damage] == [(DamageKind.BAD_RECORD, made.offsets[2])]

    @pytest.mark.parametrize("size", [8, 16, 107, FILE_SIZE, 2**31 - 1])
    def test_a_blank_in_the_middle_of_a_file_is_damage(self, tmp_path, size):
        """A blank reaches to the end of its file, no more and no less."""
        made = make_store(tmp_path, MESSAGES)
        data = bytearray(made.log_files[0].read_bytes())
        data[made.offsets[4] : made.offsets[4] + 8] = i32(size) + bytes.fromhex("cbd43194")
        made.log_files[0].write_bytes(data)
        offsets, damage = scan_all(open_log(tmp_path))
        assert offsets == made.offsets[:4] + made.offsets[5:]
        assert [told.position for told in damage] == [made.offsets[4]]

    def test_nothing_whole_behind_it_in_its_file_is_told_too(self, tmp_path):
        made = make_store(tmp_path, MESSAGES)
        in_first = [offset for offset in made.offsets if offset < FILE_SIZE]
        data = made.log_files[0].read_bytes()[: in_first[2]]
        made.log_files[0].write_bytes(data.ljust(FILE_SIZE, b"\xff"))
        offsets, damage = scan_all(open_log(tmp_path))
        assert offsets == in_first[:2] + made.offsets[len(in_first) :]
        assert "nothing whole lies behind it" in damage[0].detail

    def test_all_messages_in_order_stop_at_damage_with_an_error(self, tmp_path):
        made = make_store(tmp_path, MESSAGES)
        self.flip(made.log_files[1], 90)
        log = open_log(tmp_path)
        with pytest.raises(CorruptError) as error:
            list(log.messages(0, log.end_offset()))
        assert error.value.path == str(made.log_files[1])


@pytest.mark.usefixtures("road")
class TestGaps:
    def test_a_missing_file_is_a_gap(self, tmp_path):
        made = make_store(tmp_path, MESSAGES)
        made.log_files[1].unlink()
        log = open_log(tmp_path)
        end = log.end_offset()
        assert end == made.end_offset
        [(begin, to, damage)] = log.damage(end)
        assert (begin, to, damage.kind) == (FILE_SIZE, 2 * FILE_SIZE, DamageKind.GAP)
        assert damage.kind.hides_messages
        assert scan_all(log)[0] == [offset for offset in made.offsets if not FILE_SIZE <= offset < 2 * FILE_SIZE]

    def test_of_three_files_the_middle_one_may_be_missing(self, tmp_path):
        """Then two names are left, twice as far apart as a file is long."""
        made = make_store(tmp_path, MESSAGES[:90])
        assert len(made.log_files) == 3
        made.log_files[1].unlink()
        log = open_log(tmp_path)
        assert log.end_offset() == made.end_offset
        assert [(begin, end) for begin, end, _ in log.damage(made.end_offset)] == [(FILE_SIZE, 2 * FILE_SIZE)]

    def test_a_file_that_was_cut_off_is_a_gap(self, tmp_path):
        made = make_store(tmp_path, MESSAGES)
        data = made.log_files[1].read_bytes()
        made.log_files[1].write_bytes(data[:1000])
        log = open_log(tmp_path)
        gaps = [entry for entry in log.damage(log.end_offset()) if entry[2].kind is DamageKind.GAP]
        assert [(begin, end) for begin, end, _ in gaps] == [(FILE_SIZE + 1000, 2 * FILE_SIZE)]
        offsets, _ = scan_all(log)
        whole = {
            record.physical_offset
            for record in made.records
            if not FILE_SIZE + 1000 - record.size < record.physical_offset < 2 * FILE_SIZE
        }
        assert set(offsets) == whole

    def test_a_read_in_a_gap_is_not_found(self, tmp_path):
        made = make_store(tmp_path, MESSAGES)
        made.log_files[1].unlink()
        with pytest.raises(NotFoundError, match="in no file"):
            open_log(tmp_path).read(FILE_SIZE)

    def test_a_gap_that_begins_behind_the_end_is_none(self, tmp_path):
        made = make_store(tmp_path, MESSAGES[:3])
        for number in (1, 3):
            (tmp_path / "commitlog" / f"{number * FILE_SIZE:020d}").write_bytes(bytes(FILE_SIZE))
        log = open_log(tmp_path)
        assert log.damage(log.end_offset()) == []
        assert log.end_offset() == made.end_offset


def test_pieces_are_cut_at_file_boundaries_and_leave_gaps_out(tmp_path):
    made = make_store(tmp_path, MESSAGES)
    log = open_log(tmp_path)
    assert log.pieces(100, 2 * FILE_SIZE + 7) == [
        (100, FILE_SIZE),
        (FILE_SIZE, 2 * FILE_SIZE),
        (2 * FILE_SIZE, 2 * FILE_SIZE + 7),
    ]
    made.log_files[1].unlink()
    log.refresh()
    assert log.pieces(100, 2 * FILE_SIZE + 7) == [(100, FILE_SIZE), (2 * FILE_SIZE, 2 * FILE_SIZE + 7)]


@pytest.mark.usefixtures("road")
def test_a_scan_may_end_between_two_records(tmp_path):
    """A record belongs to a stretch if it begins in it."""
    made = make_store(tmp_path, MESSAGES[:6])
    log = open_log(tmp_path)
    for end in range(made.offsets[2] + 1, made.offsets[3] + 1):
        assert [stored.physical_offset for stored in log.messages(0, end)] == made.offsets[:3]

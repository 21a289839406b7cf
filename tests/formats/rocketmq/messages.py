"""Messages for the tests of this folder: the worked example, and strategies."""

from hypothesis import strategies as st

from whence.formats.rocketmq.host import Host
from whence.formats.rocketmq.message import Message
from whence.formats.rocketmq.new_message import new_message

# The record of the format description (11.4), written from RocketMQ's definition, not by our encoder.
EXAMPLE = bytes.fromhex(
    "00000083 daa320a7 3610a686 00000001 00000000"
    "0000000000000005 0000000000000400 00000000"
    "0000018bcfe56800 c0a8000a0000cfda"
    "0000018bcfe5687b 0a00000700002a9f"
    "00000000 0000000000000000"
    "00000005 68656c6c6f"
    "09 546f70696354657374"
    "001a 4b455953014f72646572494431383802 544147530154616741 02"
)

i4 = st.integers(-(2**31), 2**31 - 1)
i8 = st.integers(-(2**63), 2**63 - 1)
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=8)
values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x02"), min_size=1, max_size=20)
properties = st.dictionaries(st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY"]) | names, values, max_size=6)
hosts = st.builds(Host, st.ip_addresses().map(str), st.integers(0, 65535))
topics = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.text("abcXYZ-_%|09", max_size=255)


def messages() -> st.SearchStrategy[Message]:
    """Any message that can be stored, of both versions."""
    return st.builds(
        new_message,
        topics,
        st.binary(max_size=50),
        properties=properties | st.binary(max_size=60),
        queue=i4,
        queue_offset=i8,
        physical_offset=i8,
        flag=i4,
        sys_flag=i4,
        born_timestamp_ms=i8,
        born_host=hosts,
        store_timestamp_ms=i8,
        store_host=hosts,
        reconsume_times=i4,
        prepared_transaction_offset=i8,
    )

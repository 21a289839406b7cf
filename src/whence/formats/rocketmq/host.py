"""A host as records and message ids keep it: address bytes, then the port.

    IPv4    4 bytes address, i4 port        8 bytes
    IPv6   16 bytes address, i4 port       20 bytes                          big-endian

Nothing in the bytes tells the two apart: sysFlag does in a record, the length does in an id.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from whence.errors import CorruptError, UsageError
from whence.formats.buffers import pack

IPV4_SIZE = 8
IPV6_SIZE = 20

_PORT = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Host:
    """An address and a port. The address is text in its usual short form: ``10.0.0.7``, ``2001:db8::1``."""

    address: str
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


def parse_host(text: str) -> Host:
    """The host that :class:`Host` shows as this text."""
    address, _, port = text.rpartition(":")
    address = address.removeprefix("[").removesuffix("]")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise UsageError(f"{text!r} is not an address and a port, as 127.0.0.1:10911 is")
    encode_address(address)
    return Host(address, int(port))


def decode_host(data: bytes) -> Host:
    """The host in 8 or 20 bytes. A port is not checked: in a damaged record it can be any i4."""
    if len(data) not in (IPV4_SIZE, IPV6_SIZE):
        raise CorruptError(f"a host has {IPV4_SIZE} or {IPV6_SIZE} bytes, not {len(data)}")
    return Host(decode_address(data[: -_PORT.size]), *_PORT.unpack(data[-_PORT.size :]))


def encode_host(host: Host) -> bytes:
    """8 bytes for an IPv4 address, 20 for an IPv6 address."""
    return encode_address(host.address) + pack(_PORT, host.port)


def decode_address(data: bytes) -> str:
    """The text of an address of 4 or 16 bytes."""
    if len(data) == 4:
        return ".".join(map(str, data))
    from ipaddress import IPv6Address  # few stores hold one, and the import takes milliseconds

    try:
        return IPv6Address(data).compressed
    except ValueError as error:
        raise CorruptError(f"an address has 4 or 16 bytes, not {len(data)}") from error


def encode_address(address: str) -> bytes:
    """4 bytes of an IPv4 address, 16 of an IPv6 address."""
    from ipaddress import ip_address

    try:
        return ip_address(address).packed
    except ValueError as error:
        raise UsageError(f"{address!r} is not an IP address") from error

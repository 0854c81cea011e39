"""What an ELF file asks of the system that it is loaded on."""

from __future__ import annotations

import dataclasses
import struct

_SHT_DYNAMIC, _SHT_GNU_VERNEED = 6, 0x6FFFFFFE
_DT_NEEDED = 1
_MACHINES = {62: "x86_64", 183: "aarch64"}


class NotElf(ValueError):
    """Not a little-endian ELF file of 64 bits, of a machine that has no name here, or without sections."""


@dataclasses.dataclass(frozen=True)
class Needs:
    """Attributes:
    machine: as platform.machine() has it.
    libraries: by what the loader is to look for.
    versions: of their symbols: names such as GLIBC_2.34.
    """

    machine: str
    libraries: frozenset[str]
    versions: frozenset[str]


@dataclasses.dataclass(frozen=True)
class _Section:
    kind: int
    data: bytes
    link: int
    count: int


def read(file: bytes) -> Needs:
    if file[:6] != b"\x7fELF\x02\x01" or len(file) < 64:
        raise NotElf
    machine = _MACHINES.get(struct.unpack_from("<H", file, 18)[0])
    if machine is None:
        raise NotElf
    (at,) = struct.unpack_from("<Q", file, 40)
    size, count = struct.unpack_from("<2H", file, 58)
    if count == 0:  # it does not say here what it needs
        raise NotElf
    sections = [_section(file, at + size * i) for i in range(count)]
    libraries: set[str] = set()
    versions: set[str] = set()
    for each in sections:
        names = sections[each.link].data if each.link < len(sections) else b""
        if each.kind == _SHT_DYNAMIC:
            entries = struct.iter_unpack("<qQ", each.data)
            libraries |= {_text(names, value) for tag, value in entries if tag == _DT_NEEDED}
        elif each.kind == _SHT_GNU_VERNEED:
            versions |= _versions(each, names)
    return Needs(machine, frozenset(libraries), frozenset(versions))


def _section(file: bytes, at: int) -> _Section:
    _, kind, _, _, offset, size, link, count = struct.unpack_from("<2I4Q2I", file, at)
    is_read = kind != 8  # .bss has no bytes
    return _Section(kind, file[offset : offset + size] if is_read else b"", link, count)


def _versions(section: _Section, names: bytes) -> set[str]:
    """Of each library a list, of lists that know where the next one is."""
    found, at = set(), 0
    for _ in range(section.count):
        _, count, _, first, following = struct.unpack_from("<2H3I", section.data, at)
        inner = at + first
        for _ in range(count):
            _, _, _, name, step = struct.unpack_from("<I2H2I", section.data, inner)
            found.add(_text(names, name))
            inner += step
        at += following
    return found


def _text(names: bytes, at: int) -> str:
    return names[at : names.index(b"\0", at)].decode()

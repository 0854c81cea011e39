"""The platform tag of a wheel, told from its binaries: manylinux_2_N is the promise that glibc 2.N is enough (PEP 600).

scikit-build-core tags wheels `linux`, which no index takes. What the binaries were linked against decides what they
need, so that the promise cannot be written down once and for all.
"""

from __future__ import annotations

import base64
import hashlib
import os
import pathlib
import re
import zipfile
from collections.abc import Iterable

import elf

# glibc's own. Whatever else a binary asks for is not promised by a version of glibc.
_OF_GLIBC = re.compile(r"(ld-linux-[a-z0-9-]+|lib(c|m|dl|pthread|rt))\.so\.\d+")


def tag_of(binaries: Iterable[bytes]) -> str | None:
    """None: they need what manylinux does not promise."""
    machines, newest = set(), (2, 17)
    for each in binaries:
        try:
            needs = elf.read(each)
        except elf.NotElf:  # of a machine that manylinux has no name for, or stripped of what it needs
            return None
        machines.add(needs.machine)
        if not all(_OF_GLIBC.fullmatch(library) for library in needs.libraries):
            return None
        for version in needs.versions:
            numbers = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", version)
            if numbers is not None:
                newest = max(newest, (int(numbers[1]), int(numbers[2])))
            elif version == "GLIBC_ABI_DT_RELR":
                newest = max(newest, (2, 36))
            else:
                return None
    if len(machines) != 1:
        return None
    return f"manylinux_{newest[0]}_{newest[1]}_{machines.pop()}"


def rename(wheel: pathlib.Path) -> pathlib.Path:
    """The same wheel with the tag of its binaries, which takes its place; itself where they have none."""
    start, _, platform = wheel.stem.rpartition("-")
    with zipfile.ZipFile(wheel) as packed:
        held = [each for each in packed.infolist() if not each.is_dir()]
        binaries = [data for data in map(packed.read, held) if data[:4] == b"\x7fELF"]
        tag = tag_of(binaries) if binaries else None
        if tag is None or not platform.startswith("linux_"):
            return wheel
        renamed, part = wheel.with_name(f"{start}-{tag}.whl"), wheel.with_suffix(".part")
        changed: dict[str, bytes] = {}
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as anew:
            for each in sorted(held, key=lambda one: one.filename.endswith(".dist-info/RECORD")):
                data = packed.read(each)
                if each.filename.endswith(".dist-info/WHEEL"):
                    data = changed[each.filename] = data.replace(f"-{platform}".encode(), f"-{tag}".encode())
                elif each.filename.endswith(".dist-info/RECORD"):
                    data = _record(data.decode(), changed).encode()
                anew.writestr(each, data)
    os.replace(part, renamed)
    if renamed != wheel:
        wheel.unlink()
    return renamed


def _record(lines: str, changed: dict[str, bytes]) -> str:
    """RECORD with the sums of files that changed."""
    found = []
    for line in lines.splitlines():
        name = line.split(",", 1)[0]
        if name in changed:
            data = changed[name]
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            line = f"{name},sha256={digest},{len(data)}"
        found.append(line + "\n")
    return "".join(found)

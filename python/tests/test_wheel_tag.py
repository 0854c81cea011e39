"""What a wheel says of the systems that it runs on is read from its binaries."""

import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from attune._library import library

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "backend"))
import elf
import manylinux

LIBRARY = pathlib.Path(library()._name).resolve()


def test_the_newest_symbol_decides():
    objdump = shutil.which("objdump")
    if objdump is None:
        pytest.skip("there is no objdump to hold it against")
    said = subprocess.run([objdump, "-T", LIBRARY], capture_output=True, text=True, check=True).stdout
    newest = max(int(minor) for minor in re.findall(r"\(GLIBC_2\.(\d+)", said))
    assert manylinux.tag_of([LIBRARY.read_bytes()]) == f"manylinux_2_{newest}_{elf.read(LIBRARY.read_bytes()).machine}"


def test_what_is_not_glibcs_is_no_promise():
    of_numpy = pathlib.Path(np.__file__).parent
    binaries = [each for each in of_numpy.glob("*core/*.so") if b"libstdc++.so.6\0" in each.read_bytes()]
    if not binaries:
        pytest.skip("this NumPy needs no libstdc++")
    assert manylinux.tag_of([LIBRARY.read_bytes(), binaries[0].read_bytes()]) is None


def test_a_wheel_of_no_binary_of_ours_stays_as_it_is(tmp_path):
    wheel = tmp_path / "x-1-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("x.py", "")
    assert manylinux.rename(wheel) == wheel and wheel.exists()


def test_other_files_are_refused():
    with pytest.raises(elf.NotElf):
        elf.read(b"#!/bin/sh\n" * 100)

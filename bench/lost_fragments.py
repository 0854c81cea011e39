#!/usr/bin/env python3
"""Whether ptxas gave away registers that a loop still reads: fragments that warps load once before a loop, as left
operands of its products, and something in the loop overwrites. ptxas 13.0 does so in one of our kernels, without a
word, and what is wrong then is a gradient (docs/lab/backward.md).

    attune compile spec.yaml --pass backward --plan "sm90a_ordered backward sm_90a q64 k64 s2 both qreg" -o code.cubin
    python3 bench/lost_fragments.py code.cubin

Needs cuobjdump of the CUDA toolkit, and no GPU. Exits with 1 where there are any.
"""

import argparse
import re
import subprocess
import sys

INSTRUCTION = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\d+ +)?(.*?) *;")
BRANCH = re.compile(r"BRA(?:\.\S+)? (?:!?U?P\d+, )?(0x[0-9a-f]+)")
PRODUCT = re.compile(r"HGMMA\.64x(\d+)x\S* R(\d+), R(\d+), ")
WRITES_NO_REGISTER = ("BAR", "BRA", "FSETP", "HGMMA", "ISETP", "PLOP3", "R2UR", "RED", "REDG", "ST", "STG", "STS",
                      "STSM", "SYNCS", "WARPGROUP", "WARPSYNC")
FRAGMENT = 4  # registers of a left operand


def functions(cubin):
    """name -> its instructions (address, text)."""
    text = subprocess.run(["cuobjdump", "-sass", cubin], capture_output=True, text=True, check=True).stdout
    found, code = {}, []
    for line in text.splitlines():
        if match := re.search(r"Function : (\S+)", line):
            code = found.setdefault(match[1], [])
        elif match := INSTRUCTION.match(line):
            code.append((int(match[1], 16), match[2]))
    return found


def written(text):
    """Registers that an instruction writes, but for accumulators, which no product has on its left."""
    name, _, operands = text.partition(" ")
    match = re.match(r"\s*(?:U?P\d+, )?R(\d+)\b", operands)
    if not match or name.split(".")[0] in WRITES_NO_REGISTER or name.startswith("U"):
        return range(0)
    wide = 4 if ".128" in name or re.match(r"LDSM\S*\.4$", name) else 2 if ".64" in name or "WIDE" in name else 1
    return range(int(match[1]), int(match[1]) + wide)


def lost(code):
    """(address of a loop, registers) of fragments that are loaded before it, read in it and then overwritten."""
    index = {address: i for i, (address, _) in enumerate(code)}
    for end, (address, text) in enumerate(code):
        match = BRANCH.match(text)
        begin = index.get(int(match[1], 16)) if match else None
        if begin is None or begin >= end:
            continue
        loop, origin = code[begin:end + 1], {}
        for _, before in code[:begin]:
            origin |= dict.fromkeys(written(before), before)
        read, overwritten = set(), set()
        for _, inside in loop:
            if product := PRODUCT.match(inside):
                read |= set(range(int(product[3]), int(product[3]) + FRAGMENT)) - overwritten
            overwritten |= set(written(inside))
        registers = sorted(r for r in read & overwritten if origin.get(r, "").startswith("LDSM"))
        if registers:
            yield loop[0][0], registers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cubin", nargs="+")
    is_any = False
    for cubin in parser.parse_args().cubin:
        for name, code in functions(cubin).items():
            for loop, registers in lost(code):
                is_any = True
                print(f"{cubin}: {name}: the loop at {loop:#x} overwrites " + " ".join(f"R{r}" for r in registers))
    return 1 if is_any else 0


if __name__ == "__main__":
    sys.exit(main())

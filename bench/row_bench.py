"""What benches have in common that make a table of Attune's rows: options, and what is opened before the first one."""

import argparse
import os
import sys

import attune_c
import side_by_side

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SPACER_CYCLES = 1_000_000  # FlashInfer's Python may take longer than the usual spacer


def parser(doc):
    """`doc`: of the program."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--library", help="libattune.so; default: the newest below build/")
    made.add_argument("--cache", default="", help="Attune's cache file; default: none, the cost model's plans")
    made.add_argument("--only", action="append", metavar="TEXT", help="rows whose key contains this; repeatable")
    made.add_argument("--list", action="store_true", help="the keys of the rows, and stop")
    made.add_argument("--out", default="/dev/stdout", help="where the table goes")
    return made


def chosen(problems, options):
    """Those that --only leaves. --list prints them and ends the program."""
    found = [p for p in problems if not options.only or any(text in p.key for text in options.only)]
    if options.list:
        print("\n".join(problem.key for problem in found))
        sys.exit()
    return found


def opened(options, seconds_a_problem, torch):
    """(runtime, flush, generator of numbers), and how side_by_side times."""
    side_by_side.SECONDS_A_PROBLEM = seconds_a_problem
    side_by_side.SPACER_CYCLES = SPACER_CYCLES
    torch.zeros(1, device="cuda")  # makes the primary context that Attune will share
    runtime = attune_c.Library(options.library or attune_c.find_library(ROOT)).runtime("cuda:0", options.cache)
    flush = torch.empty(side_by_side.FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    return runtime, flush, torch.Generator(device="cuda").manual_seed(int.from_bytes(os.urandom(4), "little"))

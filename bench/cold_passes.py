#!/usr/bin/env python3
"""How long a first use takes where nothing is cached: of the forward pass alone, and of both passes, whose code the
runtime builds on two threads (docs/runtime.md). Each time is of a process of its own.

    python3 bench/cold_passes.py --out cold.md
    python3 bench/cold_passes.py --only causal --rounds 3

From the call that asks for the forward kernel until the last kernel asked for can be launched; the spec is parsed and
the device open before. Needs libattune.so and what it compiles with; no PyTorch.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import attune_c  # noqa: E402
import page  # noqa: E402
import problems  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SHAPE = attune_c.Shape(2, 16, 16, 4096, 4096)
SPECS = (("full", 128), ("causal", 128), ("document_causal", 128), ("softcap", 128), ("causal", 64))  # and head dims
PASSES = {"forward": attune_c.PASS_FORWARD, "backward": attune_c.PASS_BACKWARD}
WAYS = {"alone": ["forward"], "both": ["forward", "backward"]}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="libattune.so; default: the newest below build/")
    parser.add_argument("--device", default="cuda:0", help="or cpu; default: %(default)s")
    parser.add_argument("--only", action="append", metavar="TEXT", help="specs whose name contains this; repeatable")
    parser.add_argument("--rounds", type=int, default=5, help="a process for each spec and way; default: %(default)s")
    parser.add_argument("--out", default="/dev/stdout", help="where the table goes")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def spec_name(spec):
    return f"{spec[0]}, d {spec[1]}"


def spec_yaml(spec, way):
    """That of the library with another head dim and these passes."""
    name, head_dim = spec
    text = page.read(os.path.join(ROOT, "specs", f"{name}.yaml")).replace("head_dim: 128", f"head_dim: {head_dim}")
    return f"{text}passes: [{', '.join(WAYS[way])}]\n"


def cold_use(library, device, spec, way):
    """Of this process, which has compiled nothing: seconds until each pass' kernel was there, and by whom and where."""
    with tempfile.TemporaryDirectory(prefix="attune-bench-") as folder:
        runtime = attune_c.Library(library).runtime(device, os.path.join(folder, "attune.db"))
        parsed, seconds = runtime.spec_from_yaml(spec_yaml(spec, way)), []
        began = time.perf_counter()
        for of_pass in WAYS[way]:
            runtime.kernel_of(parsed, SHAPE, PASSES[of_pass])
            seconds.append(time.perf_counter() - began)
        status = runtime.status()
    return {"seconds": seconds, "compiles": status["counters"]["compiles"],
            "where": f"{status['device']['identity']}, {status['compiler'].get('identity')}"}


def in_new_process(library, device, spec, way):
    """cold_use() there. A cache of the system's would not be cold."""
    given = json.dumps([library, device, spec, way])
    environment = {name: value for name, value in os.environ.items() if name != "ATTUNE_SYSTEM_CACHE"}
    done = subprocess.run([sys.executable, os.path.abspath(__file__), "--child", given], capture_output=True, text=True,
                          env=environment)
    if done.returncode != 0:
        sys.exit(f"cold_passes: {spec_name(spec)}, {way}: {done.stderr.strip()}")
    found = json.loads(done.stdout)
    if found["compiles"] < len(WAYS[way]):
        sys.exit(f"cold_passes: {spec_name(spec)}, {way}: not cold, {found['compiles']} compiled")
    return found


def measured(library, device, specs, rounds):
    """(spec, way) -> what each process found. Ways take turns, so that a busy host is so to both."""
    found = {(spec, way): [] for spec in specs for way in WAYS}
    for index in range(rounds):
        for (spec, way), each in found.items():
            each.append(in_new_process(library, device, spec, way))
            shown = " ".join(f"{seconds:.3f}" for seconds in each[-1]["seconds"])
            print(f"{index + 1}/{rounds} {spec_name(spec)}, {way}: {shown}", file=sys.stderr, flush=True)
    return found


def table_row(spec, found):
    alone, both = ([each["seconds"][-1] for each in found[spec, way]] for way in WAYS)
    first = [each["seconds"][0] for each in found[spec, "both"]]
    cells = [spec_name(spec)]
    for seconds in (alone, both, first):
        cells += [f"{min(seconds):.3f}", f"{problems.median(seconds):.3f}"]
    ratios = (min(both) / min(alone), problems.median(both) / problems.median(alone))
    return cells + [f"{ratio:.2f}" for ratio in ratios]


def main():
    options = parse_arguments()
    if options.child:
        print(json.dumps(cold_use(*json.loads(options.child))))
        return
    library = options.library or attune_c.find_library(ROOT)
    if library is None:
        sys.exit("cold_passes: no libattune.so below build/: run `make build`, or name one with --library")
    specs = [spec for spec in SPECS if not options.only or any(text in spec_name(spec) for text in options.only)]
    found = measured(os.path.abspath(library), options.device, specs, options.rounds)
    where = found[specs[0], "alone"][0]["where"] + f", {len(os.sched_getaffinity(0))} cores"
    header = ["spec", "forward s, least", "median", "both passes s, least", "median", "of both, forward's s, least",
              "median", "both / forward, least", "median"]
    page.write_table(options.out, ROOT, None, "bench/cold_passes.py", header,
                     [table_row(spec, found) for spec in specs], where)


if __name__ == "__main__":
    main()

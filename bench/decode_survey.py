#!/usr/bin/env python3
"""One new token of each sequence off the beaten road: Attune's untuned first guess beside the time of the cache's bytes, on
problems drawn from a seed, and on those that targets were set for. A cold L2, interleaved rounds; two heads of every
result are compared with fp64 before anything is timed.

    python3 bench/decode_survey.py --asked                       # the table of targets
    python3 bench/decode_survey.py --seed 1 --count 100          # the furthest from the bytes' time
    python3 bench/decode_survey.py --seed 1 --numbers 17,58 --beside before/libattune.so
    python3 bench/decode_survey.py --seed 1 --count 100 --list   # the problems; needs no GPU

The bytes' time is that of K and V where a mask leaves them, at nine tenths of the datasheet's rate, and of a launch that
reads nothing (5 us). FlashAttention-3 takes part with --peers where it can compute a problem, with the splits that it
chooses and with none.

Needs a CUDA GPU, PyTorch 2.6 or newer, and libattune.so.
"""

import argparse
import concurrent.futures
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import attune_c  # noqa: E402
import decode_survey_problems as survey  # noqa: E402
import page  # noqa: E402
import side_by_side  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ALLOWED = 0.02  # of a result's error in norm
GB_PER_S = {"H200": 4800, "H100": 3350}  # of datasheets
REACHED = 0.9


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--asked", action="store_true", help="the problems that targets were set for")
    parser.add_argument("--seed", type=int, default=1, help="of the problems and their numbers")
    parser.add_argument("--count", type=int, default=100, help="of problems")
    parser.add_argument("--numbers", type=lambda text: [int(n) for n in text.split(",")], help="these problems alone")
    parser.add_argument("--only", action="append", metavar="TEXT", help="problems whose key contains this; repeatable")
    parser.add_argument("--budget", type=float, default=500, metavar="S", help="start no problem after so many seconds")
    parser.add_argument("--seconds", type=float, default=0.15, help="to time a problem for")
    parser.add_argument("--library", help="libattune.so; default: the newest below build/")
    parser.add_argument("--beside", metavar="LIBRARY", help="another build's libattune.so takes part, too")
    parser.add_argument("--peers", action="store_true", help="FlashAttention-3 takes part, too")
    parser.add_argument("--list", action="store_true", help="the problems, and stop")
    parser.add_argument("--worst", type=int, default=20, help="rows of the table of those drawn")
    parser.add_argument("--jsonl", help="also write what was measured here, problem by problem")
    parser.add_argument("--out", default="/dev/stdout", help="where the table goes")
    return parser.parse_args()


def chosen(options):
    numbers = options.numbers or range(options.count)
    found = list(survey.asked()) if options.asked else [survey.drawn(options.seed, n) for n in numbers]
    return [p for p in found if not options.only or any(text in p.key or text in p.name for text in options.only)]


def exact(problem, inputs, index, head, torch):
    """One row in fp64."""
    first = sum(problem.keys[:index])
    rows = slice(first, first + problem.keys[index])
    kv_head = head // (problem.heads // problem.kv_heads)
    k, v = (t[rows, kv_head].double() for t in (inputs.k, inputs.v))
    scores = inputs.q[index, head].double() @ k.T * problem.dim**-0.5
    if problem.softcap:
        scores = problem.softcap * (scores / problem.softcap).tanh()
    if problem.window:
        keys = torch.arange(len(k), device="cuda")
        scores = scores.masked_fill((keys < len(k) - problem.window) & (keys >= problem.always), float("-inf"))
    sink = [inputs.sinks[head].double().view(1)] if problem.sinks else []
    return torch.softmax(torch.cat([scores, *sink]), 0)[:len(k)] @ v


def check(problem, inputs, entry, torch):
    if not entry.alike:
        return
    o = entry.results()[0]
    longest = max(range(problem.batch), key=lambda i: problem.keys[i])
    for index, head in ((longest, 0), (problem.batch - 1, problem.heads - 1)):
        wanted = exact(problem, inputs, index, head, torch)
        error = torch.linalg.vector_norm(o[index, head].double() - wanted).item()
        if not error <= ALLOWED * torch.linalg.vector_norm(wanted).item() + 1e-6:
            raise ValueError(f"an error of {error:.1e} beside fp64, sequence {index}, head {head}")


def attune(problem, inputs, kernel, caches, torch):
    from serving_contestants import Entry, stream
    o = torch.full_like(inputs.q, float("nan"))
    space = torch.zeros(max(16, kernel.workspace_bytes), dtype=torch.uint8, device="cuda")
    said = {} if problem.dense else {"cu_q": inputs.cu_q.data_ptr()}
    if problem.page:
        said |= {"used_kv": inputs.used.data_ptr(), "page_table": inputs.pages.table.data_ptr(),
                 "pages_per_sequence": inputs.pages.table.shape[1], "page_size": problem.page, "pages": len(caches[0])}
    elif not problem.dense:
        said["cu_kv"] = inputs.cu_kv.data_ptr()
    named = {"sinks": inputs.sinks.data_ptr()} if problem.sinks else {}
    run = kernel.bind(inputs.q.data_ptr(), *(t.data_ptr() for t in caches), o.data_ptr(), None, space.data_ptr(), named, **said)
    keep = (o, space, inputs, caches)
    return Entry(lambda keep=keep: run(stream()), lambda: [o], kernel.plan)


def make_inputs(problem, seed, torch):
    """And K and V as Attune reads them."""
    import serving_contestants
    inputs = serving_contestants.make_inputs(problem, seed)
    caches = inputs.pages.caches if problem.page else [inputs.k, inputs.v]
    if problem.cache:
        for t in (inputs.k, inputs.v):
            t.copy_(t.to(torch.float8_e4m3fn))
        caches = [t.to(torch.float8_e4m3fn) for t in caches]
    return inputs, caches


def peers_of(problem, inputs):
    import serving_contestants
    if problem.cache or problem.always or problem.dtype != "bf16":
        return {}
    plain = "" if problem.is_plain else ", plain"
    return {f"FA3{', split' if splits == 0 else ''}{plain}":
            lambda splits=splits: serving_contestants.flash_attention_3(problem, inputs, splits, bool(problem.page))
            for splits in (0, 1)}


def measured(problem, index, built, flush, options, torch):
    inputs, caches = make_inputs(problem, options.seed + index, torch)
    makers = {name: lambda kernel=of_all[index]: attune(problem, inputs, kernel, caches, torch)
              for name, of_all in built.items()}
    makers |= peers_of(problem, inputs) if options.peers else {}
    entries, row = {}, {"key": problem.key, "name": problem.name, "number": problem.number, "bytes": problem.bytes, "unable": {}}
    for name, make in makers.items():
        try:
            entry = make()
            entry.launch()
            torch.cuda.synchronize()
            check(problem, inputs, entry, torch)
            entries[name] = entry
        except Exception as error:  # a peer may lack a kernel for the problem
            row["unable"][name] = str(error)[:200]
            if name in built:
                print(f"{problem.key}: {name}: {str(error)[:200]}", file=sys.stderr)
    row["plans"] = {name: entries[name].plan for name in built if name in entries}
    times, _ = side_by_side.time_entries(entries, flush, torch) if entries else ({}, 0)
    row["us"] = {name: round(us, 1) for name, us in times.items()}
    return row


def build(found, runtimes):
    """name -> each problem's kernel."""
    def one(runtime, problem):
        shape = attune_c.Shape(problem.batch, problem.heads, problem.kv_heads, *problem.total)
        return runtime.kernel_from_yaml(problem.yaml, shape)

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        return {name: list(pool.map(lambda p, runtime=runtime: one(runtime, p), found)) for name, runtime in runtimes.items()}


def told(rows, found, options, bytes_per_us):
    """The rows' table: targets as they stand, else the furthest from the bytes' time."""
    of_name = {row["name"]: row["us"]["Attune"] for row in rows if "Attune" in row["us"]}
    lines = []
    for row, problem in zip(rows, found):
        if "Attune" not in row["us"]:
            continue
        us, bytes_us = row["us"]["Attune"], problem.bytes_us(bytes_per_us)
        over = bytes_us if problem.over == "bytes" else of_name.get(problem.over)  # a row that may not have run
        others = {name: t for name, t in row["us"].items() if name.startswith("FA3")}
        best = min(others, key=others.get) if others else ""
        before = row["us"].get("beside")
        lines.append((us / bytes_us, [
            *([problem.name] if options.asked else [str(problem.number)]), problem.key, f"{us:.1f}", f"{bytes_us:.1f}",
            f"{us / bytes_us:.2f}", *([f"{over / us:.3f}" if over else "",
                                       f"{problem.asked} of {problem.over}" if problem.over else ""]
                                      if options.asked else []),
            *([f"{before:.1f}" if before else ""] if options.beside else []),
            *([f"{others[best]:.1f} {best}" if best else ""] if options.peers else []), row["plans"]["Attune"]]))
    if not options.asked:
        lines = sorted(lines, key=lambda line: -line[0])[:options.worst]
    header = ["row" if options.asked else "number", "problem", "Attune us", "bytes' us", "over it",
              *(["speed", "asked"] if options.asked else []), *(["before"] if options.beside else []),
              *(["FA3"] if options.peers else []), "plan"]
    return page.table(header, [line for _, line in lines])


def main():
    options = parse_arguments()
    found = chosen(options)
    if options.list:
        print("\n".join(f"{p.name or p.number}: {p.key}" for p in found))
        return
    import torch
    side_by_side.SECONDS_A_PROBLEM, side_by_side.MIN_ROUNDS = options.seconds, 8
    torch.zeros(1, device="cuda")  # makes the primary context that Attune will share
    device = torch.cuda.get_device_name()
    rates = [rate for name, rate in GB_PER_S.items() if name in device]
    if not rates:
        raise SystemExit(f"the memory's rate is known of {' and '.join(GB_PER_S)}, not of {device}")
    bytes_per_us = REACHED * rates[0] * 1e3
    libraries = {"Attune": options.library or attune_c.find_library(ROOT)}
    libraries |= {"beside": options.beside} if options.beside else {}
    runtimes = {name: attune_c.Library(path).runtime("cuda:0", "") for name, path in libraries.items()}
    flush = torch.empty(side_by_side.FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    started = time.monotonic()
    built = build(found, runtimes)
    print(f"{len(found)} problems on {device}, compiled in {time.monotonic() - started:.0f} s", file=sys.stderr)
    rows = side_by_side.rows_within(
        options.budget, started, found,
        lambda index, problem: measured(problem, index, built, flush, options, torch), options.jsonl, torch)
    page.write(options.out, told(rows, found, options, bytes_per_us) + "\n")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Attune beside its peers on numbers that are not normal: shifted scores, hot keys and rows, large and drifting ones.
Time and error of each contestant on the same data, in interleaved rounds with a cold L2.

    python3 bench/distributions.py --out distributions.md
    python3 bench/distributions.py --only hot --only "bf16 d128"
    python3 bench/distributions.py --family sm80 --worst       # Ampere's kernels, on the GPU that is there
    python3 bench/distributions.py --custom --worst --without FLASH     # masks, scores and dropout
    python3 bench/distributions.py --append data.jsonl --budget 500     # again, until all rows stand there
    python3 bench/distributions.py --render data.jsonl --render more.jsonl --out distributions.md     # needs no GPU

Dense rows stand beside FlashAttention-3 and 4 and cuDNN; the sm80 family's beside FlashAttention-2, which is
scaled_dot_product_attention's; custom ones beside FlexAttention on Triton and on FlashAttention-4 (FLASH), and beside
whoever else can say them. The packages of FlashAttention-3 and 4 (`flash_attn_interface`, `flash_attn.cute`) are looked
for. A peer that cannot do a configuration is asked once, and the table says so.

Needs a CUDA GPU, PyTorch 2.6 or newer, and libattune.so. Attune runs the cost model's plans: of the sm80 family on
Hopper the first guess of those that need no tensor unit.
"""

import argparse
import concurrent.futures
import importlib.metadata
import os
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import attune_c  # noqa: E402
import hostile_data  # noqa: E402
import hostile_rows  # noqa: E402
import hostile_table  # noqa: E402
import page  # noqa: E402
import side_by_side  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEAD = 3  # whose errors are looked at, of the first of the batch
ALLOWED = 0.03  # of an error in norm; bf16's roundings of P and O make less than 0.005
COMPILERS = 8  # threads that build Attune's kernels beforehand


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="libattune.so; default: the newest below build/")
    parser.add_argument("--beside", metavar="LIB", help="another build of it takes part too")
    parser.add_argument("--family", choices=("sm80",), help="of its kernels instead of the GPU's best")
    parser.add_argument("--custom", action="store_true", help="masks, scores and dropout instead of dense rows")
    parser.add_argument("--worst", action="store_true", help="seven distributions instead of thirteen")
    parser.add_argument("--only", action="append", metavar="TEXT", help="rows whose key contains this; repeatable")
    parser.add_argument("--peer", action="append", metavar="NAME", help="no peers but this; repeatable")
    parser.add_argument("--without", action="append", metavar="NAME", default=[], help="a peer to leave out; repeatable")
    parser.add_argument("--strict", action="store_true", help="kernels with `accuracy: strict` take part too")
    parser.add_argument("--list", action="store_true", help="the keys of the rows, and stop")
    parser.add_argument("--seconds", type=float, default=0.2, metavar="S", help="of timing for a row")
    parser.add_argument("--budget", type=float, default=float("inf"), metavar="S", help="begin no row after so many seconds")
    parser.add_argument("--append", metavar="JSONL", help="add each row to this file; what stands there is not done again")
    parser.add_argument("--render", metavar="JSONL", action="append", help="write the table of these files; repeatable")
    parser.add_argument("--commit", help="of what is measured, where no repository says it")
    parser.add_argument("--out", default="/dev/stdout", help="where the table goes")
    arguments = parser.parse_args()
    if arguments.family and arguments.custom:
        parser.error("the sm80 family has no custom rows")
    if arguments.commit:
        os.environ["ATTUNE_COMMIT"] = arguments.commit
    return arguments


def chosen_rows(arguments):
    names = hostile_data.WORST if arguments.worst else hostile_data.DISTRIBUTIONS
    kind = "sm80" if arguments.family else "custom" if arguments.custom else "dense"
    make = {"sm80": hostile_rows.sm80_rows, "custom": hostile_rows.custom_rows, "dense": hostile_rows.dense_rows}[kind]
    return hostile_rows.chosen(make(names), arguments.only)


def chosen_peers(arguments):
    import hostile_peers
    unknown = {*(arguments.peer or ()), *arguments.without} - set(hostile_peers.PEERS)
    if unknown:
        sys.exit(f"no peer is called {', '.join(sorted(unknown))}; there are {', '.join(hostile_peers.PEERS)}")
    return [name for name in arguments.peer or hostile_peers.PEERS if name not in arguments.without]


def environment(torch):
    versions = [f"PyTorch {torch.__version__}"]
    for name in ("flash-attn-4", "nvidia-cutlass-dsl"):
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"date": page.now(), "gpu": torch.cuda.get_device_name(), "versions": ", ".join(versions),
            "commit": page.commit(ROOT), "command": page.command("bench/distributions.py", sys.argv[1:])}


def compile_ahead(rows, runtimes):
    """All of Attune's kernels, several at a time; what fails here fails again in its row, which says so."""

    def build(row, runtime):
        p = row.problem
        try:
            runtime.kernel_from_yaml(row.yaml, attune_c.Shape(p.batch, p.heads, p.heads, p.seq, p.seq))
        except attune_c.AttuneError:
            pass

    by_config = {row.config: row for row in rows}
    with concurrent.futures.ThreadPoolExecutor(COMPILERS) as pool:
        for row in by_config.values():
            for runtime in runtimes.values():
                pool.submit(build, row, runtime)


def exact(row, inputs, entry, torch):
    """O of the head as float64 has it; with dropout, of what this contestant drew."""
    import backward_side_by_side as backward
    import checks
    weights = None
    if row.problem.dropout:
        kept = backward.kept_elements(entry, inputs.v, 0, HEAD, torch)
        weights = kept.double() / entry.kept_share
    return checks.exact_in_chunks(row.problem, inputs, 0, HEAD, weights)


def measured(row, contestants, flush, generator, torch):
    """The row as hostile_table knows it."""
    contestants.enter(row, generator)
    inputs = hostile_data.make_inputs(row.dtype, row.problem, generator, contestants.tensors)
    entries, errors, notes, wanted = {}, {}, {}, None
    for name, make in contestants.makers(row, inputs).items():
        try:
            entry = make()
            entry.launch()
            torch.cuda.synchronize()
            if wanted is None or row.problem.dropout:
                wanted = exact(row, inputs, entry, torch)
            off = (entry.output()[0, HEAD].double() - wanted).abs()
            in_norm = (off.norm() / wanted.norm()).item()
            if not in_norm < ALLOWED:
                raise RuntimeError(f"an error of {in_norm:.1e} in norm on `{row.problem.name}`")
        except Exception as error:  # who cannot do it takes no part
            notes[name] = (str(error).splitlines() or [type(error).__name__])[0][:120]
            if row.is_normal:
                contestants.unable.add((row.config, name))
            continue
        entries[name], errors[name] = entry, [off.mean().item(), off.max().item()]
    median = side_by_side.time_entries(entries, flush, torch)[0] if entries else {}
    return {"key": row.key, "group": row.group, "config": row.config, "is_normal": row.is_normal, "us": median,
            "errors": errors, "notes": notes}


def measure(arguments, save):
    import hostile_peers
    import torch
    side_by_side.SECONDS_A_PROBLEM = arguments.seconds
    torch.zeros(1, device="cuda")  # makes the primary context that Attune will share
    libraries = {"Attune": arguments.library or attune_c.find_library(ROOT)}
    if arguments.beside:
        libraries["the other"] = arguments.beside
    runtimes = {label: attune_c.Library(path).runtime("cuda:0", "") for label, path in libraries.items()}
    flush = torch.empty(side_by_side.FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    generator = torch.Generator(device="cuda").manual_seed(int.from_bytes(os.urandom(4), "little"))
    contestants = hostile_peers.Contestants(runtimes, chosen_peers(arguments), arguments.strict)
    done = save.rows
    rows = [row for row in chosen_rows(arguments) if row.key not in done]
    save.begin(environment(torch))
    started = time.monotonic()
    compile_ahead(rows, runtimes)
    for index, row in enumerate(rows):
        if time.monotonic() - started > arguments.budget:
            print(f"out of time: left {len(rows) - index} rows out, from {row.key} on", file=sys.stderr)
            break
        save.add(measured(row, contestants, flush, generator, torch))


class Results:
    """Rows as they come, in memory and in the file of --append."""

    def __init__(self, path):
        self.path = path
        self.environments, self.rows = hostile_table.read([path] if path and os.path.isfile(path) else [])

    def begin(self, environment):
        self.environments.append(environment)
        if self.path:
            hostile_table.append(self.path, {"environment": environment})

    def add(self, row):
        self.rows[row["key"]] = row
        if self.path:
            hostile_table.append(self.path, row)
        shown = hostile_table.cells(row, hostile_table.on_normal(self.rows).get(row["config"]))
        absent = [f"{name}: {why}" for name, why in row["notes"].items()]
        print("  ".join(shown + absent), file=sys.stderr, flush=True)


def main():
    arguments = parse_arguments()
    if arguments.list:
        print("\n".join(row.key for row in chosen_rows(arguments)))
        return
    if arguments.render:
        hostile_table.write(arguments.out, *hostile_table.read(arguments.render))
        return
    results = Results(arguments.append)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        measure(arguments, results)
    finally:  # a run that is stopped keeps what it has
        hostile_table.write(arguments.out, results.environments, results.rows)
        print("\n".join(hostile_table.summary(results.rows)), file=sys.stderr)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The cpu family beside PyTorch on the same cores: scaled_dot_product_attention in fp32, and FlexAttention's CPU path on
custom masks and scores. Checks every contestant against fp64, times them in interleaved rounds with the same number
of threads, and writes their section of docs/performance.md.

    python3 bench/cpu_side_by_side.py
    python3 bench/cpu_side_by_side.py --tune --threads 16 --json cpu.json
    python3 bench/cpu_side_by_side.py --render cpu.json     # the section again, from saved results

Needs PyTorch 2.6 or newer, and libattune.so with its LLVM module (`make build`). `--tune` runs `attune tune` for each
problem first; without it Attune runs the cost model's plans, and the table says so.
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
HEADS = 16
SEQS = (1024, 2048, 4096)
CUSTOM_SEQ, CUSTOM_DIM = 4096, 64
CUSTOM = ("sliding1024", "doc_causal", "sink4_window1024", "dilated8", "softcap_full", "softcap_causal", "alibi_causal")
QUICK_CUSTOM = ("sliding1024", "doc_causal", "softcap_full")
MIN_ROUNDS, MAX_ROUNDS, SECONDS_A_PROBLEM = 5, 40, 1.5


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, help="of every contestant; default: the cores this process may use")
    parser.add_argument("--prepare", action="store_true",
                        help="first compile Flex's code of all problems at once, which inductor keeps on disk")
    parser.add_argument("--compile-only", action="store_true", help="compile Flex's code and stop")
    parser.add_argument("--tune", action="store_true", help="tune each problem first")
    parser.add_argument("--max-candidates", type=int, default=16, help="of each tuning; default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="fewer problems")
    parser.add_argument("--only", action="append", metavar="TEXT", help="problems whose name contains this; repeatable")
    parser.add_argument("--budget", type=float, default=400, metavar="S", help="start no problem after so many seconds")
    parser.add_argument("--library", help="libattune.so; default: the newest below build/")
    parser.add_argument("--command", help="the attune command; default: beside the library's build")
    parser.add_argument("--out", default=os.path.join(ROOT, "docs", "performance.md"), help="the page to rewrite")
    parser.add_argument("--json", help="also write the results here")
    parser.add_argument("--render", metavar="JSON", help="rewrite the page from saved results")
    return parser.parse_args(arguments)


class CpuProblem:
    """One row: a spec of specs/bench in fp32, batch 1."""

    def __init__(self, section, name, spec, head_dim, seq, mask=None, score=None, tensors=()):
        self.section, self.name, self.head_dim, self.seq = section, name, head_dim, seq
        self.mask, self.score, self.tensors = mask, score, tensors
        with open(os.path.join(ROOT, spec), encoding="utf-8") as file:
            self.yaml = as_fp32(file.read(), head_dim)

    @property
    def key(self):
        return f"{self.section}/{self.name}/d{self.head_dim}/s{self.seq}"


def as_fp32(yaml, head_dim):
    """The spec with another dtype and head dim, heads outermost as PyTorch's CPU path likes them."""
    replaced = {"dtype": "fp32", "head_dim": str(head_dim), "layout": "bhsd"}
    lines, keep = [], True
    for line in yaml.splitlines():
        if not line.startswith(" "):
            keep = line.split(":")[0] not in ("tune", "target", "passes", *replaced)
        if keep:
            lines.append(line)
    return "\n".join(lines + [f"{key}: {value}" for key, value in replaced.items()]) + "\n"


def all_problems(arguments):
    found = []
    for head_dim in (64, 128):
        for name, mask in (("full", None), ("causal", problems.causal_mask)):
            for seq in SEQS:
                if not arguments.quick or seq == 2048:
                    found.append(CpuProblem("sdpa", name, f"specs/bench/{name}_d{head_dim}.yaml", head_dim, seq, mask))
    by_name = {problem.name: problem for problem in problems.custom_problems()}
    for name in QUICK_CUSTOM if arguments.quick else CUSTOM:
        source = by_name[name]
        found.append(CpuProblem("flex", name, source.spec, CUSTOM_DIM, CUSTOM_SEQ, source.mask, source.score,
                                source.tensors))
    if arguments.only:
        found = [problem for problem in found if any(part in problem.key for part in arguments.only)]
    return found


def make_inputs(problem, torch):
    inputs = {name: torch.randn(1, HEADS, problem.seq, problem.head_dim) for name in "qkv"}
    inputs["tensors"] = {}
    if "doc" in problem.tensors:
        # Ascending document numbers, on average 512 tokens each.
        starts = torch.rand(1, problem.seq) < 1 / 512
        inputs["tensors"]["doc"] = starts.to(torch.int32).cumsum(1).to(torch.int32).contiguous()
    return inputs


def scores_of(problem, inputs, rows, torch):
    """fp64 scores of head 3 for the queries `rows`, -inf where the mask is dead; and the rows' live keys."""
    head = 3
    q, k = inputs["q"][0, head, rows].double(), inputs["k"][0, head].double()
    scores = q @ k.T / problem.head_dim**0.5
    q_idx, kv_idx = rows[:, None], torch.arange(problem.seq)[None, :]
    zero, h = torch.tensor(0), torch.tensor(head)
    if problem.score:
        scores = problem.score(scores, zero, h, q_idx, kv_idx)
    if problem.mask:
        live = problem.mask(zero, h, q_idx, kv_idx, inputs["tensors"])
        scores = scores.masked_fill(~live, float("-inf"))
    return head, scores


def error_of(problem, inputs, output, torch):
    """The largest error over a sample of rows of one head."""
    rows = torch.randint(0, problem.seq, (64,))
    head, scores = scores_of(problem, inputs, rows, torch)
    exact = scores.softmax(-1) @ inputs["v"][0, head].double()
    return (output[0, head, rows].double() - exact).abs().max().item()


def live_elements(problem, inputs, torch):
    if problem.section == "sdpa":
        return problem.seq**2 / (1 if problem.mask is None else 2)
    if problem.mask is None:
        return problem.seq**2
    q_idx, kv_idx = torch.arange(problem.seq)[:, None], torch.arange(problem.seq)[None, :]
    zero = torch.tensor(0)
    return problem.mask(zero, zero, q_idx, kv_idx, inputs["tensors"]).sum().item()


def attune_entry(problem, inputs, runtime, torch):
    shape = attune_c.Shape(1, HEADS, HEADS, problem.seq, problem.seq)
    kernel = runtime.kernel_from_yaml(problem.yaml, shape)
    output = torch.full_like(inputs["q"], float("nan"))
    workspace = torch.empty(kernel.workspace_bytes + 64, dtype=torch.uint8)
    aligned = (workspace.data_ptr() + 63) // 64 * 64
    tensors = {name: tensor.data_ptr() for name, tensor in inputs["tensors"].items()}
    launch = kernel.bind(inputs["q"].data_ptr(), inputs["k"].data_ptr(), inputs["v"].data_ptr(), output.data_ptr(), None,
                         aligned, tensors)
    launch.keep += (workspace, output, inputs)
    return lambda: launch(None), lambda: output, {"plan": kernel.plan, "source": kernel.source}


def sdpa_entry(problem, inputs, torch):
    state = {}

    def launch():
        state["o"] = torch.nn.functional.scaled_dot_product_attention(inputs["q"], inputs["k"], inputs["v"],
                                                                      is_causal=problem.mask is not None)

    return launch, lambda: state["o"], {}


def flex_entry(problem, inputs, torch):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()
    tensors = inputs["tensors"]
    block_mask = None
    if problem.mask:
        block_mask = create_block_mask(lambda b, h, q, k: problem.mask(b, h, q, k, tensors), None, None, problem.seq,
                                       problem.seq, device="cpu")
    compiled = torch.compile(flex_attention)
    state = {}

    def launch():
        with torch.no_grad():
            state["o"] = compiled(inputs["q"], inputs["k"], inputs["v"], score_mod=problem.score, block_mask=block_mask)

    started = time.monotonic()
    launch()
    return launch, lambda: state["o"], {"flex_compile_s": time.monotonic() - started}


def time_entries(entries):
    """Median microseconds, contestants in turn. OpenMP's threads spin for some 15 ms after their work, which a contestant
    with threads of its own would pay for: each turn waits until they sleep, then wakes its own threads with
    launches that are not timed."""
    times = {name: [] for name in entries}
    started = time.monotonic()
    for index in range(MAX_ROUNDS):
        for name, launch in entries.items():
            time.sleep(0.03)
            for _ in range(2):
                launch()
            for _ in range(2):
                begin = time.perf_counter()
                launch()
                times[name].append((time.perf_counter() - begin) * 1e6)
        if index + 1 >= MIN_ROUNDS and time.monotonic() - started > SECONDS_A_PROBLEM:
            break
    return {name: problems.median(values) for name, values in times.items()}


def prepare(chosen, threads):
    """Flex's compiler takes half a minute a problem, on one core: a process for each problem."""
    begin = time.monotonic()
    compiles = [subprocess.Popen([sys.executable, os.path.abspath(__file__), "--compile-only", "--only", problem.key,
                                  "--threads", str(threads)]) for problem in chosen if problem.section == "flex"]
    for compile_one in compiles:
        compile_one.wait()
    print(f"compiled Flex's code in {time.monotonic() - begin:.1f} s", file=sys.stderr)


def run_problem(problem, runtime, torch):
    inputs = make_inputs(problem, torch)
    peer = ("SDPA", sdpa_entry) if problem.section == "sdpa" else ("Flex", flex_entry)
    makers = {"Attune": lambda: attune_entry(problem, inputs, runtime, torch),
              peer[0]: lambda: peer[1](problem, inputs, torch)}
    entries, notes, failures, errors = {}, {}, {}, {}
    for name, make in makers.items():
        try:
            launch, output, extra = make()
            launch()
            errors[name] = error_of(problem, inputs, output(), torch)
            # fp32 rounding of sums over a few thousand keys; a wrong mask is off by 0.1 and more.
            if not errors[name] < 1e-4:
                raise ValueError(f"error {errors[name]:.2g}")
            entries[name] = launch
            notes.update(extra)
        except Exception as error:  # a peer may lack the case: say so and go on
            failures[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}"
    flops = 4 * HEADS * problem.head_dim * live_elements(problem, inputs, torch)
    return {"section": problem.section, "key": problem.key, "name": problem.name, "head_dim": problem.head_dim,
            "seq": problem.seq, "flops": flops, "us": time_entries(entries), "errors": errors, "failures": failures,
            **notes}


def tune(problem, command, cache, max_candidates):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(problem.yaml)
        file.flush()
        shape = f"batch=1,heads={HEADS},kv_heads={HEADS},q_len={problem.seq},kv_len={problem.seq}"
        subprocess.run([command, "-q", "tune", file.name, "--device", "cpu", "--cache", cache, "--shape", shape,
                        "--max-candidates", str(max_candidates)], check=True, stdout=subprocess.DEVNULL)


def cpu_facts(command):
    listed = json.loads(subprocess.run([command, "devices", "--json"], check=False, capture_output=True).stdout)
    return next(device for device in listed["devices"] if device["name"] == "cpu")


def gflops(row, name):
    time_us = row["us"].get(name)
    return row["flops"] / time_us / 1e3 if time_us else None


def table(results, section, peer):
    peak = results["environment"]["peak_gflops"]
    rows, ratios = [], []
    for row in results["rows"]:
        if row["section"] != section:
            continue
        ours, theirs = gflops(row, "Attune"), gflops(row, peer)
        ratio = ours / theirs if ours and theirs else None
        ratios.append(ratio)
        untuned = " (untuned)" if row.get("source") == "model" else ""
        number = lambda value, digits=0: "" if value is None else f"{value:.{digits}f}"  # noqa: E731
        rows.append([row["name"], str(row["head_dim"]), str(row["seq"]),
                     (f"**{number(ours)}**{untuned}" if ours else row["failures"].get("Attune", "")[:60]),
                     number(theirs) or row["failures"].get(peer, "")[:60], number(ratio, 2),
                     number(100 * ours / peak) + " %" if ours and peak else ""])
    header = ["variant", "d", "seq", "Attune", peer, f"Attune / {peer}", "share of peak"]
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + f"\n\nGeometric mean of Attune / {peer}: {problems.geometric_mean(ratios):.2f}."


def preamble(results):
    e = results["environment"]
    peak = (f"The peak, {e['peak_gflops']:.0f} GFLOP/s, is what these threads reach together with nothing but "
            "multiply-adds in registers. " if e["peak_gflops"] else "")
    return (f"{e['date']}, {e['cpu']}, every contestant on {e['threads']} threads, PyTorch {e['torch']}, Attune "
            f"{e['attune']}. `{e['command']}`\n\n{peak}FLOP count live elements only; causal rows beside SDPA count half of all. "
            f"{e['timing']}")


def render(text, results):
    sections = (("cpu", "sdpa", "SDPA", "On the CPU beside PyTorch's `scaled_dot_product_attention`"),
                ("cpu_custom", "flex", "Flex", "Custom masks and scores on the CPU beside FlexAttention"))
    for marker, section, peer, title in sections:
        if any(row["section"] == section for row in results["rows"]):
            body = (f"## {title}, fp32, batch 1, {HEADS} heads, GFLOP/s\n\n{preamble(results)}\n\n" +
                    table(results, section, peer))
            text = page.replace_section(text, marker, body)
    return text


def main():
    arguments = parse_arguments()
    if arguments.render:
        results = json.loads(page.read(arguments.render))
    elif arguments.compile_only:
        return compile_only(arguments)
    else:
        results = measure(arguments)
    if arguments.json:
        page.write(arguments.json, json.dumps(results, indent=1))
    page.rewrite(arguments.out, lambda text: render(text, results))


def command_line(arguments):
    """What repeats the measurement, without where its results went."""
    words = ["python3 bench/cpu_side_by_side.py"] + ["--prepare"] * arguments.prepare + ["--tune"] * arguments.tune + ["--quick"] * arguments.quick
    return " ".join(words + [f"--only {text}" for text in arguments.only or ()])


def use_threads(arguments):
    """PyTorch and the number of threads. Before either library starts its own."""
    threads = arguments.threads or len(os.sched_getaffinity(0))
    os.environ["ATTUNE_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch

    torch.set_num_threads(threads)
    return torch, threads


def compile_only(arguments):
    torch, _ = use_threads(arguments)
    for problem in all_problems(arguments):
        if problem.section == "flex":
            flex_entry(problem, make_inputs(problem, torch), torch)


def measure(arguments):
    torch, threads = use_threads(arguments)
    path = arguments.library or attune_c.find_library(ROOT)
    if path is None:
        sys.exit("no libattune.so below build/: run `make build`, or name it with --library")
    command = arguments.command or os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(path))), "attune")
    facts = cpu_facts(command)
    started = time.monotonic()
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        cache = os.path.join(directory, "cpu.db")
        chosen = all_problems(arguments)
        if arguments.prepare:
            prepare(chosen, threads)
        if arguments.tune:
            for problem in chosen:
                begin = time.monotonic()
                tune(problem, command, cache, arguments.max_candidates)
                print(f"tuned {problem.key} in {time.monotonic() - begin:.1f} s", file=sys.stderr)
        library = attune_c.Library(path)
        runtime = library.runtime("cpu", cache if arguments.tune else "none")
        for problem in chosen:
            if time.monotonic() - started > arguments.budget:
                print(f"out of time before {problem.key}", file=sys.stderr)
                break
            row = run_problem(problem, runtime, torch)
            rows.append(row)
            rates = ", ".join(f"{name} {gflops(row, name):.0f}" for name in row["us"])
            print(f"{problem.key}: {rates} GFLOP/s; {row.get('plan')} {row['failures'] or ''}", file=sys.stderr)
    return {"rows": rows,
            "environment": {"date": page.now(), "cpu": facts["identity"].split(" / ")[0], "threads": threads,
                            "torch": torch.__version__, "attune": library.version,
                            "peak_gflops": facts["matrix_tflops"] * 1e3,
                            "timing": "In turns: a rest until the other's threads sleep, two launches untimed, two "
                                      "timed; medians.",
                            "command": command_line(arguments)}}


if __name__ == "__main__":
    main()

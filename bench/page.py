"""Results -> the sections of docs/performance.md and docs/lab/tables.md. Needs no torch."""

import datetime
import glob
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap

import summary
from problems import geometric_mean, neighbours

PEERS = ("FA3", "cuDNN", "FA2", "Flex")
LINE_SHARE = 0.95  # of the line through its neighbours, which a head dim should reach


def reference(root):
    return json.loads(read(os.path.join(root, "bench", "reference_fa3.json")))


def _tflops(row, name):
    time_us = row["us"].get(name)
    return row["flops"] / time_us / 1e6 if time_us else None


def _number(value, digits=0):
    return "" if value is None else f"{value:.{digits}f}"


def _ratio(row, name):
    ours, theirs = row["us"].get("Attune"), row["us"].get(name)
    return theirs / ours if ours and theirs else None


def _best_ratio(row):
    ratios = [r for r in (_ratio(row, name) for name in PEERS) if r]
    return min(ratios) if ratios else None


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _say_untuned_once(rows):
    """(The rows, what to say of all of them): where none was tuned, their cells need not say so."""
    timed = [row for row in rows if row["us"].get("Attune")]
    if not timed or any(row.get("source") != "model" for row in timed):
        return rows, ""
    return [dict(row, source="") for row in rows], "Plans are the cost model's first guesses: nothing is tuned.\n\n"


def _plan_source(row):
    notes = {"nearest": " (nearest)", "model": " (untuned)", "foreign": " (tuned by another version)"}
    return notes.get(row.get("source"), "")


def forward_section(results, fa3):
    published = {(r["head_dim"], r["causal"], r["seq"]): r["tflops"] for r in fa3["forward_bf16"]}
    rows, ratios, against_fa3, beside_fa3 = [], [], [], []
    for row in results["rows"]:
        if row["section"] != "forward":
            continue
        ours = _tflops(row, "Attune")
        quoted = published.get((row["head_dim"], row["causal"], row["seq"]))
        ratio = _best_ratio(row)
        ratios.append(ratio)
        beside_fa3.append(_ratio(row, "FA3"))
        if ours and quoted:
            against_fa3.append(ours / quoted)
        rows.append([
            str(row["head_dim"]), str(row["heads"]), "yes" if row["causal"] else "no", str(row["seq"]),
            f"**{_number(ours)}**{_plan_source(row)}" if ours else _failure(row), _number(_tflops(row, "FA3")),
            _number(_tflops(row, "cuDNN")), _number(_tflops(row, "FA2")), _number(beside_fa3[-1], 2),
            _number(ratio, 2), _number(quoted)
        ])
    text = table(["d", "heads", "causal", "seq", "Attune", "FA3", "cuDNN", "FA2", "Attune / FA3",
                  "against the best of the run", "FA3*"], rows)
    text += f"\n\nGeometric mean against the best peer of each row: {geometric_mean(ratios):.2f}"
    text += f"; against FA3 in this run: {geometric_mean(beside_fa3):.2f}." if any(beside_fa3) else "."
    text += ("\n\n\\* FA3's reference column, from another run. " + fa3["provenance"] +
             f" Attune over that column, geometric mean: {geometric_mean(against_fa3):.2f}; with both divided by the matrix "
             f"product of their run: "
             f"{geometric_mean(against_fa3) * fa3['matmul_tflops'] / results['environment']['matmul_tflops']:.2f}.")
    return text


def _line(row, forward):
    """What a row of other head dims is compared with: at the mean of its two, the straight line in d through
    Attune's TFLOP/s at the neighbours, same mask and length. None where one of them was not measured."""
    mean_dim = (row["head_dim"] + row["head_dim_v"]) / 2
    low, high = neighbours(mean_dim)
    ends = [forward.get((d, row["causal"], row["seq"])) for d in (low, high)]
    if None in ends:
        return None
    return ends[0] + (ends[1] - ends[0]) * (mean_dim - low) / (high - low)


def dims_section(results, _):
    forward = {(row["head_dim"], row["causal"], row["seq"]): _tflops(row, "Attune")
               for row in results["rows"] if row["section"] == "forward"}
    rows, shares = [], []
    for row in results["rows"]:
        if row["section"] != "dims":
            continue
        ours, line = _tflops(row, "Attune"), _line(row, forward)
        share = ours / line if ours and line else None
        shares.append(share)
        dims = sorted({row["head_dim"], row["head_dim_v"]}, reverse=True)
        rows.append([
            "/".join(map(str, dims)), str(row["heads"]), "yes" if row["causal"] else "no", str(row["seq"]),
            f"**{_number(ours)}**{_plan_source(row)}" if ours else _failure(row), _number(line), _number(share, 2),
            _number(_tflops(row, "FA3")), _number(_tflops(row, "cuDNN")), _number(_tflops(row, "FA2")),
            _number(_best_ratio(row), 2)
        ])
    text = ("The line: Attune's own TFLOP/s of the forward table at the head dims below and above "
            "(64 and 128, or 128 and 256), same mask and length, interpolated linearly in d; for 192/128 (d of Q and K / of V) "
            "at d 160. FLOP: `2*b*h*s*s*(d of Q and K + d of V)`, halved for causal. Heads: whole, as near as can be to "
            "the forward table's 2048 columns. A peer may round d up to one that it has a kernel for.\n\n")
    text += table(["d", "heads", "causal", "seq", "Attune", "line", "Attune / line", "FA3", "cuDNN", "FA2",
                   "against the best of the run"], rows)
    known = [share for share in shares if share]
    if known:
        reached = sum(share >= LINE_SHARE for share in known)
        text += (f"\n\nAttune over the line: geometric mean {geometric_mean(known):.2f}, least {min(known):.2f}; "
                 f"{reached} of {len(known)} rows at {LINE_SHARE} or more.")
    return text


def custom_section(results, fa3):
    rows, ratios = [], []
    for row in results["rows"]:
        if row["section"] != "custom":
            continue
        ratio = _ratio(row, "Flex")
        ratios.append(ratio)
        ours, flex = row["us"].get("Attune"), row["us"].get("Flex")
        rows.append([
            row["name"], f"{row['live_share']:.4f}", _number(ours and ours / 1e3, 3) + _plan_source(row) or
            _failure(row), _number(_tflops(row, "Attune")), _number(flex and flex / 1e3, 3),
            _number(_tflops(row, "Flex")), _number(ratio, 2), _number(row.get("flex_mask_ms"), 2),
            _number(fa3["custom_forward_ms"].get(row["name"]), 3)
        ])
    text = table([
        "variant", "live share", "Attune ms", "TFLOP/s", "Flex ms", "TFLOP/s", "Flex / Attune", "Flex's block mask ms",
        "FA3* ms"
    ], rows)
    return text + f"\n\nGeometric mean of Flex / Attune: {geometric_mean(ratios):.2f}. TFLOP/s count live elements only."


def dropout_section(results, _):
    rows = []
    for row in results["rows"]:
        if row["section"] != "dropout":
            continue
        rows.append([
            str(row["seq"]), _number(_tflops(row, "Attune")) + _plan_source(row) or _failure(row),
            _number(_tflops(row, "cuDNN")), _number(_tflops(row, "FA2")), _number(_best_ratio(row), 2)
        ])
    return table(["seq", "Attune", "cuDNN", "FA2", "against the best"], rows)


def _failure(row):
    return row.get("failures", {}).get("Attune", "")[:60]


def failures(results):
    found = [f"{row['key']}: {name}: {why}" for row in results["rows"]
             for name, why in sorted(row.get("failures", {}).items())]
    if not found:
        return "Every contestant that was timed passed its check first."
    return "Not timed, because a contestant could not run the problem or failed its check:\n\n" + "\n".join(
        f"- {line}" for line in found)


def preamble(results):
    e = results["environment"]
    _, program, *arguments = shlex.split(e["command"])
    of_commit = f", commit {e['commit']}" if "commit" in e else ""
    return (f"{e['date']}, {e['gpu']}, driver {e['driver']}, CUDA {e['cuda']}, PyTorch {e['torch']}, "
            f"Attune {e['attune']}{of_commit}. `{command(program, arguments)}`\n\n"
            f"Calibration in the same minute: bf16 8192^3 matrix product {e['matmul_tflops']:.0f} TFLOP/s, "
            f"device copy {e['copy_tb_per_s']:.2f} TB/s (read and write).")


TITLES = {
    "forward": ("Forward, bf16, 16384 tokens in all, TFLOP/s", forward_section),
    "dims": ("Other head dimensions, bf16, 16384 tokens in all, TFLOP/s", dims_section),
    "custom": ("Custom masks and scores, b 2, h 16, s 8192, d 128, bf16", custom_section),
    "dropout": ("Dropout 0.1, causal, bf16, d 128, 16 heads, 16384 tokens, TFLOP/s", dropout_section),
}


def stays(page, name, measured, wanted):
    """Whether the page has the section and some of its rows, whose keys are `wanted`, were not measured: those of a run
    that was stopped, or was of some rows alone, do not take their place. Says so."""
    missing = [key for key in wanted if key not in measured]
    if not missing or f"<!-- {name}:begin -->" not in page:
        return False
    print(f"section `{name}` stays as it was: {len(missing)} of its rows were not measured, {missing[0]} first", file=sys.stderr)
    return True


def render(page, results, fa3, every=()):
    """`page` with each section that `results` has rows for replaced between its markers, or appended; but a section
    that the page has only by all of its rows among `every`, the problems that there are."""
    present = {row["section"] for row in results["rows"]}
    measured = {row["key"] for row in results["rows"]}
    for name, (title, make) in TITLES.items():
        if name in present and not stays(page, name, measured, [p.key for p in every if p.section == name]):
            rows, untuned = _say_untuned_once([row for row in results["rows"] if row["section"] == name])
            others = [row for row in results["rows"] if row["section"] != name]
            body = (f"## {title}\n\n{preamble(results)}\n\n{untuned}{make(dict(results, rows=rows + others), fa3)}\n\n"
                    f"{failures(dict(results, rows=rows))}")
            page = replace_section(page, name, body)
    if "<!-- summary:begin -->" in page:
        page = replace_section(page, "summary", summary.body(page))
    return page


def _wrapped(body):
    """Prose of at most 100 columns; tables, titles and code stay."""
    def wrap(paragraph):
        if paragraph.startswith(("|", "#", "<", "    ", "```")):
            return paragraph
        items = re.split(r"\n(?=- )", paragraph)
        return "\n".join(
            textwrap.fill(" ".join(item.split()), 100, subsequent_indent="  " if item.startswith("- ") else "",
                          break_long_words=False, break_on_hyphens=False) for item in items)

    return "\n\n".join(map(wrap, body.split("\n\n")))


def replace_section(page, name, body):
    body = _wrapped(body)
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    section = f"{begin}\n{body}\n{end}"
    if begin in page:
        if page.count(begin) != 1 or page.count(end) != 1 or page.index(end) < page.index(begin):
            raise ValueError(f"the markers of section `{name}` do not pair")
        return page[:page.index(begin)] + section + page[page.index(end) + len(end):]
    return page.rstrip("\n") + ("\n\n" if page.strip() else "") + section + "\n"


def command(program, arguments):
    """The command line for the page: where results were written, and where the program lay, does not matter to who measures again."""
    kept, skip = [], False
    for argument in arguments:
        if skip or argument.split("=")[0] in (
                "--json", "--jsonl", "--out", "--program", "--library", "--made", "--append", "--commit",
                "--page"):  # fmt: skip
            skip = not skip and "=" not in argument
            continue
        kept.append(argument)
    return " ".join(["python3", program, *map(shlex.quote, kept)])


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def rewrite(path, change):
    """`path` as `change` makes it of its text, which is empty where there is no such file yet."""
    write(path, change(read(path) if os.path.isfile(path) else ""))


def newest_built(root, *parts, named=None):
    """The program `named`, else the newest `parts` below build/."""
    found = [named] if named else glob.glob(os.path.join(root, "build", "*", *parts))
    if not found:
        sys.exit(f"no {'/'.join(parts)} below build/: run `make build`")
    return max(found, key=os.path.getmtime)


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def commit(root):
    """Of what was measured: of the repository, else as whoever carried the files here says."""
    found = subprocess.run(["git", "-C", root, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return os.environ.get("ATTUNE_COMMIT") or found.stdout.strip() or "unknown"


def made(root, torch, program, where=None):
    """When, where (the GPU), of which commit and by which command a table was made. `torch`: None where it had no
    part in it."""
    version = f"PyTorch {torch.__version__}, " if torch else ""
    return (f"{now()}, {where or torch.cuda.get_device_name()}, {version}commit {commit(root)}. "
            f"`{command(program, sys.argv[1:])}`")


def write_table(path, root, torch, program, header, rows, where=None):
    """A table on a page of its own, and how it was made."""
    write(path, f"{made(root, torch, program, where)}\n\n{table(header, rows)}\n")

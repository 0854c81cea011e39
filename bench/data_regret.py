#!/usr/bin/env python3
"""Fifteen masks that tensors decide, tuned without having seen those tensors: makes the tensors (bench/data_masks.py),
runs build/release/bench/data_regret, and writes its section of docs/lab/tables.md.

    python3 bench/data_regret.py                          # about six minutes: --budget says how many seconds
    python3 bench/data_regret.py --only documents,drafts
    python3 bench/data_regret.py --unsaid                 # tuned on specs that say nothing of their tensors
    python3 bench/data_regret.py --check                  # what the masks leave, and first guesses; no GPU
    python3 bench/data_regret.py --make DIRECTORY         # the masks and their tensors alone; no GPU
    python3 bench/data_regret.py --made DIRECTORY         # with those, where NumPy is missing
    python3 bench/data_regret.py --render data.jsonl      # from what --jsonl wrote before

Needs a GPU, NVRTC (`make build`) and NumPy. Where there is no repository, ATTUNE_COMMIT names the commit."""

import argparse
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import page  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CHECKED_SHARES = 0.02, 0.60  # of live pairs: with fewer a launch is mostly overhead, with more it is a full one
WITHIN = 1.03  # of the best, which tuning is to reach
RESOLVED = 1.01  # of the first guess: what is nearer than that is the same


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="MASK,...", type=lambda text: text.split(","), help="default: all")
    parser.add_argument("--budget", type=float, default=350, help="seconds for all masks; the yardstick takes what searches leave")
    parser.add_argument("--plans", type=int, help="measure at most so many of a mask; default: as many as the budget allows")
    parser.add_argument("--rounds", type=int, default=60, help="of the plans against each other")
    parser.add_argument("--unsaid", action="store_true", help="leave `sample:` out of the specs")
    parser.add_argument("--device", default="cuda:0", help="or cpu, with a small --length, to try the program")
    parser.add_argument("--length", type=int, help="of the sequences; default: 8192")
    parser.add_argument("--program", help="default: the newest bench/data_regret below build/")
    parser.add_argument("--check", action="store_true", help="say what the masks leave, fail where that is no test; no device")
    parser.add_argument("--make", metavar="DIRECTORY", help="write the masks and their tensors there, and end")
    parser.add_argument("--made", metavar="DIRECTORY", help="take them from there")
    parser.add_argument("--jsonl", help="also write what was measured here, mask by mask")
    parser.add_argument("--render", metavar="JSONL", help="rewrite the page from that")
    parser.add_argument("--out", default=os.path.join(ROOT, "docs", "lab", "tables.md"), help="the page to rewrite")
    return parser.parse_args()


def make(directory, arguments):
    import data_masks  # NumPy is not everywhere where a page is rendered

    masks = data_masks.masks()
    unknown = set(arguments.only or ()) - set(masks)
    if unknown:
        sys.exit(f"no mask is called {', '.join(sorted(unknown))}; there are {', '.join(masks)}")
    return data_masks.make(directory, arguments.length or data_masks.LENGTH, arguments.only, not arguments.unsaid)


def copied(directory, arguments):
    """What --make made, in a place where the program leaves its caches: a search must find none."""
    shutil.copytree(arguments.made, directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.db*"))
    names = [os.path.basename(path).removesuffix(".yaml") for path in sorted(glob.glob(os.path.join(directory, "*.yaml")))]
    return [name for name in names if not arguments.only or name in arguments.only]


def percent(ratio):
    return f"{100 * (ratio - 1):.1f}"


def best_us(row):
    return min(row["us"].values())


def row_text(row):
    us, best = row["us"], best_us(row)
    return [
        row["mask"], f"{row['live']:.3f}", f"{us['first']:.1f}", f"{us['tuned']:.1f}", f"{best:.1f}",
        percent(us["tuned"] / best), percent(us["tuned"] / us["first"]), percent(us["tuned on them"] / best),
        percent(us["first with tensors"] / best), f"{100 * row['noise']:.1f}", f"{row['measured']} / {row['legal']}",
        f"{row['search seconds']:.1f}", f"{row['seconds']:.0f}",
    ]  # fmt: skip


HEADER = ["mask", "live share", "first guess us", "tuned us", "best us", "tuned behind best %", "tuned behind guess %",
          "tuned on them behind best %", "guess with them behind best %", "noise %", "plans measured / legal", "search s",
          "all s"]  # fmt: skip


def verdict(rows):
    behind_best = [row["us"]["tuned"] / best_us(row) for row in rows]
    behind_guess = [row["us"]["tuned"] / row["us"]["first"] for row in rows]
    return (f"Tuned plans are within 3 % of the best on {sum(ratio <= WITHIN for ratio in behind_best)} of {len(rows)} masks "
            f"(worst {percent(max(behind_best))} %). They are behind the first guess on {sum(ratio > 1 for ratio in behind_guess)}, by "
            f"more than 1 % on {sum(ratio > RESOLVED for ratio in behind_guess)} (worst {percent(max(behind_guess))} %).")  # fmt: skip


def not_measured(lines):
    there = [row["mask"] for row in lines[1:]]
    return [name for name in lines[0]["masks"] if name not in there]


def render(text, lines):
    environment, rows = lines[0], lines[1:]
    missing = not_measured(lines)
    title = "Regret where tensors decide the mask"
    tuned_on = "on what its spec says of them (`sample:`)"
    if environment["unsaid"]:
        title += ", of which nothing is said"
        tuned_on = "on several plausible kinds, because its spec says nothing of them"
    body = [
        f"## {title}\n",
        f"{environment['date']}, {environment['device']}; {environment['compiler']}; commit {environment['commit']}. "
        f"`{environment['command']}`\n",
        f"Each mask was tuned without its real tensors, {tuned_on}; the first guess knows no more. All times are of the real "
        f"ones, medians of {environment['rounds']} interleaved rounds from cold L2. The best is the fastest there, of these two, "
        "of what a search on the real tensors finds, of the guess that knows them, and of the three fastest of all plans "
        "that were measured on them: those that the cost model puts first, and as many from all over its order. Noise: how "
        "far a plan's medians of even and of odd rounds are apart at most. Live share: of the pairs of a query and a "
        "key.\n",
        "| " + " | ".join(HEADER) + " |",
        "|" + " --- |" * len(HEADER),
        *("| " + " | ".join(row_text(row)) + " |" for row in rows),
        f"\n{verdict(rows)}" + (f" Not measured: {', '.join(missing)}." if missing else ""),
    ]  # fmt: skip
    return page.replace_section(text, "data-regret-unsaid" if environment["unsaid"] else "data-regret", "\n".join(body))


def measured(program, directory, names, arguments):
    """The program's lines as they come: a run that is cut short leaves what it had."""
    command = [program, "--budget", str(arguments.budget), "--rounds", str(arguments.rounds)]
    if arguments.plans:
        command += ["--plans", str(arguments.plans)]
    process = subprocess.Popen([*command, "--device", arguments.device, directory, *names], stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        yield json.loads(line)
    if process.wait() != 0:
        print(f"data_regret ended with {process.returncode}: not all masks were measured", file=sys.stderr)


def measure(program, directory, names, arguments):
    lines = []
    for line in measured(program, directory, names, arguments):
        if not lines:
            line.update(masks=names, date=page.now(), commit=page.commit(ROOT), rounds=arguments.rounds, unsaid=arguments.unsaid,
                        command=page.command("bench/data_regret.py", sys.argv[1:]))  # fmt: skip
        else:
            print("; ".join(f"{name} {value}" for name, value in zip(HEADER, row_text(line))), file=sys.stderr)
        lines.append(line)
        if arguments.jsonl:
            page.write(arguments.jsonl, "".join(json.dumps(each) + "\n" for each in lines))
    return lines


def check(program, directory, names):
    output = subprocess.run([program, "--check", directory, *names], check=True, stdout=subprocess.PIPE, text=True).stdout
    low, high = CHECKED_SHARES
    unfit = []
    for row in map(json.loads, output.splitlines()):
        print(f"{row['mask']:16} live {row['live']:.3f} (said {row['said live']:.3f}), tiles {row['live tiles']:.3f} "
              f"({row['said live tiles']:.3f}), full {row['full tiles']:.3f} ({row['said full tiles']:.3f}); {row['legal']} plans, "
              f"first `{row['first']}`" + ("" if row["first"] == row["first with tensors"] else f", with tensors "
                                           f"`{row['first with tensors']}`"))  # fmt: skip
        if not low <= row["live"] <= high:
            unfit.append(row["mask"])
    return f"live shares out of {low} to {high}: {', '.join(unfit)}" if unfit else None


def main():
    arguments = parse_arguments()
    if arguments.make:
        make(arguments.make, arguments)
        return None
    if arguments.render:
        lines = [json.loads(line) for line in page.read(arguments.render).splitlines()]
    else:
        program = page.newest_built(ROOT, "bench", "data_regret", named=arguments.program)
        with tempfile.TemporaryDirectory() as directory:
            names = (copied if arguments.made else make)(directory, arguments)
            if arguments.check:
                return check(program, directory, names)
            lines = measure(program, directory, names, arguments)
    if len(lines) < 2:
        return "nothing was measured"
    page.rewrite(arguments.out, lambda text: render(text, lines))
    print(verdict(lines[1:]))
    missing = not_measured(lines)
    return f"not measured: {', '.join(missing)}" if missing else None


if __name__ == "__main__":
    sys.exit(main())

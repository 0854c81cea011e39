#!/usr/bin/env python3
"""How far the tuner's search, the cost model's first guess and a neighbour's bucket are from the best there is: runs
build/release/bench/regret, and writes its section of docs/lab/tables.md.

    python3 bench/regret.py
    python3 bench/regret.py --backward                # of the backward pass
    python3 bench/regret.py --render regret.jsonl...  # from what the program printed before, of several
                                                      # GPUs each for some of the specs; a shape whose
                                                      # whole space one of them measured is shown with that

Needs a GPU and NVRTC (`make build`)."""

import argparse
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import page  # noqa: E402
import problems  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", help="default: the newest bench/regret below build/")
    parser.add_argument("--backward", action="store_true", help="plans of the backward pass")
    parser.add_argument("--render", metavar="JSONL", nargs="+", help="rewrite the page from saved output")
    parser.add_argument("--date", help="when saved output was made; default: now")
    parser.add_argument("--jsonl", help="also write the program's output here")
    parser.add_argument("--out", default=os.path.join(ROOT, "docs", "lab", "tables.md"), help="the page to rewrite")
    return parser.parse_args()


def shape_text(shape):
    """batch=1,heads=8,kv_heads=8,q_len=64,kv_len=64 -> 1 x 8/8 x 64/64"""
    values = dict(pair.split("=") for pair in shape.split(","))
    return f"{values['batch']} x {values['heads']}/{values['kv_heads']} x {values['q_len']}/{values['kv_len']}"


def percent(ratio):
    return f"{100 * (ratio - 1):.1f} %"


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def is_whole(line):
    """Whether the yardstick was every legal plan."""
    return line["exhaustive"]["plans"] == line["legal"]


def whole_sentence(lines):
    if not lines:
        return ""
    search_s = sum(line["search"]["seconds"] for line in lines)
    all_s = sum(line["exhaustive"]["seconds"] for line in lines)
    return (f" Of the {len(lines)} shapes whose whole space was measured the searches took {search_s:.1f} s, all plans {all_s:.1f} s, "
            f"{all_s / search_s:.1f} times as long (the second shape of a spec finds compiled code, in both).")


def most_measured(lines):
    """One line a shape, the one with the largest yardstick, in the order of their first appearance."""
    best = {}
    for line in lines:
        key = line["spec"], line["shape"]
        if key not in best or line["exhaustive"]["plans"] >= best[key]["exhaustive"]["plans"]:
            best[key] = line
    return list(best.values())


def held_table(lines, compiled_before):
    rows, regrets, firsts = [], [], []
    search_s = exhaustive_s = whole_s = 0
    for line in lines:
        search, exhaustive, duel = line["search"], line["exhaustive"], line["duel"]
        best = min(duel.values())
        regrets.append(duel["search"] / best)
        firsts.append(duel["first"] / best)
        search_s += search["seconds"]
        exhaustive_s += exhaustive["seconds"]
        whole_s += exhaustive["seconds"] * line["legal"] / exhaustive["plans"]
        measured = f"{exhaustive['plans']} (all)" if is_whole(line) else str(exhaustive["plans"])
        rows.append([
            line["spec"], shape_text(line["shape"]), str(line["legal"]), measured,
            f"{best:.1f}", percent(regrets[-1]), percent(firsts[-1]), str(exhaustive["rank_of_best"]),
            str(exhaustive["rank_within_2_percent"]), str(search["candidates"]), f"{search['seconds']:.1f}",
            f"{exhaustive['seconds']:.1f}", f"{search['seconds'] / exhaustive['seconds']:.3f}" if is_whole(line) else ""
        ])
    text = table([
        "spec", "batch x heads / of keys x queries / keys", "legal plans", "measured", "best us", "search", "first guess",
        "rank of the best", "first within 2 %", "candidates of the search", "search s", "all measured s", "search / all plans"
    ], rows)
    within = sum(regret <= 1.02 for regret in regrets)
    guessed = sum(first <= 1.10 for first in firsts)
    beside = ("part of its kernels had been compiled before, so that this is too little; even so, " if compiled_before else "")
    whole = [line for line in lines if is_whole(line)]
    extrapolated = whole_s - sum(line["exhaustive"]["seconds"] for line in whole)
    return text + (f"\n\nThe search is within 2 % of the best on {within} of {len(rows)} shapes (worst {percent(max(regrets))}), the "
                   f"first guess within 10 % on {guessed} (worst {percent(max(firsts))}). The searches took {search_s:.0f} s together, compiling "
                   f"included, at most {max(line['search']['seconds'] for line in lines):.1f} s each; measuring the yardstick {exhaustive_s:.0f} s; "
                   f"{beside}at the same rate all legal plans would take {whole_s:.0f} s, {whole_s / search_s:.0f} times as long as the searches"
                   + (f" ({extrapolated:.0f} s of that extrapolated)." if extrapolated else ".")
                   + whole_sentence(whole))


def neighbour_table(lines):
    rows, regrets = [], []
    for line in lines:
        duel = line["duel"]
        best = min(duel.values())
        regrets.append(duel["bucket"] / best)
        rows.append([line["neighbour"], shape_text(line["shape"]), f"{best:.1f}", percent(regrets[-1]),
                     percent(duel["first"] / best), percent(duel["search"] / best)])
    text = table(["spec", "shape", "best us", "the bucket's plan", "first guess", "search there"], rows)
    return text + f"\n\nRegret of the bucket's plan, geometric mean: {percent(problems.geometric_mean(regrets))}."


def render(text, lines, date):
    environment = lines[0]["environment"]
    held = most_measured([line for line in lines if "exhaustive" in line])
    neighbours = list({(line["neighbour"], line["shape"]): line for line in lines if "neighbour" in line}.values())
    backward = environment.get("pass") == "backward"
    body = (f"## Regret of the search, the cost model and buckets, on held shapes{', backward' if backward else ''}\n\n"
            f"{date}, {environment['device']}; {environment['compiler']}; {environment['cores']} cores. "
            f"`python3 bench/regret.py{' --backward' if backward else ''}`\n\n"
            "Regret: how much longer than the best plan. The best is the fastest of the search's, the first guess and the "
            "yardstick's winner when they race each other in 30 interleaved rounds. The yardstick is what a compile budget "
            f"affords: {environment['yardstick']}; where \"measured\" says all, the whole space. "
            "The search's cache starts empty; two shapes of a spec share compiled code. "
            + (f"The worker that measures ran before: it lives on from problem to problem, and its start took "
               f"{environment['worker_start_seconds']:.1f} s.\n\n" if "worker_start_seconds" in environment else "\n\n")
            + held_table(held, environment.get("compiled_before", False)))
    if neighbours:
        body += ("\n\nShapes half as long again as a held one, running the plan of its bucket:\n\n"
                 + neighbour_table(neighbours))
    return page.replace_section(text, "regret-backward" if backward else "regret", body)


def run(arguments):
    program = page.newest_built(ROOT, "bench", "regret", named=arguments.program)
    with tempfile.TemporaryDirectory() as directory:
        command = [program, *(["--backward"] if arguments.backward else []), directory]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main():
    arguments = parse_arguments()
    date = page.now()
    if arguments.render:
        output = "".join(page.read(path) for path in arguments.render)
        date = arguments.date or date
    else:
        output = run(arguments)
    if arguments.jsonl:
        page.write(arguments.jsonl, output)
    lines = [json.loads(line) for line in output.splitlines()]
    page.rewrite(arguments.out, lambda text: render(text, lines, date))


if __name__ == "__main__":
    main()

"""The table that docs/performance.md opens with, made of the sections that side_by_side.py and
backward_side_by_side.py wrote there.

    python3 bench/summary.py docs/performance.md
"""

import re
import sys

from problems import geometric_mean

# Section, its column of ratios, the columns whose quotient has more digits for the mean, whom they
# are against.
SOURCES = (("forward", "Attune / FA3", ("Attune", "FA3"), "FlashAttention-3"),
           ("forward", "against the best of the run", None, "the best peer"),
           ("dims", "against the best of the run", None, "the best peer"),
           ("custom", "Flex / Attune", ("Flex ms", "Attune ms"), "FlexAttention"),
           ("dropout", "against the best", None, "the best peer"))
# Section of the backward pass -> what its rows are, if it is not said by their keys.
BACKWARD = {"backward": None, "backward_wide": "d 192 and more", "backward_deterministic": "deterministic",
            "backward_custom": "masks and scores of one's own", "backward_dropout": "causal with dropout 0.1"}


def _section(page, name):
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    return page[page.index(begin) + len(begin):page.index(end)] if begin in page else ""


def _rows(section):
    """The first table of a section: a dict a row, by the header's names; of two equal names the first."""
    lines = [line for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(reversed(list(zip(cells[0], row)))) for row in cells[2:]] if cells else []


def _number(cell):
    return float(cell.split()[0].strip("*"))


def _made(section):
    """When, where and of what a section was made: its first line of prose up to the command."""
    prose = [line for line in section.splitlines() if line and not line.startswith(("#", "|"))]
    return " ".join(prose).split(" `")[0] if prose else ""


def _what(name, row):
    if name in ("forward", "dims"):
        return f"d {row['d']}, {'causal' if row['causal'] == 'yes' else 'full'}" if name == "forward" else "other head dims"
    return {"custom": "masks and scores of one's own", "dropout": "causal with dropout 0.1"}[name]


def _version(made):
    """What sections must share to be in one table: the commit, or when and where they were made."""
    of_commit = re.search(r"commit (\w+)", made)
    return of_commit[1] if of_commit else made


def peer_ratios(cell):
    """Peer -> its time over ours, of what a backward row says of its peers: `FA3 486 us (1.06), cuDNN 508 us (1.10)`."""
    return {name: float(ratio) for name, ratio in re.findall(r"(\w[^,|]*?) \d+ us \((\d+\.\d+)\)", cell)}


def _what_backward(section, key):
    kind, *parts = key.split("/")
    if BACKWARD[section]:
        return f"backward, {BACKWARD[section]}"
    return "backward, 32 heads on 8" if kind == "gqa" else f"backward, d {parts[0][1:]}, {parts[1]}"


def _backward_groups(page, version):
    groups = {}
    for name in BACKWARD:
        section = _section(page, name)
        if _version(_made(section)) != version:
            continue
        for row in _rows(section):
            ratios = peer_ratios(row["peers (their time over ours)"])
            what = _what_backward(name, row["row"])
            if "FA3" in ratios:
                groups.setdefault((what, "FlashAttention-3"), []).append((ratios["FA3"],) * 2)
            if ratios:
                groups.setdefault((what, "the best peer"), []).append((min(ratios.values()),) * 2)
    return groups


def body(page):
    """Of the sections that were made of the forward table's commit, and of the backward pass those that were made of its
    dense table's; empty when there is no forward table."""
    made = _made(_section(page, "forward"))
    groups = {}
    for name, column, quotient, peer in SOURCES:
        section = _section(page, name)
        if not made or _version(_made(section)) != _version(made):
            continue
        for row in _rows(section):
            if row.get(column):
                exact = _number(row[quotient[0]]) / _number(row[quotient[1]]) if quotient else float(row[column])
                groups.setdefault((_what(name, row), peer), []).append((float(row[column]), exact))
    if not groups:
        return ""
    backward = _made(_section(page, "backward"))
    if backward:
        groups.update(_backward_groups(page, _version(backward)))
        if _version(backward) != _version(made):
            made += f" Of the backward pass: {backward}"
    lines = ["| problems | rows | beside | least | mean | most |", "| --- | --- | --- | --- | --- | --- |"]
    for (what, peer), ratios in sorted(groups.items(), key=lambda group: group[0][1] == "the best peer"):
        shown, exact = zip(*ratios)
        lines.append(f"| {what} | {len(ratios)} | {peer} | {min(shown):.2f} | {geometric_mean(exact):.2f} | {max(shown):.2f} |")
    return (f"## In one table\n\nHow many times as fast as a peer in the same process: {made} The sections below have "
            "every row. Means are geometric.\n\n" + "\n".join(lines))


def main():
    import page

    page.rewrite(sys.argv[1], lambda text: page.replace_section(text, "summary", body(text)))


if __name__ == "__main__":
    main()

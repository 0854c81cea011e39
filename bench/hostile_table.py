"""What bench/distributions.py measured, as a file of JSON lines that grows row by row, and as a page. Needs no torch."""

import json
import os

import page

BAR = 0.97  # of a peer's speed on the same numbers
BESIDE = ("FA3", "FA4", "cuDNN", "FA2", "Flex", "FLASH")  # whose errors ours stand beside: the first that took part
HEADER = ["data", "Attune us", "speed on normal data is 1", "a peer's time over ours", "mean error, over a peer's",
          "largest, over a peer's"]


def read(paths):
    """(environments, rows by key) of several files; of a key that stands twice the later row."""
    environments, rows = [], {}
    for path in paths:
        for line in page.read(path).splitlines():
            if not line.endswith("}"):
                continue  # what was being written when a run was cut
            value = json.loads(line)
            if "environment" in value:
                environments.append(value["environment"])
            else:
                rows[value["key"]] = value
    return environments, rows


def append(path, value):
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(value) + "\n")
        file.flush()
        os.fsync(file.fileno())


def ratios(row):
    """name -> its time over Attune's."""
    ours = row["us"].get("Attune")
    return {name: us / ours for name, us in row["us"].items() if name != "Attune"} if ours else {}


def _error(row, index):
    """Ours, and over the first peer's that has any."""
    ours = row["errors"].get("Attune")
    if ours is None:
        return ""
    beside = next((name for name in BESIDE if name in row["errors"]), None)
    theirs = row["errors"][beside][index] if beside else 0
    return f"{ours[index]:.1e}" + (f", {beside} {ours[index] / theirs:.2f}" if theirs else "")


def cells(row, on_normal):
    """`on_normal`: Attune's time on normal numbers, or None."""
    ours = row["us"].get("Attune")
    of_normal = f"{on_normal / ours:.2f}" if ours and on_normal else ""
    peers = ", ".join(f"**{name} {value:.2f}**" if value < BAR else f"{name} {value:.2f}"
                      for name, value in ratios(row).items())
    return [row["key"], f"{ours:.0f}" if ours else "none", of_normal, peers, _error(row, 0), _error(row, 1)]


def on_normal(rows):
    """configuration -> Attune's time on its normal numbers."""
    return {row["config"]: row["us"].get("Attune") for row in rows.values() if row["is_normal"]}


def summary(rows):
    """A line for each group and peer."""
    found = {}
    for row in rows.values():
        for name, value in ratios(row).items():
            found.setdefault((row["group"], name), []).append((value, row["key"]))
    lines = []
    for (group, name), values in found.items():
        worst, key = min(values)
        under = sum(value < BAR for value, _ in values)
        lines.append(f"- {group} beside {name}: {under} of {len(values)} rows under {BAR}, the worst {worst:.2f} ({key})")
    return lines


def absent(rows):
    """Who took no part, once for all rows that say the same."""
    found = {}
    for row in rows.values():
        for name, why in row["notes"].items():
            found.setdefault((name, why), []).append(row["config"])
    return [f"- {name} without {', '.join(dict.fromkeys(configs))}: {why}" for (name, why), configs in found.items()]


def write(path, environments, rows):
    normal = on_normal(rows)
    commands = dict.fromkeys(f"{e['date']}, {e['gpu']}, {e['versions']}, commit {e['commit']}, untuned plans. `{e['command']}`"
                             for e in environments)
    parts = ["\n".join(commands), page.table(HEADER, [cells(row, normal.get(row["config"])) for row in rows.values()])]
    parts += ["\n".join(lines) for lines in (summary(rows), absent(rows)) if lines]
    page.write(path, "\n\n".join(parts) + "\n")

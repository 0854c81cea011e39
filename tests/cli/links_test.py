"""Every page's links lead to a file that is there, and to a heading of it; paths that a page names
between backticks are there, too; and the index leads to every page. Addresses on the web are not
asked for."""

import pathlib
import re
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What a path of the repository begins with; a build's folders and a user's are not looked for.
TOPS = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name not in ("build", ".git")}
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`]+)`")
PATH = re.compile(r"[A-Za-z0-9_.*/-]+")


def pages():
    """README.md and every page below the folders that have some."""
    found = [ROOT / "README.md"]
    for top in sorted(TOPS):
        found += sorted((ROOT / top).rglob("*.md"))
    return found


def prose(text):
    """The text without blocks of code."""
    return re.sub(r"^(```|~~~).*?^\1\s*$", "", text, flags=re.M | re.S)


def anchors(text):
    """What GitHub calls the headings of a page."""
    names = set()
    for heading in re.findall(r"^#+ +(.+?)\s*#*$", prose(text), flags=re.M):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number, chosen = 0, name
        while chosen in names:
            number += 1
            chosen = f"{name}-{number}"
        names.add(chosen)
    return names


def broken_links(page):
    text = prose(page.read_text())
    for target in LINK.findall(CODE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = urllib.parse.unquote(target).partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            yield f"there is no {target}"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
            yield f"{target}: no such heading"


def missing_paths(page):
    for code in CODE.findall(prose(page.read_text())):
        if not PATH.fullmatch(code) or "/" not in code or code.split("/")[0] not in TOPS:
            continue
        path = code.rstrip("/")
        # A program stands for its source, a spec of the library for its file.
        if not any(next(ROOT.glob(known), None) for known in (path, f"{path}.cpp", f"specs/{path}.yaml")):
            yield f"there is no `{code}`"


def unlisted_pages(index):
    """Of an index: the pages of its folder that it does not link to."""
    if index.parent.name not in ("docs", "lab") or index.name not in ("index.md", "README.md"):
        return
    listed = {target.partition("#")[0] for target in LINK.findall(index.read_text())}
    for page in sorted(index.parent.glob("*.md")):
        if page != index and page.name not in listed:
            yield f"it does not lead to {page.name}"


def main():
    faults = [
        f"{page.relative_to(ROOT)}: {fault}"
        for page in pages()
        for look in (broken_links, missing_paths, unlisted_pages)
        for fault in look(page)
    ]
    print("\n".join(faults) or f"{len(pages())} pages")
    return bool(faults)


sys.exit(main())

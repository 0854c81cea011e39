"""The backward sections of docs/performance.md, of rows that bench/backward_side_by_side.py measured. Needs no torch."""

import page
import summary
from problems import geometric_mean

# Name, beginnings of its rows' keys, title, what the table does not say by itself.
SECTIONS = (
    ("backward", ("dense/d128/", "dense/d64/", "dense/d96/", "gqa/"), "Backward, bf16, 16384 tokens in all",
     "The time of dQ, dK and dV alone. TFLOP/s count five products, halved for causal. Plans are the cost model's "
     "first guesses: nothing is tuned. The rows of `gqa` have 32 heads on 8 of keys."),
    ("backward_wide", ("dense/d192", "dense/d256"), "Backward of wide heads",
     "16 heads of 192 columns, 8 of 256; `d192_128` has 192 columns of Q and K, and 128 of V."),
    ("backward_deterministic", ("deterministic/",), "Backward, `deterministic: true`",
     "FlashAttention-3 runs in its deterministic mode, cuDNN under PyTorch's deterministic algorithms; whoever gives "
     "other bits at a second launch takes no part."),
    ("backward_custom", ("custom/",), "Backward of custom masks and scores, b 2, h 16, s 8192, d 128",
     "Each row has a process of its own: all are compiled at once, and timed one at a time."),
    ("backward_dropout", ("dropout/",), "Backward with dropout 0.1, causal, 16 heads, d 128",
     "Each contestant draws bits of its own, so that the gradients of each are compared with fp64's of the elements "
     "that it keeps."),
)


def _means(rows):
    found = {}
    for cells in rows:
        for name, ratio in summary.peer_ratios(cells[3]).items():
            found.setdefault(name, []).append(ratio)
    shown = [f"{name} {geometric_mean(of):.2f} ({min(of):.2f} to {max(of):.2f})" for name, of in found.items()]
    return f"A peer's time over ours, geometric mean (least to most): {', '.join(shown)}." if shown else ""


def render(text, made, header, rows, every=()):
    """`text` with each section that there are rows for replaced between its markers, or appended; but a section that
    `text` has only by all of its rows, whose keys are among `every`."""
    measured = {cells[0] for cells in rows}
    for name, beginnings, title, about in SECTIONS:
        of_section = [cells for cells in rows if cells[0].startswith(beginnings)]
        if of_section and not page.stays(text, name, measured, [key for key in every if key.startswith(beginnings)]):
            parts = (f"## {title}", made, about, page.table(header, of_section), _means(of_section))
            text = page.replace_section(text, name, "\n\n".join(filter(None, parts)))
    if "<!-- summary:begin -->" in text:
        text = page.replace_section(text, "summary", summary.body(text))
    return text

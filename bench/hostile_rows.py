"""The rows of bench/distributions.py: which problems, and what each contestant is told of them. Needs no torch."""

import dataclasses
from typing import Optional

import hostile_data
import problems

TOKENS, COLUMNS = 16384, 2048
LENGTHS = 8192, 512
DIMS = (("bf16", 128), ("fp16", 64), ("bf16", 64), ("fp16", 128), ("bf16", 256), ("fp16", 256), ("bf16", 96),
        ("fp16", 96))
SM80_DIMS = (("bf16", 128), ("fp16", 128), ("bf16", 64), ("fp16", 64), ("bf16", 256), ("fp16", 256))
CUSTOM_DIMS = (("bf16", 128), ("fp16", 128), ("bf16", 64), ("fp16", 64), ("bf16", 256), ("fp16", 256))
WINDOW, CAP, DROPOUT = 1024, 30, 0.1


@dataclasses.dataclass(frozen=True)
class Row:
    kind: str  # "dense", "sm80", or the name of what is custom
    dtype: str
    variant: str
    problem: problems.Problem  # its name is the distribution
    lines: str  # of the spec, beside dtype and head dim
    flash: Optional[dict] = None  # what flash_attn_func is told beside `causal`; None: it cannot say the problem

    @property
    def config(self):
        """What rows have in common that differ in nothing but their numbers."""
        family = "sm80 " if self.kind == "sm80" else ""
        return f"{family}{self.dtype} d{self.problem.head_dim} {self.variant} {self.problem.seq}"

    @property
    def key(self):
        return f"{self.config}: {self.problem.name}"

    @property
    def group(self):
        return f"{self.kind} {self.dtype}"

    @property
    def is_normal(self):
        return self.problem.name == hostile_data.NORMAL

    @property
    def yaml(self):
        return f"attune: 1\nname: bench\ndtype: {self.dtype}\nhead_dim: {self.problem.head_dim}\n{self.lines}"


def _problem(name, dim, seq, **rest):
    return problems.Problem("data", name, "", TOKENS // seq, COLUMNS // dim, seq, dim, **rest)


def _plain(kind, dtype, dim, seq, causal, name):
    mask = problems.causal_mask if causal else None
    return Row(kind, dtype, "causal" if causal else "full", _problem(name, dim, seq, causal=causal, mask=mask),
               "mask: causal\n" if causal else "", {})


def dense_rows(names):
    for seq in LENGTHS:
        for dtype, dim in DIMS:
            for causal in (True, False):
                for name in names:
                    yield _plain("dense", dtype, dim, seq, causal, name)


def _dropped(kind, dtype, dim, name):
    problem = _problem(name, dim, LENGTHS[0], causal=True, mask=problems.causal_mask, dropout=DROPOUT)
    return Row(kind, dtype, "dropout causal", problem, f"mask: causal\ndropout: {DROPOUT}\n")


def sm80_rows(names):
    for dtype, dim in SM80_DIMS:
        for causal in (True, False):
            for name in names:
                yield _plain("sm80", dtype, dim, LENGTHS[0], causal, name)
    for dtype, dim in SM80_DIMS[:2]:
        for name in names:
            yield _dropped("sm80", dtype, dim, name)


def _softcap(s, b, h, q, k):
    return CAP * (s / CAP).tanh()


def custom_rows(names):
    known = {p.name: p for p in problems.custom_problems()}
    window, doc, alibi = (known[name] for name in ("sliding1024", "doc_causal", "alibi_causal"))
    variants = (
        ("sliding1024", window.mask, None, (), f"mask: causal and q_idx - kv_idx < {WINDOW}\n",
         {"window_size": (WINDOW - 1, 0)}),
        ("doc_causal", doc.mask, None, doc.tensors,
         "tensors:\n  doc: {dtype: int32, dims: [batch, kv_len]}\nmask: causal and doc[b, q_idx] == doc[b, kv_idx]\n", None),
        ("alibi_causal", alibi.mask, alibi.score, (),
         "mask: causal\nscore: score + (kv_idx - q_idx) * exp2(-(h + 1) * 8 / 16)\n", None),
        ("softcap30_causal", problems.causal_mask, _softcap, (), f"mask: causal\nscore: {CAP} * tanh(score / {CAP})\n",
         {"softcap": float(CAP)}),
    )
    for dtype, dim in CUSTOM_DIMS:
        for variant, mask, score, tensors, lines, flash in variants:
            for name in names:
                problem = _problem(name, dim, LENGTHS[0], causal=True, mask=mask, score=score, tensors=tensors)
                yield Row(variant, dtype, variant, problem, lines, flash)
        for name in names:
            yield _dropped("dropout", dtype, dim, name)


def chosen(rows, only):
    """Those whose key contains one of `only`, and the normal row of each configuration that has one."""
    rows = list(rows)
    if not only:
        return rows
    keys = {row.key for row in rows if any(text in row.key for text in only)}
    configs = {row.config for row in rows if row.key in keys}
    return [row for row in rows if row.key in keys or (row.is_normal and row.config in configs)]

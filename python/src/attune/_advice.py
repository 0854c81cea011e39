"""What a caller is told who knows attention by another library's names."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from attune._errors import AttuneError, BadInputError

_FUNCTIONS = "functions are translated by attune.torch.flex_attention(q, k, v, score_mod, mask_mod=mask_mod)"
_TENSOR = (
    'look it up in words: mask="live[b, q_idx, kv_idx]", tensors={"live": live}, which is bool; a bias is '
    "added in score"
)
_OF_CALLS = {
    "causal": 'say mask="causal"',
    "is_causal": 'say mask="causal"; where there are not as many keys as queries, scaled_dot_product_attention\'s is '
    '"causal_top_left"',
    "softmax_scale": "it is called scale",
    "sm_scale": "it is called scale",
    "scaling": "it is called scale",
    "dropout_p": "it is called dropout",
    "p": "it is called dropout",
    "window_size": 'say mask="sliding_window(n)" for the query\'s position and the n - 1 before it, which is '
    '(n - 1, 0); for (left, right) mask="q_pos - kv_idx <= left and kv_idx - q_pos <= right", '
    'scalars={"left": left, "right": right}; -1 is no limit: leave that half out',
    "softcap": 'say score="cap * tanh(score / cap)", scalars={"cap": softcap}',
    "alibi_slopes": 'say score="score - slope[h] * abs(kv_idx - q_pos)", tensors={"slope": alibi_slopes}',
    "attn_mask": _TENSOR,
    "key_padding_mask": 'say mask="live[b, kv_idx]", tensors={"live": live}, true where a key is there',
    "attention_mask": 'say mask="live[b, kv_idx]", tensors={"live": live}, true where a key is there',
    "attn_bias": 'say score="score + bias[h, q_idx, kv_idx]", tensors={"bias": bias}',
    "bias": 'say score="score + bias[h, q_idx, kv_idx]", tensors={"bias": bias}',
    "score_mod": _FUNCTIONS,
    "mask_mod": _FUNCTIONS,
    "block_mask": _FUNCTIONS,
    "cu_seqlens": "it is called cu_q",
    "cu_seqlens_q": "it is called cu_q",
    "cu_seqlens_k": "it is called cu_kv",
    "cu_seqlens_kv": "it is called cu_kv",
    "max_seqlen_q": "leave it out: the offsets say it",
    "max_seqlen_k": "leave it out: the offsets say it",
    "max_seqlen_kv": "leave it out: the offsets say it",
    "seqused_q": "it is called used_q",
    "seqused_k": "it is called used_kv",
    "cache_seqlens": "it is called used_kv, and counts the new tokens",
    "block_table": "it is called page_table",
    "enable_gqa": "leave it out: q may have a multiple of the heads of k and v",
    "deterministic": "torch.use_deterministic_algorithms(True) is followed; elsewhere a spec says it",
    "return_attn_probs": "probabilities are not kept; return_lse=True gives the rows' logarithms of sums",
    "return_softmax_lse": "it is called return_lse",
    "out": "O is a new array",
}  # fmt: skip


def refuse_unknown(names: Collection[str], known: Collection[str]) -> None:
    """Raises TypeError where one of `names` is no argument of attune.attention."""
    for name in names:
        if name not in known:
            advice = _OF_CALLS.get(name)
            raise TypeError(
                f"attention() got an unexpected keyword argument '{name}'" + (f": {advice}" if advice else "")
            )


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """At the program's own line: the nearest one that is of this package, torch and transformers no more."""
    libraries = [getattr(sys.modules.get(name), "__file__", None) for name in ("torch", "transformers")]
    inside = [os.path.dirname(file) + os.sep for file in (__file__, *libraries) if file]
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(tuple(inside)):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def check_words(words: Mapping[str, Any], of_names: Mapping[str, Any]) -> None:
    """`words` are expressions, `of_names` what is given by name; any of them may be None.

    Raises:
        BadInputError: one is of another kind.
    """
    for name, text in words.items():
        if text is not None and not isinstance(text, str):
            advice = _FUNCTIONS if callable(text) else _TENSOR if hasattr(text, "dtype") else 'such as mask="causal"'
            raise BadInputError(f"`{name}` is a {type(text).__name__}, and an expression is text", advice)
    for name, given in of_names.items():
        if given is not None and not isinstance(given, Mapping):
            raise BadInputError(
                f"`{name}` is a {type(given).__name__}, and what it brings has names", f'such as {name}={{"doc": ...}}'
            )


_MISSING = re.compile(r"unknown (?:name|tensor) `(\w+)`|argument `(\w+)` of `\w+` is the name of a tensor")
_warned_of_layout = False


def explained(error: AttuneError, given: Collection[str]) -> AttuneError:
    """An error of words in which a name stands that is none of the tensors and scalars that were given."""
    found = _MISSING.search(error.message)
    name = next((each for each in found.groups() if each), "") if found else ""
    if not name or name in given or "did you mean" in error.hint:
        return error
    of_name = f'hand over what it is: tensors={{"{name}": ...}}, or scalars={{"{name}": ...}} if it is a number'
    report = error.args[0]
    error.args = (report.replace(f"= {error.hint}", f"= {of_name}") if error.hint else f"{report}\n      = {of_name}",)
    error.hint = of_name
    return error


def warn_of_short(words: Collection[str | None], sizes: Mapping[str, Sequence[int]], q_len: int, kv_len: int) -> None:
    """Of tensors that have fewer entries than there are positions, by which the words look them up: an index is
    clamped."""
    text = " ".join([each for each in words if each])
    for name, own in sizes.items():
        at = re.search(rf"\b{name}\[(?:[^\[\]]*,)?\s*(q_idx|kv_idx)\s*\]|\bdocument\(\s*{name}\s*\)", text)
        least = 0 if at is None else q_len if at[1] == "q_idx" else kv_len
        if own and own[-1] < least and own[-1] != 1:
            kind = "queries" if at is not None and at[1] == "q_idx" else "keys"
            warn(
                f"attune: `{name}` has {own[-1]} entries, and there are {least} {kind}: those behind its end read "
                "its last entry. Where that is meant, say so by `dims`"
            )


def warn_of_layout(q_sizes: Sequence[int], k_sizes: Sequence[int]) -> None:
    """Of operands whose layout nobody said, and of which more heads than keys are read: once a process."""
    global _warned_of_layout
    if _warned_of_layout or not 0 < k_sizes[1] < k_sizes[2] or q_sizes[1] == 1:
        return
    _warned_of_layout = True
    batch, length, heads, _ = q_sizes
    warn(
        f"attune: q of {tuple(q_sizes)} is read as batch {batch}, length {length}, {heads} heads. Where heads come "
        'before lengths, as in scaled_dot_product_attention, say layout="bhsd"; layout="bshd" is silent'
    )

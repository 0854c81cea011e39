"""Writes a spec's YAML from Python values. The library judges it; only what would not stay one value is refused."""

from __future__ import annotations

import numbers
import re
from collections.abc import Mapping, Sequence

from attune._errors import BadInputError

# What scalars may be: a value is folded into the kernel, a type is handed over at launch.
ScalarValue = bool | int | float | type[int] | type[float]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TENSOR = re.compile(r"\s*(?P<dtype>\w+)\s*\[(?P<dims>[\w\s,()+*/-]*)\]\s*(?P<grad>grad)?\s*")


def _name(what: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadInputError(f"{what} `{name}` is no name", "letters, digits and `_`, not beginning with a digit")
    return name


def _number(what: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, numbers.Real):  # NumPy's, too
        value = int(value) if isinstance(value, numbers.Integral) else float(value)
    if not isinstance(value, (int, float)):
        hint = f"{what}.item() is one, once it has been waited for" if hasattr(value, "item") else ""
        raise BadInputError(f"`{what}` is a {type(value).__name__}, not a number", hint)
    return repr(value)


def _scalar(name: str, value: ScalarValue) -> str:
    return value.__name__ if isinstance(value, type) and value in (int, float) else _number(name, value)


def _tensor(name: str, declaration: str) -> str:
    parts = _TENSOR.fullmatch(declaration) if isinstance(declaration, str) else None
    if not parts:
        raise BadInputError(
            f"tensor `{name}` is declared as `{declaration}`", 'write its dtype and dims: "int32[batch, kv_len]"'
        )
    grad = ", grad: true" if parts["grad"] else ""
    return f"{{dtype: {parts['dtype']}, dims: [{parts['dims'].strip()}]{grad}}}"


def _expression(key: str, text: str) -> list[str]:
    """A block scalar: its lines stay as they were written, so that errors show them, and nothing in them is YAML."""
    return [f"{key}: |2-", *("  " + line for line in text.splitlines())]


def write_spec(
    *,
    name: str,
    dtype: str,
    head_dim: int | tuple[int, int],
    layout: str,
    mask: str | None,
    score: str | None,
    sink: str | None,
    scalars: Mapping[str, ScalarValue],
    tensors: Mapping[str, str],
    dropout: float | type[float],
    scale: float | type[float] | None,
    passes: Sequence[str],
    precision: str | None = None,
    kv_dtype: str | None = None,
    v_in_k: bool = False,
    shared_prefixes: bool = False,
    batch_invariant: bool = False,
    seed_on_device: bool = False,
) -> str:
    """The spec as text. Expressions come last: their lines are what errors point at."""
    qk, v = head_dim if isinstance(head_dim, tuple) else (head_dim, head_dim)
    lines = [
        "attune: 1",
        f"name: {_name('the spec', name)}",
        f"dtype: {_name('dtype', dtype)}",
        f"head_dim: {{qk: {_number('head_dim', qk)}, v: {_number('head_dim', v)}}}",
        f"layout: {_name('layout', layout)}",
        f"passes: [{', '.join(_name('pass', each) for each in passes)}]",
    ]
    if precision is not None:
        lines.append(f"precision: {_name('precision', precision)}")
    if kv_dtype is not None:
        lines.append(f"kv_dtype: {_name('kv_dtype', kv_dtype)}")
    switches = {"v_in_k": v_in_k, "shared_prefixes": shared_prefixes, "batch_invariant": batch_invariant}
    lines += [f"{key}: true" for key, is_on in switches.items() if is_on]
    if scalars:
        lines.append("scalars:")
        lines += [f"  {_name('scalar', key)}: {_scalar(key, value)}" for key, value in scalars.items()]
    if tensors:
        lines.append("tensors:")
        lines += [f"  {_name('tensor', key)}: {_tensor(key, value)}" for key, value in tensors.items()]
    if scale is not None:
        lines.append(f"softmax_scale: {_scalar('scale', scale)}")
    if seed_on_device:
        lines.append(f"dropout: {{p: {_scalar('dropout', dropout)}, seed: device}}")
    elif dropout:
        lines.append(f"dropout: {_scalar('dropout', dropout)}")
    for key, text in (("mask", mask), ("score", score), ("sink", sink)):
        if text is not None:
            lines += _expression(key, text)
    return "\n".join(lines) + "\n"

"""Scales of a cache of fp8: what elements of k and v are multiplied by. docs/fp8_cache.md has the rules."""

from __future__ import annotations

import dataclasses
from typing import Any

from attune._errors import BadInputError
from attune._view import View


@dataclasses.dataclass(slots=True)
class Scales:
    """float32, as they broadcast to [slices, kv_heads]: [] or [1] of the tensor, [kv_heads] of each head, [slices, 1]
    of each slice, [slices, kv_heads] of each head of one. Slices are pages, sequences of a batch, or one of packed
    sequences. No `v` where V is in the columns of K."""

    k: View
    v: View | None = None


def scales_of(
    is_scaled: bool, k: View | None, v: View | None, has_v: bool, slices: int, kv_heads: int, device: str
) -> Scales | None:
    """What a launch is given; None of a cache that is not of fp8.

    Raises:
        BadInputError: scales are missing, are not wanted, or do not fit.
    """
    given = {"k_scales": k, "v_scales": v}
    if not is_scaled:
        for name, view in given.items():
            if view is not None:
                raise BadInputError(
                    f"`{name}` is given, and K and V are not of fp8",
                    "scales go with a cache of float8_e4m3fn, or of uint8 that holds its bytes",
                )
        return None
    wanted = ("k_scales", "v_scales") if has_v else ("k_scales",)
    for name, view in given.items():
        if view is None and name in wanted:
            raise BadInputError(
                f"a cache of fp8 wants `{name}`", "what elements are multiplied by: float32; one 1 where they are bare"
            )
        if view is not None and name not in wanted:
            raise BadInputError(f"`{name}` is given, and there are no values apart from the keys")
        if view is not None:
            strides_of(name, view, slices, kv_heads)
            if view.device != device:
                raise BadInputError(f"`{name}` is on {view.device}, and the keys on {device}")
    assert k is not None
    return Scales(k, v)


def strides_of(name: str, view: View, slices: int, kv_heads: int) -> tuple[int, int]:
    """In elements, from one slice to the next and from one head to the next; 0: all have the same.

    Raises:
        BadInputError: it is no float32, or does not broadcast to [slices, kv_heads].
    """
    if view.dtype != "float32":
        raise BadInputError(f"`{name}` is {view.dtype}, not float32")
    count = len(view.sizes)
    sizes, strides = (1,) * (2 - count) + view.sizes, (0,) * (2 - count) + view.strides
    if count > 2 or sizes[0] not in (1, slices) or sizes[1] not in (1, kv_heads):
        raise BadInputError(
            f"`{name}` is {view.sizes}, which does not broadcast to [{slices}, {kv_heads}]",
            "[] of the tensor, [kv_heads] of each head, [pages, 1] of each page, [pages, kv_heads] of each head of one",
        )
    slice_stride, head_stride = (0 if size == 1 else step for size, step in zip(sizes, strides, strict=True))
    if slice_stride < 0 or head_stride < 0:
        raise BadInputError(f"`{name}` has strides {view.strides}, which go backwards", "copy it")
    return slice_stride, head_stride


def fill(args: Any, scales: Scales | None, slices: int, kv_heads: int) -> None:
    """The members of att_forward_args or att_append_args."""
    if scales is None:
        return
    for name, view in (("k", scales.k), ("v", scales.v)):
        if view is not None:
            of_slice, of_head = strides_of(f"{name}_scales", view, slices, kv_heads)
            setattr(args, f"{name}_scales", view.pointer)
            setattr(args, f"{name}_scale_page_stride", of_slice)
            setattr(args, f"{name}_scale_head_stride", of_head)

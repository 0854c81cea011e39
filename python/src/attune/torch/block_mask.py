"""Block masks with torch's names. Attune's kernels need none: blocks are made if somebody reads them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import flex_attention as torch_flex

MaskMod = Callable[[Any, Any, Any, Any], Any]

# What torch's BlockMask holds, and this one makes when it is read; some versions of torch have more of it.
_BLOCKS = frozenset(inspect.signature(torch_flex.BlockMask).parameters) - {"seq_lengths", "BLOCK_SIZE", "mask_mod"}

_create_blocks = torch_flex.create_block_mask  # whatever stands under the name later
# What it takes behind `_compile`, which depends on torch's version.
_CREATE_OPTIONS = tuple(inspect.signature(_create_blocks).parameters)[8:]


def _version_of(blocks: Any) -> int | None:
    """Another one where they were changed in place. None: nobody tells."""
    if torch.compiler.is_dynamo_compiling() or not isinstance(blocks, torch.Tensor) or blocks.is_inference():
        return None
    return blocks._version


class BlockMask(torch_flex.BlockMask):
    """torch's BlockMask, of a mask_mod whose blocks are made by torch when they are first read.

    What torch's methods make of it (a slice, `_adjust`) is a block mask of blocks, as there.
    """

    _made_of: MaskMod | None
    _read: tuple[tuple[str, Any, int | None], ...]  # blocks that were made, and their versions
    _sizes: tuple[int, int, int, int]
    _device: torch.device
    _options: dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._made_of = None

    @classmethod
    def of_mask_mod(
        cls,
        mask_mod: MaskMod,
        sizes: tuple[int, int, int, int],
        device: torch.device,
        block_size: tuple[int, int],
        options: dict[str, Any] | None = None,
    ) -> BlockMask:
        """sizes: batch and heads (1: all are alike), q_len, kv_len. options: what else torch is told of the blocks."""
        mask = cls.__new__(cls)
        mask.mask_mod = mask._made_of = mask_mod
        mask.seq_lengths, mask.BLOCK_SIZE = sizes[2:], block_size
        mask._sizes, mask._device, mask._options, mask._read = sizes, device, options or {}, ()
        return mask

    def is_its_mask_mod(self) -> bool:
        """Whether the mask_mod says all: blocks that nobody changed and nobody need look at."""
        if self._made_of is None or self.mask_mod is not self._made_of:
            return False
        if not torch.compiler.is_dynamo_compiling():
            own = vars(self)
            return _BLOCKS.isdisjoint(own) or self._is_read(own)
        # Dynamo's guards are of attributes that are read, and not of which there are.
        return all([getattr(self, name) is blocks for name, blocks, _ in self._read])

    def _is_read(self, own: dict[str, Any]) -> bool:
        """Whether there are the blocks that were made, and as they were made."""
        known = {name for name, *_ in self._read}
        return known == own.keys() & _BLOCKS and all(
            [own[name] is blocks and version in (None, _version_of(blocks)) for name, blocks, version in self._read]
        )

    def __getstate__(self) -> dict[str, Any]:
        """Of a copy: blocks that say no more than the mask_mod are made anew where they are read."""
        state = dict(vars(self))
        if self.is_its_mask_mod():
            state = {name: value for name, value in state.items() if name not in _BLOCKS}
            state["_read"] = ()
        return state

    @property
    def device(self) -> torch.device:
        """On which blocks are, or would be."""
        return self._device if self._made_of is not None else self.kv_indices.device

    @property
    def shape(self) -> tuple[int, ...]:
        """Batch, heads, q_len and kv_len that it was made for."""
        if self._made_of is not None:
            return self._sizes
        return (*self.kv_indices.shape[:-2], *self.seq_lengths)  # super() is none of what Dynamo traces in a property

    def __getattr__(self, attribute: str) -> Any:
        if attribute not in _BLOCKS:
            raise AttributeError(f"'BlockMask' object has no attribute '{attribute}'")
        made_of: Any = self._made_of

        def of_positions(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:  # torch counts a method's self
            return made_of(b, h, q_idx, kv_idx)

        made = _create_blocks(of_positions, *self._sizes, self._device, self.BLOCK_SIZE, **self._options)
        read = []
        for each in _BLOCKS:
            if torch.compiler.is_dynamo_compiling() or each not in vars(self):  # the others were given
                blocks = getattr(made, each)
                setattr(self, each, blocks)
                read.append((each, blocks, _version_of(blocks)))
        self._read = tuple(read)
        return getattr(self, attribute)

    def to(self, device: torch.device | str) -> torch_flex.BlockMask:
        """On another device; the tensors that the mask_mod captures stay where they are."""
        if not self.is_its_mask_mod():
            return super().to(device)
        return self.of_mask_mod(self.mask_mod, self._sizes, torch.device(device), self.BLOCK_SIZE, self._options)


def create_block_mask(
    mask_mod: MaskMod,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: torch.device | str | None = None,
    BLOCK_SIZE: int | tuple[int, int] = 128,
    _compile: bool = False,
    *more: Any,
    **options: Any,
) -> BlockMask:
    """torch's create_block_mask without its cost: nothing is evaluated, however long the sequences are.

    Args:
        mask_mod: mask_mod(b, h, q_idx, kv_idx) -> bool scalar, true where the key is live.
        B, H: batch and query heads; None: the mask is alike for all.
        Q_LEN, KV_LEN: lengths of the launch that it is for.
        device: of the blocks, should they be read; None: the current accelerator, else the CPU.
        BLOCK_SIZE: of the blocks, should they be read: positions, or a pair of queries and keys.
        _compile: ignored.
        more, options: whatever else this version of torch takes; for the blocks, should they be read.
    """
    if len(more) > len(_CREATE_OPTIONS):
        raise TypeError(f"create_block_mask() takes at most {len(_CREATE_OPTIONS)} more arguments by place, not {len(more)}")
    for name, value in zip(_CREATE_OPTIONS, more, strict=False):  # so does torch's own where _compile is true
        options[name] = value
    for name in options:  # as torch 2.11 traces it: of a set's difference from a dict's keys it makes an error
        if name not in _CREATE_OPTIONS:
            raise TypeError(f"create_block_mask() got an unexpected keyword argument '{name}'")
    if device is None:
        device = torch.accelerator.current_accelerator() or "cpu"
    block_size = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else BLOCK_SIZE
    return BlockMask.of_mask_mod(mask_mod, (B or 1, H or 1, Q_LEN, KV_LEN), torch.device(device), block_size, options)


def _dense(counts: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """[..., rows, columns] of bool: which blocks a list of `counts` leading `indices` a row names."""
    columns = indices.shape[-1]
    listed = torch.arange(columns, device=indices.device) < counts[..., None]
    # What a row does not list is written to a column beyond the last; so are pages that a sequence has not (-1).
    places = torch.where(listed & (indices >= 0), indices.long(), columns)
    dense = torch.zeros(*indices.shape[:-1], columns + 1, dtype=torch.bool, device=indices.device)
    return dense.scatter_(-1, places, True)[..., :columns].contiguous()


def _own_dims(table: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """A table without batch and heads where all are alike, and which of the two it has. A look-up by a constant beside
    positions would do, but not in torch 2.9's vmap."""
    while table.dim() < 4:
        table = table[None]
    own = [at for at in (0, 1) if table.shape[at] > 1]
    return table[tuple([slice(None) if at in own else 0 for at in (0, 1)])], own


def mask_mod_of(mask: torch_flex.BlockMask) -> MaskMod:
    """A mask_mod that says the same as the block mask: where the blocks come from elsewhere, tables of them are looked
    up, and mask_mod counts in partial blocks only."""
    if isinstance(mask, BlockMask) and mask.is_its_mask_mod():
        return mask.mask_mod
    return mask_mod_of_blocks(
        mask.mask_mod,
        mask.BLOCK_SIZE,
        mask.kv_num_blocks,
        mask.kv_indices,
        mask.full_kv_num_blocks,
        mask.full_kv_indices,
    )


def mask_mod_of_blocks(
    mask_mod: MaskMod,
    block_size: tuple[int, int],
    kv_num_blocks: torch.Tensor,
    kv_indices: torch.Tensor,
    full_kv_num_blocks: torch.Tensor | None,
    full_kv_indices: torch.Tensor | None,
) -> MaskMod:
    """The same of what a block mask holds, by torch's names."""
    partial = _own_dims(_dense(kv_num_blocks, kv_indices))
    full = None
    if full_kv_num_blocks is not None and full_kv_indices is not None:
        full = _own_dims(_dense(full_kv_num_blocks, full_kv_indices))
    q_size, kv_size = block_size
    if torch.compiler.is_dynamo_compiling():  # constants of the kernel, where lengths are symbols
        from torch._dynamo.comptime import comptime

        comptime.force_static(q_size)
        comptime.force_static(kv_size)

    def of(looked_up: tuple[torch.Tensor, list[int]], b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        table, own = looked_up
        return table[(*[(b, h)[at] for at in own], q_idx // q_size, kv_idx // kv_size)]

    def by_blocks(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        live = of(partial, b, h, q_idx, kv_idx) & mask_mod(b, h, q_idx, kv_idx)
        return live if full is None else live | of(full, b, h, q_idx, kv_idx)

    return by_blocks

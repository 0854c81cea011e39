"""A cache of keys and values in pages in any order, as serving engines keep it, and who reads it there: Attune and,
where its package can be imported, FlashInfer."""

import dataclasses
import sys

import attune_c
import contestants
import side_by_side


@dataclasses.dataclass
class Pages:
    caches: list  # of k and v, or of both in one: [pages, page_size, kv_heads, dim]
    table: object  # int32 [batch, the most pages of a sequence]
    size: int
    lengths: list  # keys of each sequence

    def numbers(self, torch):
        """As FlashInfer is told: offsets, pages of one sequence behind the other's, keys of each last page."""
        counts = [pages_of(length, self.size) for length in self.lengths]
        offsets = torch.tensor([0, *counts], device="cuda").cumsum(0).to(torch.int32)
        flat = torch.cat([self.table[b, :count] for b, count in enumerate(counts)])
        last = [length - (count - 1) * self.size for length, count in zip(self.lengths, counts)]
        return offsets, flat, torch.tensor(last, dtype=torch.int32, device="cuda")

    def used(self, torch):
        return torch.tensor(self.lengths, dtype=torch.int32, device="cuda")


def pages_of(length, size):
    return -(-length // size)


def in_pages(caches, size, torch):
    """`caches`: of each its sequences, [keys, kv_heads, dim]."""
    lengths = [len(rows) for rows in caches[0]]
    counts = [pages_of(length, size) for length in lengths]
    order = torch.randperm(sum(counts), device="cuda")
    table = torch.zeros(len(lengths), max(counts), dtype=torch.int32, device="cuda")
    paged = [torch.zeros(sum(counts), size, *rows[0].shape[1:], dtype=rows[0].dtype, device="cuda") for rows in caches]
    begin = 0
    for b, count in enumerate(counts):
        own = order[begin:begin + count]
        table[b, :count] = own.to(torch.int32)
        for rows, pages in zip(caches, paged):
            full = lengths[b] // size
            pages[own[:full]] = rows[b][:full * size].reshape(full, size, *rows[b].shape[1:])
            if full < count:
                pages[own[full], :lengths[b] - full * size] = rows[b][full * size:]
        begin += count
    return Pages(paged, table, size, lengths)


def attune(yaml, q, columns, pages, runtime, torch):
    """`yaml`: a spec but for its layout. q: [batch, queries, heads, dim], contiguous. `columns`: of V."""
    batch, queries, heads, _ = q.shape
    k = pages.caches[0]
    shape = attune_c.Shape(batch, heads, k.shape[2], batch * queries, max(pages.lengths))
    kernel = runtime.kernel_from_yaml(yaml + "layout: paged\n", shape)
    o = torch.full((batch, queries, heads, columns), float("nan"), dtype=q.dtype, device="cuda")
    workspace = torch.zeros(max(kernel.workspace_bytes, 16), dtype=torch.uint8, device="cuda")
    cu_q = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * queries
    used = pages.used(torch)
    v = pages.caches[1].data_ptr() if len(pages.caches) > 1 else None
    bound = kernel.bind(q.data_ptr(), k.data_ptr(), v, o.data_ptr(), None, workspace.data_ptr(), {},
                        cu_q=cu_q.data_ptr(), used_kv=used.data_ptr(), page_table=pages.table.data_ptr(),
                        pages_per_sequence=pages.table.shape[1], page_size=pages.size, pages=len(k))

    def launch():
        bound(torch.cuda.current_stream().cuda_stream)

    launch.keep = (q, pages, workspace, cu_q, used)
    return contestants.Entry(launch, lambda: o.transpose(1, 2), {"plan": kernel.plan})


def flashinfer_decode(q, pages, tensor_cores, torch):
    """FlashInfer's batch decode; several queries of a sequence are its last tokens, causally. Its plan is made here, on
    the host, and is no part of a launch."""
    import flashinfer

    batch, queries, heads, dim = q.shape
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        torch.zeros(256 << 20, dtype=torch.uint8, device="cuda"), "NHD", use_tensor_cores=tensor_cores, backend="fa2")
    more = {"q_len_per_req": queries} if queries > 1 else {}
    wrapper.plan(*pages.numbers(torch), heads, pages.caches[0].shape[2], dim, pages.size, q_data_type=q.dtype,
                 kv_data_type=q.dtype, **more)
    rows, state = q.view(batch * queries, heads, dim), {}

    def launch():
        state["o"] = wrapper.run(rows, tuple(pages.caches))

    return contestants.Entry(launch, lambda: state["o"].view(batch, queries, heads, dim).transpose(1, 2))


def flashinfer_xqa(q, pages, torch):
    """TensorRT-LLM's XQA kernels as FlashInfer has them: one query a sequence."""
    import flashinfer.decode

    batch, queries, heads, dim = q.shape
    if queries > 1:
        raise ValueError("one query a sequence")
    space = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")
    used, rows, state = pages.used(torch), q.view(batch, heads, dim), {}

    def launch():
        state["o"] = flashinfer.decode.xqa_batch_decode_with_kv_cache(
            rows, tuple(pages.caches), space, pages.table, used, pages.table.shape[1] * pages.size,
            bmm1_scale=dim**-0.5, bmm2_scale=1.0)

    return contestants.Entry(launch, lambda: state["o"].view(batch, 1, heads, dim).transpose(1, 2))


def flashinfer_mla(q, pages, scale, backend, torch):
    """FlashInfer's latent attention, one query a sequence; a row of the cache is the latent and the other columns."""
    import flashinfer.mla

    batch, _, heads, dim = q.shape
    latent = 512
    wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(
        torch.zeros(256 << 20, dtype=torch.uint8, device="cuda"), backend=backend)
    offsets, numbers, _ = pages.numbers(torch)
    metadata = flashinfer.mla.MLAPlanMetadata.csr(torch.arange(batch + 1, dtype=torch.int32, device="cuda"), offsets,
                                                  numbers, pages.used(torch))
    wrapper.plan(metadata=metadata, num_heads=heads, head_dim_ckv=latent, head_dim_kpe=dim - latent,
                 page_size=pages.size, causal=False, sm_scale=scale, q_data_type=q.dtype, kv_data_type=q.dtype)
    rows, cache, state = q.view(batch, heads, dim), pages.caches[0].squeeze(2), {}

    def launch():
        state["o"] = wrapper.run(query=rows, kv_cache=cache)

    return contestants.Entry(launch, lambda: state["o"].reshape(batch, 1, heads, latent).transpose(1, 2))


def fastest(makers, flush, torch):
    """Of a peer's ways to do it, () -> Entry by name, the fastest that works; its name stands in the notes."""
    entries = {}
    for name, make in makers.items():
        try:
            entry = make()
            entry.launch()
            torch.cuda.synchronize()
            entries[name] = entry
        except Exception as error:  # a kernel that is not there, or not for this shape
            print(f"{name}: {str(error)[:200]}", file=sys.stderr)
    if not entries:
        raise ValueError("none of its ways works")
    times, _ = side_by_side.time_entries(entries, flush, torch)
    best = min(times, key=times.get)
    entries[best].notes["way"] = best
    return entries[best]


def flashinfer_ways(q, pages, torch):
    return {
        f"tensor cores, pages of {pages.size}": lambda: flashinfer_decode(q, pages, True, torch),
        f"CUDA cores, pages of {pages.size}": lambda: flashinfer_decode(q, pages, False, torch),
        f"XQA, pages of {pages.size}": lambda: flashinfer_xqa(q, pages, torch),
    }

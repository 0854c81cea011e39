#include "tuner/host/copy_launch.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/capi/check_sequences.hpp"

namespace attune {
namespace {

// A matrix of the host's: slices along the batch stride, each [seq, heads, dim].
struct Matrix {
  const void* data;
  att::Strides strides;
  std::int64_t slices, seq, heads, dim;
};

// Elements from the lowest to behind the highest of a slice, and where the lowest lies.
struct Extent {
  std::int64_t lowest, count;
};
Extent extent_of(const Matrix& from) {
  Extent extent{0, from.dim};
  for (const auto& [stride, size] :
       {std::pair<std::int64_t, std::int64_t>(from.strides.seq, from.seq),
        {from.strides.head, from.heads}}) {
    const std::int64_t reach = stride * (size - 1);
    extent.lowest += std::min<std::int64_t>(reach, 0);
    extent.count += std::abs(reach);
  }
  return extent;
}

class Copier {
 public:
  Copier(Device& device, const AttentionSpec& spec, GivenLaunch& launch)
      : device_(device), spec_(spec), launch_(launch) {}

  // A slice comes as it lies, gaps and all, and is put in order here: a GPU copies few large pieces
  // faster than many rows.
  Status copy(LaunchPart part, const Matrix& from) {
    const auto width = static_cast<std::size_t>(element_bytes(spec_.dtype));
    const auto bytes = [&](std::int64_t elements) {
      return static_cast<std::size_t>(elements) * width;
    };
    const std::span<std::byte> to = launch_.room(part);
    const att::Strides order = contiguous_strides(spec_.layout, from.seq, from.heads, from.dim);
    const Extent extent = extent_of(from);
    std::vector<std::byte> slice(bytes(extent.count));
    for (std::int64_t b = 0; b < from.slices; ++b) {
      const auto* first =
          static_cast<const std::byte*>(from.data) +
          (b * from.strides.batch + extent.lowest) * static_cast<std::int64_t>(width);
      ATT_CHECK(device_.copy_to_host(slice.data(), first, slice.size()));
      for (std::int64_t h = 0; h < from.heads; ++h) {
        for (std::int64_t i = 0; i < from.seq; ++i) {
          const std::int64_t at = h * from.strides.head + i * from.strides.seq - extent.lowest;
          const std::int64_t goes = b * order.batch + h * order.head + i * order.seq;
          std::memcpy(&to[bytes(goes)], &slice[bytes(at)], bytes(from.dim));
        }
      }
    }
    return ok_status();
  }

  // What is contiguous.
  Status copy(LaunchPart part, const void* from, std::size_t slot = 0) {
    const std::span<std::byte> to = launch_.room(part, slot);
    return to.empty() ? ok_status() : device_.copy_to_host(to.data(), from, to.size());
  }

 private:
  Device& device_;
  const AttentionSpec& spec_;
  GivenLaunch& launch_;
};

// What kernels would clamp; an oracle takes it at its word. Numbers of pages are tidied instead.
Status check_lengths(const GivenLaunch& launch) {
  const ProblemShape& s = launch.facts().shape;
  const HostSequences given = host_sequences(launch);
  if (given.empty()) return ok_status();
  return check_sequences({.batch = s.batch,
                          .q_len = s.q_len,
                          .kv_len = s.kv_len,
                          .cu_q = given.cu_q,
                          .cu_kv = given.cu_kv,
                          .used_q = given.used_q,
                          .used_kv = given.used_kv});
}

// Numbers that are no page, whatever they are, as an oracle knows them.
void tidy_pages(GivenLaunch& launch) {
  const std::int64_t count = launch.facts().pages.count;
  const std::span<std::byte> table = launch.room(LaunchPart::kPageTable);
  for (std::size_t at = 0; at < table.size(); at += sizeof(std::int32_t)) {
    std::int32_t page = 0;
    std::memcpy(&page, &table[at], sizeof page);
    if (page >= 0 && page < count) continue;
    page = -1;
    std::memcpy(&table[at], &page, sizeof page);
  }
}

}  // namespace

Result<std::unique_ptr<GivenLaunch>> copy_launch(Device& device, const AttentionSpec& spec,
                                                 const ProblemShape& shape, Pass pass,
                                                 const att::LaunchParams& params) {
  if (has_scaled_cache(spec)) {
    return Error{.kind = ErrorKind::kUnsupported,
                 .id = "tune-unsupported",
                 .message = "a launch whose cache has scales cannot be copied yet",
                 .hint = "`attune tune` tunes such a spec on data of its own"};
  }
  const bool backward = pass == Pass::kBackward;
  const att::SequenceList& sequences = params.sequences;
  ATT_CHECK(device.synchronize());
  std::uint64_t state[] = {params.dropout_seed, params.dropout_offset};
  if (spec.seed_on_device) {
    ATT_CHECK(device.copy_to_host(state, dropout_state(params), sizeof state));
  }
  LaunchFacts facts{.shape = shape,
                    .softmax_scale = params.softmax_scale,
                    .drop_below = params.dropout_drop_below,
                    .dropout_seed = state[0],
                    .dropout_offset = state[1],
                    .has_used_q = sequences.used_q != nullptr,
                    .has_used_kv = sequences.used_kv != nullptr,
                    .has_d_o = backward,
                    .has_d_lse = backward && params.d_lse != nullptr};
  std::ranges::copy(params.scalars, facts.scalars);
  if (is_paged(spec)) {
    const att::PageTable& table = params.page_table;
    facts.pages = {table.pages_per_sequence, table.page_size, table.pages};
  }
  ATT_TRY(std::unique_ptr<GivenLaunch> launch, GivenLaunch::make(spec, facts));
  Copier copier(device, spec, *launch);
  const auto [batch, heads, kv_heads, q_len, kv_len] = shape;
  const std::int64_t slices = slice_count(spec, shape);
  const std::int64_t key_slices = is_paged(spec) ? facts.pages.count : slices;
  const std::int64_t rows = is_paged(spec) ? facts.pages.size : kv_len;
  const int qk = spec.head_dim_qk, v = spec.head_dim_v;
  ATT_CHECK(copier.copy(LaunchPart::kQ, {params.q, params.q_stride, slices, q_len, heads, qk}));
  ATT_CHECK(
      copier.copy(LaunchPart::kK, {params.k, params.k_stride, key_slices, rows, kv_heads, qk}));
  if (!spec.v_in_k) {
    ATT_CHECK(
        copier.copy(LaunchPart::kV, {params.v, params.v_stride, key_slices, rows, kv_heads, v}));
  }
  if (backward) {
    ATT_CHECK(
        copier.copy(LaunchPart::kDO, {params.d_o, params.d_o_stride, slices, q_len, heads, v}));
    ATT_CHECK(copier.copy(LaunchPart::kDLse, params.d_lse));
  }
  ATT_CHECK(copier.copy(LaunchPart::kCuQ, sequences.cu_q));
  ATT_CHECK(copier.copy(LaunchPart::kCuKv, sequences.cu_kv));
  ATT_CHECK(copier.copy(LaunchPart::kUsedQ, sequences.used_q));
  ATT_CHECK(copier.copy(LaunchPart::kUsedKv, sequences.used_kv));
  ATT_CHECK(copier.copy(LaunchPart::kPageTable, params.page_table.entries));
  for (std::size_t slot = 0; slot < spec.environment.tensors.size(); ++slot) {
    ATT_CHECK(copier.copy(LaunchPart::kTensor, params.tensors[slot].data, slot));
  }
  ATT_CHECK(check_lengths(*launch));
  tidy_pages(*launch);
  return launch;
}

}  // namespace attune

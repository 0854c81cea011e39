#include "tests/verification/scattered.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "generator/spec/shape.hpp"

namespace attune::verification {
namespace {

constexpr std::byte kNothing{0xFF};  // NaN in every dtype
constexpr std::int64_t kStrideBytes = 16;

}  // namespace

// [slices, heads, rows, dim], of elements of some bytes.
struct Scattered::Matrix {
  const char* name;
  std::int64_t slices, heads, rows, dim, element;
  bool is_output;
  const void* from;      // where the contiguous launch has it
  att::Strides strides;  // of that
  // Where it is now.
  att::Strides now = {};
  std::int64_t first = 0, bytes = 0;
  void* memory = nullptr;

  std::int64_t row_bytes() const { return dim * element; }
  std::int64_t contiguous_bytes() const { return slices * heads * rows * row_bytes(); }
  // visit(bytes from `from`, bytes from `memory`) of each row.
  template <typename Visit>
  void each(const Visit& visit) const {
    for (std::int64_t b = 0; b < slices; ++b) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t i = 0; i < rows; ++i) {
          visit((b * strides.batch + h * strides.head + i * strides.seq) * element,
                first + (b * now.batch + h * now.head + i * now.seq) * element);
        }
      }
    }
  }
  void* data() const { return static_cast<std::byte*>(memory) + first; }

  // Whether all slices, or all heads, are the first one.
  bool is_repeated(const std::vector<std::byte>& all, bool by_head) const {
    bool same = true;
    for (std::int64_t b = 0; b < slices; ++b) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t i = 0; i < rows; ++i) {
          const std::int64_t at = b * strides.batch + h * strides.head + i * strides.seq;
          const std::int64_t like = at - (by_head ? h * strides.head : b * strides.batch);
          same &= std::memcmp(&all[static_cast<std::size_t>(at * element)],
                              &all[static_cast<std::size_t>(like * element)],
                              static_cast<std::size_t>(row_bytes())) == 0;
        }
      }
    }
    return same;
  }

  // Strides at random, and how many bytes that takes.
  void place(const std::vector<std::byte>& all, std::mt19937_64& random) {
    const std::int64_t unit = kStrideBytes / element;
    const auto gap = [&] { return random() % 2 == 0 ? 0 : unit * static_cast<int>(random() % 5); };
    struct Axis {
      std::int64_t count;
      long long* stride;
      bool may_repeat;
    };
    std::array<Axis, 3> axes = {
        {{slices, &now.batch, slices > 1 && !is_output && is_repeated(all, false)},
         {heads, &now.head, heads > 1 && !is_output && is_repeated(all, true)},
         {rows, &now.seq, false}}};
    std::ranges::shuffle(axes, random);
    std::int64_t step = (dim + unit - 1) / unit * unit + gap();
    const bool turns = random() % 24 == 0;
    const std::int64_t margin = 8 * kStrideBytes;
    first = margin;
    for (const Axis& axis : axes) {
      if (axis.may_repeat && random() % 2 == 0) {
        *axis.stride = 0;
        continue;
      }
      *axis.stride = step;
      if (turns && random() % 3 == 0) {
        *axis.stride = -step;
        first += (axis.count - 1) * step * element;
      }
      step = step * axis.count + gap();
    }
    bytes = step * element + 2 * margin;
  }
};

Scattered::Scattered(Device& device) : device_(&device) {}

Scattered::Scattered(Scattered&& other) noexcept
    : device_(other.device_),
      params_(other.params_),
      matrices_(std::exchange(other.matrices_, {})) {}

Scattered::~Scattered() {
  for (const Matrix& matrix : matrices_) device_->free(matrix.memory);
}

Status Scattered::scatter(Matrix matrix, std::mt19937_64& random) {
  std::vector<std::byte> all(static_cast<std::size_t>(matrix.contiguous_bytes()));
  ATT_CHECK(device_->copy_to_host(all.data(), matrix.from, all.size()));
  matrix.place(all, random);
  ATT_TRY(matrix.memory, device_->allocate(static_cast<std::size_t>(matrix.bytes)));
  matrices_.push_back(matrix);
  std::vector<std::byte> apart(static_cast<std::size_t>(matrix.bytes), kNothing);
  if (!matrix.is_output) {
    matrix.each([&](std::int64_t from, std::int64_t to) {
      std::copy_n(all.begin() + from, matrix.row_bytes(), apart.begin() + to);
    });
  }
  return device_->copy_to_device(matrix.memory, apart.data(), apart.size());
}

Result<Scattered> Scattered::make(Device& device, const AttentionSpec& spec,
                                  const att::LaunchParams& contiguous, Pass pass,
                                  std::mt19937_64& random) {
  Scattered made(device);
  att::LaunchParams& p = made.params_;
  p = contiguous;
  const std::int64_t slices = is_packed(spec) ? 1 : p.batch;
  const auto move = [&](const char* name, auto* pointer, att::Strides* strides, bool of_queries,
                        int dim, DType dtype) -> Status {
    const bool is_output =
        !std::is_const_v<std::remove_pointer_t<std::decay_t<decltype(*pointer)>>>;
    ATT_CHECK(made.scatter({.name = name,
                            .slices = slices,
                            .heads = of_queries ? p.heads : p.kv_heads,
                            .rows = of_queries ? p.q_len : p.kv_len,
                            .dim = dim,
                            .element = element_bytes(dtype),
                            .is_output = is_output,
                            .from = *pointer,
                            .strides = *strides},
                           random));
    *pointer = made.matrices_.back().data();
    *strides = made.matrices_.back().now;
    return ok_status();
  };
  const int qk = spec.head_dim_qk, v = spec.head_dim_v;
  ATT_CHECK(move("q", &p.q, &p.q_stride, true, qk, spec.dtype));
  if (!is_paged(spec)) {
    ATT_CHECK(move("k", &p.k, &p.k_stride, false, qk, kv_dtype(spec)));
    if (spec.v_in_k) {
      p.v = p.k;
      p.v_stride = p.k_stride;
    } else {
      ATT_CHECK(move("v", &p.v, &p.v_stride, false, v, kv_dtype(spec)));
    }
  }
  if (pass == Pass::kForward) {
    ATT_CHECK(move("o", &p.o, &p.o_stride, true, v, spec.dtype));
    return made;
  }
  const void* o = p.o;  // which this pass reads
  ATT_CHECK(move("o", &o, &p.o_stride, true, v, spec.dtype));
  p.o = const_cast<void*>(o);
  ATT_CHECK(move("d_o", &p.d_o, &p.d_o_stride, true, v, spec.dtype));
  ATT_CHECK(move("d_q", &p.d_q, &p.d_q_stride, true, qk, spec.dtype));
  ATT_CHECK(move("d_k", &p.d_k, &p.d_k_stride, false, qk, spec.dtype));
  ATT_CHECK(move("d_v", &p.d_v, &p.d_v_stride, false, v, spec.dtype));
  return made;
}

Status Scattered::gather() {
  ATT_CHECK(device_->synchronize());
  for (const Matrix& matrix : matrices_) {
    if (!matrix.is_output) continue;
    std::vector<std::byte> apart(static_cast<std::size_t>(matrix.bytes));
    ATT_CHECK(device_->copy_to_host(apart.data(), matrix.memory, apart.size()));
    std::vector<std::byte> all(static_cast<std::size_t>(matrix.contiguous_bytes()));
    matrix.each([&](std::int64_t to, std::int64_t from) {
      std::copy_n(apart.begin() + from, matrix.row_bytes(), all.begin() + to);
      std::fill_n(apart.begin() + from, matrix.row_bytes(), kNothing);
    });
    const auto written = std::ranges::find_if(apart, [](std::byte b) { return b != kNothing; });
    if (written != apart.end()) {
      return Error{.id = "test",
                   .message = fmt::format("byte {} of {} was written, which is between rows: {}",
                                          written - apart.begin(), matrix.name, text())};
    }
    ATT_CHECK(device_->copy_to_device(const_cast<void*>(matrix.from), all.data(), all.size()));
  }
  return ok_status();
}

std::string Scattered::text() const {
  std::string all;
  for (const Matrix& matrix : matrices_) {
    all += fmt::format("{}{} by {}, {}, {}", all.empty() ? "" : "; ", matrix.name, matrix.now.batch,
                       matrix.now.seq, matrix.now.head);
  }
  return all;
}

}  // namespace attune::verification

#include "tests/verification/append_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>

#include "runtime/reference/element_bits.hpp"
#include "runtime/reference/oracle.hpp"

namespace attune::append_test {
namespace {

constexpr std::size_t kGuardBytes = 4096;  // before and behind every buffer

DType dtype_of(const Problem& problem) { return static_cast<DType>(problem.options.dtype); }
DType cache_dtype_of(const Problem& problem) {
  return static_cast<DType>(problem.options.cache_dtype);
}
bool has_scales(const Problem& problem) { return cache_dtype_of(problem) == DType::kFp8E4m3; }
std::size_t width_of(const Problem& problem) {
  return static_cast<std::size_t>(element_bytes(dtype_of(problem)));
}
int rotary_of(const att_append_options& options) {
  if (options.rope == ATT_ROPE_NONE) return 0;
  return options.rotary_dim == 0 ? options.head_dim_qk : options.rotary_dim;
}

// Half an ulp of 1, and of the smallest numbers.
double unit_of(DType dtype) {
  if (dtype == DType::kFp8E4m3) return 0x1p-4;
  return dtype == DType::kBf16 ? 0x1p-8 : dtype == DType::kF16 ? 0x1p-11 : 0x1p-24;
}
double smallest_of(DType dtype) {
  if (dtype == DType::kFp8E4m3) return 0x1p-10;
  return dtype == DType::kF16 ? 0x1p-25 : 0x1p-130;
}

// Memory of the device with guards, its contents before a launch, and what they should be after.
class Buffer {
 public:
  Buffer(Device& device, std::size_t bytes) : device_(device), image_(bytes + 2 * kGuardBytes) {
    std::minstd_rand random(12345);
    for (std::size_t i = 0; i + sizeof(std::uint32_t) <= image_.size();
         i += sizeof(std::uint32_t)) {
      const auto word = static_cast<std::uint32_t>(random());
      std::memcpy(&image_[i], &word, sizeof word);
    }
    auto allocated = device_.allocate(image_.size());
    if (allocated.ok()) data_ = static_cast<std::byte*>(*allocated);
  }
  ~Buffer() { device_.free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return data_ + kGuardBytes; }
  std::byte* at(std::size_t byte) { return &image_[kGuardBytes + byte]; }
  bool upload() {
    return data_ != nullptr && device_.copy_to_device(data_, image_.data(), image_.size()).ok();
  }

  // The `bytes` at `to` are to be those at `from`.
  void expect_bytes(std::size_t to, std::span<const std::byte> from) {
    copies_.emplace_back(to, std::vector<std::byte>(from.begin(), from.end()));
  }
  // The element at byte `to` is to be `value`, made of numbers of that size.
  void expect_value(std::size_t to, double value, double size) {
    values_.push_back({to, value, size});
  }
  std::string judge(const char* name, DType dtype) {
    const auto width = static_cast<std::size_t>(element_bytes(dtype));
    std::vector<std::byte> out(image_.size());
    if (!device_.copy_to_host(out.data(), data_, out.size()).ok()) return "no copy to the host";
    for (const auto& [to, bytes] : copies_) std::ranges::copy(bytes, at(to));
    const std::vector<double> decoded =
        values_.empty() ? std::vector<double>() : decode(dtype, out);
    for (const Value& expected : values_) {
      const std::span<std::byte> bits(&out[kGuardBytes + expected.to], width);
      const double value = decoded[(kGuardBytes + expected.to) / width];
      const double limit = unit_of(dtype) * std::abs(expected.value) + smallest_of(dtype) +
                           3 * 0x1p-24 * expected.size;
      if (!(std::abs(value - expected.value) <= limit)) {
        return fmt::format("{}: element {} is {}, not {} +- {}", name, expected.to / width, value,
                           expected.value, limit);
      }
      std::ranges::copy(bits, at(expected.to));
    }
    if (std::memcmp(out.data(), image_.data(), out.size()) == 0) return "";
    const auto wrong = std::ranges::mismatch(out, image_);
    const auto byte = wrong.in1 - out.begin() - static_cast<std::ptrdiff_t>(kGuardBytes);
    return fmt::format("{}: element {} of {} was written, or copied wrongly", name,
                       byte / static_cast<std::ptrdiff_t>(width),
                       (image_.size() - 2 * kGuardBytes) / width);
  }

 private:
  struct Value {
    std::size_t to;
    double value, size;
  };
  Device& device_;
  std::vector<std::byte> image_;
  std::byte* data_ = nullptr;
  std::vector<std::pair<std::size_t, std::vector<std::byte>>> copies_;
  std::vector<Value> values_;
};

// A tensor in a buffer: element (slice, row, head, column).
struct View {
  Buffer* buffer = nullptr;
  std::int64_t first = 0;
  att_strides strides = {};
  std::size_t width = 0;
  std::vector<float> scales;  // of a cache that has any: [slice, head]
  std::int64_t heads = 0;

  double scale(std::int64_t slice, std::int64_t head) const {
    return scales.empty() ? 1 : scales[static_cast<std::size_t>(slice * heads + head)];
  }

  std::size_t byte(std::int64_t slice, std::int64_t row, std::int64_t head) const {
    return static_cast<std::size_t>(first + slice * strides.batch + row * strides.seq +
                                    head * strides.head) *
           width;
  }
  std::byte* data() const { return buffer->data() + byte(0, 0, 0); }
};

class Launch {
 public:
  Launch(Device& device, const Problem& problem, std::uint64_t seed)
      : device_(device), problem_(problem), random_(seed) {
    make_tokens();
    make_cache();
    make_scales();
    for (const auto* list : {&problem.cu_q, &problem.used_q, &problem.cu_kv, &problem.used_kv,
                             &problem.table, &problem.positions}) {
      auto& buffer = lists_.emplace_back();
      if (list->empty()) continue;
      buffer = add(list->size() * sizeof(std::int32_t));
      std::memcpy(buffer->at(0), list->data(), list->size() * sizeof(std::int32_t));
    }
    make_angles();
  }

  std::string run(att_runtime* runtime, const LaunchFunction& launch) {
    for (const auto& buffer : buffers_) {
      if (!buffer->upload()) return "no memory";
    }
    att_append_kernel* kernel = nullptr;
    if (att_append_kernel_get(runtime, &problem_.options, &kernel) != ATT_OK) {
      return att_last_error();
    }
    const att_append_args args = arguments();
    const att_status status = launch ? launch(kernel, &args) : att_append(kernel, &args, nullptr);
    const std::string error = status == ATT_OK ? "" : att_last_error();
    const bool done = device_.synchronize().ok();
    att_append_kernel_destroy(kernel);
    if (status != ATT_OK) return error;
    if (!done) return "the device does not end";
    expect();
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      if (std::string wrong = buffers_[i]->judge(names_[i], dtypes_[i]); !wrong.empty()) {
        return wrong;
      }
    }
    return "";
  }

 private:
  Buffer* add(std::size_t bytes, const char* name = "what is only read") {
    return add(bytes, name, dtype_of(problem_));
  }
  Buffer* add(std::size_t bytes, const char* name, DType dtype) {
    names_.push_back(name);
    dtypes_.push_back(dtype);
    return buffers_.emplace_back(std::make_unique<Buffer>(device_, bytes)).get();
  }
  void draw(Buffer& buffer, std::int64_t elements) {
    std::normal_distribution<double> normal;
    std::vector<double> values(static_cast<std::size_t>(elements));
    for (double& value : values) value = round_to(dtype_of(problem_), normal(random_));
    std::ranges::copy(encode(dtype_of(problem_), values), buffer.at(0));
  }

  void make_tokens() {
    const auto& [batch, heads, kv_heads, tokens, kv_len] = problem_.shape;
    const std::int64_t qk = problem_.options.head_dim_qk, v = problem_.options.head_dim_v;
    const std::size_t width = width_of(problem_);
    const auto plain = [&](std::int64_t count, std::int64_t dim, const char* name, bool drawn) {
      Buffer* buffer = add(static_cast<std::size_t>(tokens * count * dim) * width, name);
      if (drawn) draw(*buffer, tokens * count * dim);
      return View{buffer, 0, {0, count * dim, dim}, width, {}, 0};
    };
    if (problem_.fused) {
      const std::int64_t columns = heads * qk + kv_heads * (qk + v);
      Buffer* buffer = add(static_cast<std::size_t>(tokens * columns) * width, "qkv");
      draw(*buffer, tokens * columns);
      q_ = {buffer, 0, {0, columns, qk}, width, {}, 0};
      k_ = {buffer, heads * qk, {0, columns, qk}, width, {}, 0};
      v_ = {buffer, heads * qk + kv_heads * qk, {0, columns, v}, width, {}, 0};
    } else {
      q_ = plain(heads, qk, "q", true);
      k_ = plain(kv_heads, qk, "k", true);
      v_ = plain(kv_heads, v, "v", true);
    }
    q_out_ = problem_.in_place ? q_ : plain(heads, qk, "q_out", false);
  }

  void make_cache() {
    const bool paged = problem_.layout == ATT_PAGED;
    const std::int64_t kv_heads = problem_.shape.kv_heads;
    const std::int64_t slices = paged                        ? problem_.pages
                                : problem_.layout == ATT_THD ? 1
                                                             : problem_.shape.batch;
    const std::int64_t rows = paged ? problem_.page_size : problem_.shape.kv_len;
    const std::int64_t qk = problem_.options.head_dim_qk, v = problem_.options.head_dim_v;
    const std::int64_t k_slice = rows * kv_heads * qk, v_slice = rows * kv_heads * v;
    const DType dtype = cache_dtype_of(problem_);
    const auto width = static_cast<std::size_t>(element_bytes(dtype));
    if (problem_.order == Order::kFarApart) {
      const std::int64_t layers = 3, slice = layers * (k_slice + v_slice);
      Buffer* buffer = add(static_cast<std::size_t>(slices * slice) * width, "cache", dtype);
      k_cache_ = {buffer, k_slice + v_slice, {slice, kv_heads * qk, qk}, width, {}, 0};
      v_cache_ = {buffer, 2 * k_slice + v_slice, {slice, kv_heads * v, v}, width, {}, 0};
      return;
    }
    const bool heads_first = problem_.order == Order::kHeadsFirst;
    const auto one = [&](std::int64_t slice, std::int64_t dim, const char* name) {
      const att_strides tokens = {slice, kv_heads * dim, dim}, heads = {slice, dim, rows * dim};
      return View{add(static_cast<std::size_t>(slices * slice) * width, name, dtype),
                  0,
                  heads_first ? heads : tokens,
                  width,
                  {},
                  0};
    };
    k_cache_ = one(k_slice, qk, "k_cache");
    v_cache_ = one(v_slice, v, "v_cache");
  }

  void make_scales() {
    if (!has_scales(problem_)) return;
    std::uniform_real_distribution<float> scale(0.001f, 0.02f);  // some elements are too large
    const std::int64_t slices = problem_.layout == ATT_PAGED ? problem_.pages
                                : problem_.layout == ATT_THD ? 1
                                                             : problem_.shape.batch;
    for (const auto& [view, buffer] : {std::pair{&k_cache_, &k_scales_}, {&v_cache_, &v_scales_}}) {
      view->heads = problem_.shape.kv_heads;
      for (std::int64_t i = 0; i < slices * view->heads; ++i) {
        view->scales.push_back(scale(random_));
      }
      *buffer = add(view->scales.size() * sizeof(float));
      std::memcpy((*buffer)->at(0), view->scales.data(), view->scales.size() * sizeof(float));
    }
  }

  void make_angles() {
    const auto pairs = static_cast<std::size_t>(rotary_of(problem_.options) / 2);
    stride_ = 2 * pairs;  // cosines, then sines, of one row
    if (problem_.table_positions == 0) return;
    std::uniform_real_distribution<float> turn(0, 6.28f);
    for (std::int64_t i = 0; i < problem_.table_positions; ++i) {
      std::vector<float> sines;
      for (std::size_t pair = 0; pair < pairs; ++pair) {
        const float angle = turn(random_);
        angles_.push_back(1.25f * std::cos(angle));  // YaRN's have another length than 1
        sines.push_back(1.25f * std::sin(angle));
      }
      angles_.insert(angles_.end(), sines.begin(), sines.end());
    }
    angle_buffer_ = add(angles_.size() * sizeof(float));
    std::memcpy(angle_buffer_->at(0), angles_.data(), angles_.size() * sizeof(float));
  }

  att_append_args arguments() const {
    const auto list = [&](std::size_t i) {
      return lists_[i] == nullptr ? nullptr
                                  : reinterpret_cast<const std::int32_t*>(lists_[i]->data());
    };
    att_append_args args = {};
    args.struct_size = sizeof args;
    args.layout = problem_.layout;
    args.shape = problem_.shape;
    if (!problem_.without_q) {
      args.q = q_.data();
      args.q_out = q_out_.data();
      args.q_strides = q_.strides;
      if (!problem_.in_place) args.q_out_strides = q_out_.strides;
    }
    args.k = k_.data();
    args.k_strides = k_.strides;
    args.k_cache = k_cache_.data();
    args.k_cache_strides = k_cache_.strides;
    if (!problem_.without_v) {
      args.v = v_.data();
      args.v_strides = v_.strides;
      args.v_cache = v_cache_.data();
      args.v_cache_strides = v_cache_.strides;
    }
    if (has_scales(problem_)) {
      args.k_scales = reinterpret_cast<const float*>(k_scales_->data());
      args.v_scales = reinterpret_cast<const float*>(v_scales_->data());
      args.k_scale_page_stride = args.v_scale_page_stride = problem_.shape.kv_heads;
      args.k_scale_head_stride = args.v_scale_head_stride = 1;
    }
    args.cu_q = list(0);
    args.used_q = list(1);
    args.cu_kv = list(2);
    args.used_kv = list(3);
    args.page_table = list(4);
    args.positions = list(5);
    args.pages_per_sequence = problem_.pages_per_sequence;
    args.page_size = problem_.page_size;
    args.pages = problem_.pages;
    if (angle_buffer_ != nullptr) {
      args.cosines = reinterpret_cast<const float*>(angle_buffer_->data());
      args.sines = args.cosines + stride_ / 2;
      args.table_positions = problem_.table_positions;
      args.table_stride = static_cast<std::int64_t>(stride_);
    }
    return args;
  }

  // ---- The oracle.

  std::pair<double, double> turn_of(std::int64_t position, int pair) const {
    const auto& options = problem_.options;
    if (angle_buffer_ != nullptr) {
      const auto row = static_cast<std::size_t>(
          std::clamp<std::int64_t>(position, 0, problem_.table_positions - 1));
      const float* at = &angles_[row * stride_ + static_cast<std::size_t>(pair)];
      return {at[0], at[stride_ / 2]};
    }
    const double base = options.rope_base == 0 ? 10000 : options.rope_base;
    const double factor = options.rope_factor == 0 ? 1 : options.rope_factor;
    const double angle =
        static_cast<double>(position) * std::pow(base, -2.0 * pair / rotary_of(options)) / factor;
    return {std::cos(angle), std::sin(angle)};
  }

  // Columns of a row from `first` on, as they are, or over their scale.
  void expect_columns(const View& in, std::size_t from, const View& out, std::size_t to,
                      double scale, std::size_t first, std::size_t dim) {
    const std::span<const std::byte> row(in.buffer->at(from), dim * in.width);
    if (out.scales.empty()) {
      out.buffer->expect_bytes(to + first * out.width, row.subspan(first * in.width));
      return;
    }
    const std::vector<double> x = decode(dtype_of(problem_), row);
    for (std::size_t i = first; i < dim; ++i) expect_scaled(out, to + i, x[i], 0, scale);
  }

  static void expect_scaled(const View& out, std::size_t to, double value, double size,
                            double scale) {
    constexpr double kLargest = 448;
    value /= scale;
    out.buffer->expect_value(to,
                             out.scales.empty() ? value : std::clamp(value, -kLargest, kLargest),
                             size / scale + (out.scales.empty() ? 0 : std::abs(value)));
  }

  // A head's row, turned, from byte `from` of one view to byte `to` of another, over `scale`.
  void expect_turned(const View& in, std::size_t from, const View& out, std::size_t to,
                     double scale, const std::vector<std::pair<double, double>>& turns) {
    const auto dim = static_cast<std::size_t>(problem_.options.head_dim_qk);
    const int rotary = rotary_of(problem_.options);
    const std::span<const std::byte> row(in.buffer->at(from), dim * in.width);
    const std::vector<double> x = decode(dtype_of(problem_), row);
    for (int pair = 0; pair < rotary / 2; ++pair) {
      const bool half = problem_.options.rope == ATT_ROPE_HALF;
      const auto a = static_cast<std::size_t>(half ? pair : 2 * pair);
      const std::size_t b = half ? a + static_cast<std::size_t>(rotary / 2) : a + 1;
      const auto [cosine, sine] = turns[static_cast<std::size_t>(pair)];
      const double size = 1.25 * (std::abs(x[a]) + std::abs(x[b]));
      expect_scaled(out, to + a * out.width, x[a] * cosine - x[b] * sine, size, scale);
      expect_scaled(out, to + b * out.width, x[b] * cosine + x[a] * sine, size, scale);
    }
    expect_columns(in, from, out, to, scale, static_cast<std::size_t>(rotary), dim);
  }

  void expect() {
    const auto& [batch, heads, kv_heads, tokens, kv_len] = problem_.shape;
    const auto clamp = [](std::int64_t x, std::int64_t most) {
      return std::clamp<std::int64_t>(x, 0, most);
    };
    for (std::int64_t b = 0; b < batch; ++b) {
      const auto i = static_cast<std::size_t>(b);
      const std::int64_t begin = clamp(problem_.cu_q[i], tokens);
      std::int64_t count = std::max<std::int64_t>(0, clamp(problem_.cu_q[i + 1], tokens) - begin);
      if (!problem_.used_q.empty()) count = clamp(problem_.used_q[i], count);
      std::int64_t first = 0, room = kv_len;
      if (problem_.layout == ATT_THD) {
        first = clamp(problem_.cu_kv[i], kv_len);
        room = std::max<std::int64_t>(0, clamp(problem_.cu_kv[i + 1], kv_len) - first);
      }
      const std::int64_t keys = problem_.used_kv.empty() ? room : clamp(problem_.used_kv[i], room);
      for (std::int64_t n = 0; n < count; ++n) {
        expect_token(b, begin + n, keys - count + n, first);
      }
    }
  }

  void expect_token(std::int64_t b, std::int64_t token, std::int64_t key, std::int64_t first) {
    const auto& [batch, heads, kv_heads, tokens, kv_len] = problem_.shape;
    const std::int64_t position =
        problem_.positions.empty() ? key : problem_.positions[static_cast<std::size_t>(token)];
    std::vector<std::pair<double, double>> turns;
    for (int pair = 0; pair < rotary_of(problem_.options) / 2; ++pair) {
      turns.push_back(turn_of(position, pair));
    }
    for (std::int64_t h = 0; h < heads && !problem_.without_q; ++h) {
      expect_turned(q_, q_.byte(0, token, h), q_out_, q_out_.byte(0, token, h), 1, turns);
    }
    if (key < 0) return;
    std::int64_t slice = b, row = key;
    if (problem_.layout == ATT_THD) slice = 0, row = first + key;
    if (problem_.layout == ATT_PAGED) {
      slice = problem_.table[static_cast<std::size_t>(b * problem_.pages_per_sequence +
                                                      key / problem_.page_size)];
      row = key % problem_.page_size;
      if (slice < 0 || slice >= problem_.pages) return;
    }
    for (std::int64_t h = 0; h < kv_heads; ++h) {
      expect_turned(k_, k_.byte(0, token, h), k_cache_, k_cache_.byte(slice, row, h),
                    k_cache_.scale(slice, h), turns);
      if (problem_.without_v) continue;
      expect_columns(v_, v_.byte(0, token, h), v_cache_, v_cache_.byte(slice, row, h),
                     v_cache_.scale(slice, h), 0,
                     static_cast<std::size_t>(problem_.options.head_dim_v));
    }
  }

  Device& device_;
  const Problem& problem_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<const char*> names_;
  std::vector<DType> dtypes_;
  // cu_q, used_q, cu_kv, used_kv, table, positions; null where not given.
  std::vector<Buffer*> lists_;
  View q_, k_, v_, q_out_, k_cache_, v_cache_;
  Buffer *angle_buffer_ = nullptr, *k_scales_ = nullptr, *v_scales_ = nullptr;
  std::vector<float> angles_;
  std::size_t stride_ = 0;
};

}  // namespace

std::string judge(Device& device, att_runtime* runtime, const Problem& problem, std::uint64_t seed,
                  const LaunchFunction& launch) {
  return Launch(device, problem, seed).run(runtime, launch);
}

}  // namespace attune::append_test

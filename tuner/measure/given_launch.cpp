#include "tuner/measure/given_launch.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "runtime/reference/element_bits.hpp"
#include "runtime/support/memory.hpp"
#include "tuner/measure/arrangement.hpp"

namespace attune {
namespace {

static_assert(std::is_trivially_copyable_v<LaunchFacts>);

constexpr std::size_t kAlignment = 64;
// More elements are not read to choose a plan: tiles are then told by what is drawn.
constexpr std::int64_t kMostElements = std::int64_t{1} << 24;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

Error not_made(const char* what) {
  return {
      .id = "given-launch",
      .message = fmt::format("cannot {} memory for a launch's data: {}", what, strerror(errno))};
}

template <typename Value>
std::vector<Value> values_of(std::span<const std::byte> bytes) {
  std::vector<Value> values(bytes.size() / sizeof(Value));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace

// By part, kTensor's by slot behind the others.
std::vector<GivenLaunch::Place> GivenLaunch::places(const AttentionSpec& spec,
                                                    const LaunchFacts& facts) {
  const ProblemShape& s = facts.shape;
  const bool paged = is_paged(spec);
  const bool packed = is_packed(spec);
  const std::int64_t width = element_bytes(spec.dtype);
  const std::int64_t rows = slice_count(spec, s) * s.heads * s.q_len;
  const std::int64_t keys =
      s.kv_heads * (paged ? facts.pages.count * facts.pages.size : key_rows(spec, s));
  constexpr std::int64_t kWord = 4;
  const auto offsets = (s.batch + 1) * kWord;
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(LaunchPart::kTensor));
  const auto size_of = [&](LaunchPart part) -> std::int64_t& {
    return sizes[static_cast<std::size_t>(part)];
  };
  size_of(LaunchPart::kQ) = rows * spec.head_dim_qk * width;
  size_of(LaunchPart::kK) = keys * spec.head_dim_qk * width;
  size_of(LaunchPart::kV) = spec.v_in_k ? 0 : keys * spec.head_dim_v * width;
  size_of(LaunchPart::kDO) = facts.has_d_o ? rows * spec.head_dim_v * width : 0;
  size_of(LaunchPart::kDLse) = facts.has_d_lse ? rows * kWord : 0;
  size_of(LaunchPart::kCuQ) = packed ? offsets : 0;
  size_of(LaunchPart::kCuKv) = packed && !paged ? offsets : 0;
  size_of(LaunchPart::kUsedQ) = facts.has_used_q ? s.batch * kWord : 0;
  size_of(LaunchPart::kUsedKv) = facts.has_used_kv ? s.batch * kWord : 0;
  size_of(LaunchPart::kPageTable) = paged ? s.batch * facts.pages.per_sequence * kWord : 0;
  for (const expr::TensorDecl& tensor : spec.environment.tensors) {
    sizes.push_back(element_count(tensor_sizes(tensor, s)) * tensor_element_bytes(tensor.type));
  }
  std::vector<Place> places;
  std::size_t end = aligned(sizeof(LaunchFacts));
  for (const std::int64_t bytes : sizes) {
    places.push_back({end, static_cast<std::size_t>(bytes)});
    end = aligned(end + places.back().size);
  }
  places.push_back({end, 0});  // where all of them end
  return places;
}

Result<std::unique_ptr<GivenLaunch>> GivenLaunch::make(const AttentionSpec& spec,
                                                       const LaunchFacts& facts) {
  std::vector<Place> places = GivenLaunch::places(spec, facts);
  const std::size_t bytes = places.back().begin;
  if (static_cast<double>(bytes) > static_cast<double>(available_memory_bytes())) {
    return Error{.kind = ErrorKind::kBadInput,
                 .id = "memory-short",
                 .message = fmt::format("a copy of the launch's data takes {} MB of main memory",
                                        bytes / 1000000),
                 .hint = "tune with a smaller batch"};
  }
  const int fd = memfd_create("attune-launch", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return not_made("make");
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    const Error error = not_made("make");
    close(fd);
    return error;
  }
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    const Error error = not_made("map");
    close(fd);
    return error;
  }
  std::memcpy(memory, &facts, sizeof facts);
  std::unique_ptr<GivenLaunch> made(new GivenLaunch(fd, static_cast<std::byte*>(memory), bytes));
  made->places_ = std::move(places);
  return made;
}

Result<std::unique_ptr<GivenLaunch>> GivenLaunch::open(const AttentionSpec& spec,
                                                       const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return not_made("open");
  struct stat facts{};
  void* memory = MAP_FAILED;
  if (fstat(fd, &facts) == 0 && facts.st_size >= static_cast<off_t>(sizeof(LaunchFacts))) {
    memory = mmap(nullptr, static_cast<std::size_t>(facts.st_size), PROT_READ, MAP_SHARED, fd, 0);
  }
  close(fd);
  if (memory == MAP_FAILED) return not_made("map");
  std::unique_ptr<GivenLaunch> opened(new GivenLaunch(-1, static_cast<std::byte*>(memory),
                                                      static_cast<std::size_t>(facts.st_size)));
  opened->places_ = places(spec, opened->facts());
  if (opened->places_.back().begin != opened->size_) {
    return Error{.id = "given-launch",
                 .message = fmt::format("`{}` holds no launch of `{}`", path, spec.name)};
  }
  return opened;
}

GivenLaunch::~GivenLaunch() {
  munmap(memory_, size_);
  if (fd_ >= 0) close(fd_);
}

std::span<const std::byte> GivenLaunch::bytes(LaunchPart part, std::size_t slot) const {
  const Place& place = places_[static_cast<std::size_t>(part) + slot];
  return {memory_ + place.begin, place.size};
}

std::span<std::byte> GivenLaunch::room(LaunchPart part, std::size_t slot) {
  const Place& place = places_[static_cast<std::size_t>(part) + slot];
  return {memory_ + place.begin, place.size};
}

std::string GivenLaunch::publish() {
  mprotect(memory_, size_, PROT_READ);
  fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE);
  return fmt::format("/proc/{}/fd/{}", getpid(), fd_);
}

HostSequences host_sequences(const GivenLaunch& launch) {
  const auto part = [&](LaunchPart which) { return values_of<std::int32_t>(launch.bytes(which)); };
  return {.cu_q = part(LaunchPart::kCuQ),
          .cu_kv = part(LaunchPart::kCuKv),
          .used_q = part(LaunchPart::kUsedQ),
          .used_kv = part(LaunchPart::kUsedKv)};
}

HostPages host_pages(const GivenLaunch& launch) {
  const PageSizes& pages = launch.facts().pages;
  return {.table = values_of<std::int32_t>(launch.bytes(LaunchPart::kPageTable)),
          .per_sequence = pages.per_sequence,
          .size = pages.size,
          .count = pages.count};
}

HostProblem host_problem(const AttentionSpec& spec, const GivenLaunch& launch) {
  const LaunchFacts& facts = launch.facts();
  const ProblemShape& s = facts.shape;
  const bool paged = is_paged(spec);
  const std::int64_t slices = slice_count(spec, s);
  const std::int64_t key_slices = paged ? facts.pages.count : slices;
  const std::int64_t key_rows = paged ? facts.pages.size : s.kv_len;
  const auto matrix = [&](LaunchPart part, std::int64_t batch, std::int64_t heads, std::int64_t seq,
                          int dim) {
    const Arrangement lies = {batch, heads, seq, dim,
                              contiguous_strides(spec.layout, seq, heads, dim)};
    return lies.to_host(decode(spec.dtype, launch.bytes(part)));
  };
  HostProblem problem{.shape = s};
  problem.q = matrix(LaunchPart::kQ, slices, s.heads, s.q_len, spec.head_dim_qk);
  problem.k = matrix(LaunchPart::kK, key_slices, s.kv_heads, key_rows, spec.head_dim_qk);
  if (!spec.v_in_k)
    problem.v = matrix(LaunchPart::kV, key_slices, s.kv_heads, key_rows, spec.head_dim_v);
  for (std::size_t slot = 0; slot < spec.environment.scalars.size(); ++slot) {
    const expr::ScalarDecl& scalar = spec.environment.scalars[slot];
    const att::ScalarValue given = facts.scalars[slot];
    problem.scalars.push_back(scalar.is_constant                    ? scalar.value
                              : scalar.type == expr::Type::kFloat32 ? double{given.as_float}
                                                                    : double(given.as_int));
  }
  for (std::size_t slot = 0; slot < spec.environment.tensors.size(); ++slot) {
    const expr::TensorDecl& tensor = spec.environment.tensors[slot];
    problem.tensors.push_back(
        {.sizes = tensor_sizes(tensor, s),
         .values = decode(tensor.type, launch.bytes(LaunchPart::kTensor, slot))});
  }
  problem.softmax_scale = facts.softmax_scale;
  problem.dropout = facts.drop_below / 256.0;
  problem.dropout_seed = facts.dropout_seed;
  problem.dropout_offset = facts.dropout_offset;
  problem.sequences = host_sequences(launch);
  if (paged) problem.pages = host_pages(launch);
  return problem;
}

void give_tensors(const GivenLaunch& launch, AttentionSpec& spec) {
  const auto& declared = spec.environment.tensors;
  spec.samples.resize(declared.size());
  for (std::size_t slot = 0; slot < declared.size(); ++slot) {
    expr::TensorValues values{.sizes = tensor_sizes(declared[slot], launch.facts().shape),
                              .values = {}};
    if (element_count(values.sizes) > kMostElements) continue;
    values.values = decode(declared[slot].type, launch.bytes(LaunchPart::kTensor, slot));
    spec.samples[slot] = {.kind = SampleKind::kGiven,
                          .given = std::make_shared<const expr::TensorValues>(std::move(values))};
  }
}

}  // namespace attune

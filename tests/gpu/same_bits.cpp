#include "tests/gpu/same_bits.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include "generator/emit/flatten.hpp"
#include "generator/spec/shape.hpp"
#include "tests/gpu/driver.hpp"
#include "tests/gpu/judge.hpp"
#include "tuner/measure/backward_problem.hpp"

namespace attune::gpu_test {
namespace {

// As the kernel below declares it.
struct CompareParams {
  unsigned* now;
  const unsigned* first;
  long long words;
  int* differs;
};

// On the device: to bring thousands of outputs to the host would take a hundred times as long as to
// make them. NaN is left behind, so that the next launch is seen to write all of its own.
constexpr const char* kCompare = R"(
struct CompareParams {
  unsigned* now;
  const unsigned* first;
  long long words;
  int* differs;
};
ATT_KERNEL att_test_compare(ATT_GRID_CONSTANT CompareParams p) {
  const long long step = static_cast<long long>(att::block_count()) * 256;
  for (long long i = att::block_index() * 256 + att::thread_index(); i < p.words; i += step) {
    if (p.now[i] != p.first[i]) *p.differs = 1;
    p.now[i] = 0xffffffffu;
  }
}
)";
constexpr int kCompareThreads = 256, kCompareBlocks = 128;

Result<std::unique_ptr<LoadedFunction>> make_compare() {
  KernelBank& bank = KernelBank::instance();
  ATT_TRY(const std::string platform, flatten_template("templates/ptx/platform.cuh", ""));
  ATT_TRY(const CompiledKernel code,
          bank.compiler().compile(platform + kCompare, "att_test_compare",
                                  bank.device().facts().target));
  return bank.device().load_function({.symbol = "att_test_compare", .threads = kCompareThreads},
                                     code.image);
}

// The gradients of a problem, as they lie.
struct Region {
  void* data;
  std::size_t bytes;
};
std::vector<Region> gradients_of(const AttentionSpec& spec, const ProblemShape& s,
                                 const att::LaunchParams& params) {
  const auto matrix = [&](std::int64_t heads, std::int64_t rows, int dim) {
    return static_cast<std::size_t>(s.batch * heads * rows * dim * element_bytes(spec.dtype));
  };
  std::vector<Region> regions = {{params.d_q, matrix(s.heads, s.q_len, spec.head_dim_qk)},
                                 {params.d_k, matrix(s.kv_heads, s.kv_len, spec.head_dim_qk)},
                                 {params.d_v, matrix(s.kv_heads, s.kv_len, spec.head_dim_v)}};
  for (std::size_t slot = 0; slot < spec.environment.tensors.size(); ++slot) {
    const expr::TensorDecl& tensor = spec.environment.tensors[slot];
    if (!tensor.grad) continue;
    const auto count = static_cast<std::size_t>(element_count(tensor_sizes(tensor, s)));
    regions.push_back({params.d_tensors[slot], count * sizeof(float)});
  }
  if (spec.sink != nullptr)
    regions.push_back({params.d_sink, static_cast<std::size_t>(s.batch * s.heads) * sizeof(float)});
  return regions;
}

// One shape's, with what the first launch on such a shape made.
struct Lane {
  ProblemShape shape;
  Stream stream;
  std::unique_ptr<BackwardProblem> problem;
  std::vector<Region> now;
  std::shared_ptr<std::vector<DeviceBuffer>> first;
};

// So that the next launch is seen to wait for its own. Compared with itself nothing differs.
Status overwrite_rows(const LoadedFunction& compare, const Lane& lane) {
  const ProblemShape& shape = lane.shape;
  auto* rows = reinterpret_cast<unsigned*>(lane.problem->params().row_references);
  if (rows == nullptr) return ok_status();
  const CompareParams params{.now = rows,
                             .first = rows,
                             .words = shape.batch * shape.heads * shape.q_len,
                             .differs = nullptr};
  return compare.launch(&params, kCompareBlocks, lane.stream.get());
}

Status run_first(Device& device, const LoadedKernel& backward, Lane& lane) {
  ATT_TRY(const Gradients made, lane.problem->run(backward));
  // NaN is not the same as itself: all was written.
  if (!is_same(made, made)) return Error{.id = "test", .message = "a gradient is NaN"};
  lane.first = std::make_shared<std::vector<DeviceBuffer>>();
  for (const Region& region : lane.now) {
    std::vector<std::byte> bytes(region.bytes);
    ATT_CHECK(device.copy_to_host(bytes.data(), region.data, bytes.size()));
    ATT_TRY(DeviceBuffer copy, DeviceBuffer::make(device, bytes.size()));
    ATT_CHECK(device.copy_to_device(copy.data(), bytes.data(), bytes.size()));
    lane.first->push_back(std::move(copy));
  }
  return ok_status();
}

}  // namespace

Result<int> different_launches(const AttentionSpec& spec, const LoadedKernel& forward,
                               const LoadedKernel& backward, std::span<const ProblemShape> shapes,
                               int launches) {
  Device& device = KernelBank::instance().device();
  ATT_TRY(const std::unique_ptr<LoadedFunction> compare, make_compare());
  const std::size_t flag_bytes = static_cast<std::size_t>(launches) * sizeof(int);
  ATT_TRY(const DeviceBuffer flags, DeviceBuffer::make(device, flag_bytes));
  ATT_CHECK(device.fill(flags.data(), 0, flag_bytes));
  std::vector<std::unique_ptr<Lane>> lanes;
  for (const ProblemShape& shape : shapes) {
    auto lane = std::make_unique<Lane>();
    lane->shape = shape;
    ATT_TRY(lane->problem, BackwardProblem::for_timing(device, spec, shape, forward, 5));
    lane->now = gradients_of(spec, shape, lane->problem->params());
    // Of one shape all have the same numbers.
    const auto twin =
        std::ranges::find_if(lanes, [&](const auto& other) { return other->shape == lane->shape; });
    if (twin != lanes.end()) {
      lane->first = (*twin)->first;
    } else {
      ATT_CHECK(run_first(device, backward, *lane));
    }
    ATT_CHECK(lane->problem->prepare(backward));
    ATT_CHECK(lane->problem->poison());
    lanes.push_back(std::move(lane));
  }
  ATT_CHECK(device.synchronize());
  for (int launch = 0; launch < launches; ++launch) {
    Lane& lane = *lanes[static_cast<std::size_t>(launch) % lanes.size()];
    ATT_CHECK(lane.problem->launch(backward, lane.stream.get()));
    for (std::size_t i = 0; i < lane.now.size(); ++i) {
      const CompareParams params{.now = static_cast<unsigned*>(lane.now[i].data),
                                 .first = static_cast<const unsigned*>((*lane.first)[i].data()),
                                 .words = static_cast<long long>(lane.now[i].bytes / 4),
                                 .differs = static_cast<int*>(flags.data()) + launch};
      ATT_CHECK(compare->launch(&params, kCompareBlocks, lane.stream.get()));
    }
    ATT_CHECK(overwrite_rows(*compare, lane));
  }
  for (const auto& lane : lanes) ATT_CHECK(lane->problem->check_canaries());
  std::vector<int> differs(static_cast<std::size_t>(launches));
  ATT_CHECK(device.copy_to_host(differs.data(), flags.data(), flag_bytes));
  return static_cast<int>(std::ranges::count(differs, 1));
}

}  // namespace attune::gpu_test

#include "runtime/reference/device_oracle.hpp"

#include "generator/emit/flatten.hpp"
#include "generator/emit/head.hpp"
#include "generator/support/hash.hpp"

namespace attune {
namespace {

constexpr const char* kTemplate = "templates/kernels/reference_forward.cuh";
constexpr int kRowsPerBlock = 4;  // a warp each; kReferenceWarps there

LaunchRecipe recipe_for(const char* symbol) {
  LaunchRecipe recipe;
  recipe.symbol = symbol;
  recipe.threads = 32 * kRowsPerBlock;
  recipe.tile_q = kRowsPerBlock;
  return recipe;
}

// Device memory that is freed at the end of the scope.
class Scratch {
 public:
  Scratch(Device& device, void* data) : device_(device), data(data) {}
  ~Scratch() { device_.free(data); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

 private:
  Device& device_;

 public:
  void* const data;
};

Result<std::vector<double>> read_floats(Device& device, const void* data, std::size_t count) {
  std::vector<float> values(count);
  ATT_CHECK(device.copy_to_host(values.data(), data, count * sizeof(float)));
  return std::vector<double>(values.begin(), values.end());
}

// The numbers that the kernel wants: how many rows, then which.
std::vector<int> row_numbers(const att::ForwardParams& params, const std::vector<Row>& rows) {
  std::vector<int> numbers{static_cast<int>(rows.size())};
  for (const Row& row : rows) {
    numbers.push_back((row.b * params.heads + row.h) * params.q_len + row.q_idx);
  }
  return numbers;
}

Result<std::vector<std::uint8_t>> code_of(const AttentionSpec& spec, Target target,
                                          const std::string& source, const std::string& symbol,
                                          Compiler& compiler, Store* store) {
  const BuildKey key{.spec_hash = spec_hash(spec),
                     .plan = "oracle",
                     .body_hash = hash128_hex(source),
                     .compiler = compiler.identity(),
                     .target = std::string(to_string(target))};
  if (store != nullptr) {
    auto found = store->find_code(key);
    if (found.ok() && found->has_value()) return std::move((*found)->image);
  }
  ATT_TRY(CompiledKernel code, compiler.compile(source, symbol, target));
  if (store != nullptr) (void)store->put_code(key, {.image = code.image});
  return std::move(code.image);
}

}  // namespace

Result<std::unique_ptr<DeviceOracle>> DeviceOracle::make(Device& device, Compiler& compiler,
                                                         const AttentionSpec& spec, Store* store) {
  if (device.facts().target == Target::kCpu) {
    return Error{.kind = ErrorKind::kUnsupported,
                 .id = "oracle-no-gpu",
                 .message = "the device's oracle needs a GPU"};
  }
  // The head wants a plan, whose constants this template does not read.
  ATT_TRY(const KernelPlan plan, default_plan(spec, {}, device.facts()));
  ATT_TRY(const std::string head, head_text(spec, plan, "att_reference"));
  ATT_TRY(const std::string source, flatten_template(kTemplate, head));
  const LaunchRecipe exact = recipe_for("att_reference_exact");
  ATT_TRY(const std::vector<std::uint8_t> image,
          code_of(spec, plan.target, source, exact.symbol, compiler, store));
  std::unique_ptr<DeviceOracle> oracle(new DeviceOracle(device, spec.head_dim_v));
  ATT_TRY(oracle->exact_, device.load_recipe(spec, exact, image));
  ATT_TRY(oracle->plain_, device.load_recipe(spec, recipe_for("att_reference_plain"), image));
  return oracle;
}

Result<HostOutput> DeviceOracle::run(const LoadedKernel& kernel, att::ForwardParams params,
                                     const std::vector<Row>& rows) {
  const std::size_t count = rows.empty() ? static_cast<std::size_t>(params.batch) *
                                               static_cast<std::size_t>(params.heads) *
                                               static_cast<std::size_t>(params.q_len)
                                         : rows.size();
  const std::size_t elements = count * static_cast<std::size_t>(head_dim_v_);
  const std::vector<int> numbers = row_numbers(params, rows);
  ATT_TRY(void* number_data, device_.allocate(numbers.size() * sizeof(int)));
  const Scratch wanted(device_, number_data);
  ATT_CHECK(device_.copy_to_device(wanted.data, numbers.data(), numbers.size() * sizeof(int)));
  ATT_TRY(void* o_data, device_.allocate(elements * sizeof(float)));
  const Scratch o(device_, o_data);
  ATT_TRY(void* lse_data, device_.allocate(count * sizeof(float)));
  const Scratch lse(device_, lse_data);
  params.o = o.data;
  params.lse = static_cast<float*>(lse.data);
  params.scheduler_counter = rows.empty() ? nullptr : static_cast<int*>(wanted.data);
  ATT_CHECK(kernel.launch(params, nullptr, nullptr));
  ATT_CHECK(device_.synchronize());
  HostOutput out;
  ATT_TRY(out.o, read_floats(device_, o.data, elements));
  ATT_TRY(out.lse, read_floats(device_, lse.data, count));
  return out;
}

}  // namespace attune

#include "runtime/reference/device_oracle.hpp"

#include "generator/emit/flatten.hpp"
#include "generator/emit/head.hpp"
#include "runtime/support/problem_layout.hpp"

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

}  // namespace

Result<std::unique_ptr<DeviceOracle>> DeviceOracle::make(Device& device, Compiler& compiler,
                                                         const AttentionSpec& spec) {
  // The head wants a plan, whose constants this template does not read.
  ATT_TRY(const KernelPlan plan, default_plan(spec, {}, device.facts()));
  ATT_TRY(const std::string head, head_text(spec, plan, "att_reference"));
  ATT_TRY(const std::string source, flatten_template(kTemplate, head));
  const LaunchRecipe exact = recipe_for("att_reference_exact");
  ATT_TRY(const CompiledKernel code, compiler.compile(source, exact.symbol, plan.target));
  std::unique_ptr<DeviceOracle> oracle(new DeviceOracle(device, spec.head_dim_v));
  ATT_TRY(oracle->exact_, device.load_recipe(spec, exact, code.image));
  ATT_TRY(oracle->plain_, device.load_recipe(spec, recipe_for("att_reference_plain"), code.image));
  return oracle;
}

Result<HostOutput> DeviceOracle::run(const LoadedKernel& kernel, att::ForwardParams params) {
  const auto rows = static_cast<std::size_t>(params.batch) *
                    static_cast<std::size_t>(params.heads) * static_cast<std::size_t>(params.q_len);
  const std::size_t elements = rows * static_cast<std::size_t>(head_dim_v_);
  ATT_TRY(void* o_data, device_.allocate(elements * sizeof(float)));
  const Scratch o(device_, o_data);
  ATT_TRY(void* lse_data, device_.allocate(rows * sizeof(float)));
  const Scratch lse(device_, lse_data);
  params.o = o.data;
  params.lse = static_cast<float*>(lse.data);
  params.o_stride = contiguous_strides(Layout::kBhsd, params.q_len, params.heads, head_dim_v_);
  ATT_CHECK(kernel.launch(params, nullptr, nullptr));
  ATT_CHECK(device_.synchronize());
  HostOutput out;
  ATT_TRY(out.o, read_floats(device_, o.data, elements));
  ATT_TRY(out.lse, read_floats(device_, lse.data, rows));
  return out;
}

}  // namespace attune

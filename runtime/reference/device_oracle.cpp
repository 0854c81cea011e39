#include "runtime/reference/device_oracle.hpp"

#include <fmt/format.h>

#include "generator/emit/flatten.hpp"
#include "generator/emit/head.hpp"
#include "runtime/reference/element_bits.hpp"
#include "runtime/reference/operands.hpp"
#include "runtime/reference/oracle_answers.hpp"

namespace attune {
namespace {

constexpr const char* kTemplate = "templates/kernels/reference_forward.cuh";
constexpr int kRowsPerBlock = 4;  // a warp each; kReferenceWarps there
// Of the size of score and product: what two evaluations of one score function may differ by.
constexpr double kScoreNoise = 0x1p-20;

LaunchRecipe recipe_for(const char* symbol) {
  return {.symbol = symbol,
          .launches = {{.symbol = symbol,
                        .threads = 32 * kRowsPerBlock,
                        .item = WorkItem::kRows,
                        .tile = kRowsPerBlock}},
          .workspace = {}};
}

// The error model as constants of the source.
std::string tolerance_text(const AttentionSpec& spec) {
  const ErrorModel model = error_model(spec, Arithmetic::kMatrixUnit);
  std::string text;
  const auto constant = [&](const char* name, double value) {
    text += fmt::format("constexpr float {} = {:a}f;\n", name, value);
  };
  constant("kDeviations", kDeviations);
  constant("kFp32Unit", kFp32Unit);
  constant("kMeanRounding", kMeanRounding);
  constant("kNegligible", kNegligible);
  constant("kProductUnit", model.product_unit);
  constant("kPUnit", model.p_unit);
  constant("kPSmallest", model.p_smallest);
  constant("kOUnit", model.o_unit);
  constant("kOSmallest", model.o_smallest);
  constant("kTruncation", model.truncation);
  constant("kExponentReach", model.exponent_reach);
  constant("kLseUnit", model.lse_unit);
  constant("kLseSmallest", model.lse_smallest);
  constant("kScoreNoise", kScoreNoise);
  text += fmt::format("constexpr bool kRoundsOperands = {};\n",
                      rounds_operands(spec, Arithmetic::kMatrixUnit));
  return "\nnamespace att {\nnamespace tolerance {\n" + text + "}\n}\n";
}

// The numbers that the kernel wants: how many rows, then which.
std::vector<int> row_numbers(const att::LaunchParams& params, const std::vector<Row>& rows) {
  std::vector<int> numbers{static_cast<int>(rows.size())};
  for (const Row& row : rows) {
    numbers.push_back((row.b * params.heads + row.h) * params.q_len + row.q_idx);
  }
  return numbers;
}

}  // namespace

Result<std::unique_ptr<DeviceOracle>> DeviceOracle::make(Device& device, Compiler& compiler,
                                                         const AttentionSpec& spec) {
  if (is_packed(spec)) {
    return Error{.kind = ErrorKind::kUnsupported,
                 .id = "oracle-unsupported",
                 .message = "the GPU's oracle knows no packed sequences"};
  }
  if (has_scaled_cache(spec)) {
    return Error{.kind = ErrorKind::kUnsupported,
                 .id = "oracle-unsupported",
                 .message = "the GPU's oracle reads K and V in the dtype of Q"};
  }
  if (device.facts().target == Target::kCpu) {
    return Error{.kind = ErrorKind::kUnsupported,
                 .id = "oracle-no-gpu",
                 .message = "the device's oracle needs a GPU"};
  }
  // The head wants a plan, whose constants this template does not read.
  ATT_TRY(const KernelPlan plan, default_plan(spec, {}, device.facts()));
  ATT_TRY(std::string head, head_text(spec, plan, "att_reference"));
  head += tolerance_text(spec);
  ATT_TRY(const std::string source, flatten_template(kTemplate, head));
  const LaunchRecipe exact = recipe_for("att_reference_exact");
  ATT_TRY(const CompiledKernel code, compiler.compile(source, exact.symbol, plan.target));
  std::unique_ptr<DeviceOracle> oracle(new DeviceOracle(device, spec));
  ATT_TRY(oracle->exact_, device.load_recipe(spec, exact, code.image));
  ATT_TRY(oracle->judge_, device.load_recipe(spec, recipe_for("att_reference_judge"), code.image));
  return oracle;
}

Result<DeviceOracle::Answer> DeviceOracle::answer(const att::LaunchParams& params,
                                                  std::vector<Row> rows) {
  const std::vector<int> numbers = row_numbers(params, rows);
  const std::size_t count = rows.size();
  Answer answer{.rows = std::move(rows), .numbers = {}, .o = {}, .lse = {}, .worst = {}};
  ATT_TRY(answer.numbers, allocate_shared_on(device_, numbers.size() * sizeof(int)));
  ATT_TRY(answer.o, allocate_shared_on(device_, 2 * count * width_ * sizeof(float)));
  ATT_TRY(answer.lse, allocate_shared_on(device_, 2 * count * sizeof(float)));
  ATT_TRY(answer.worst, allocate_shared_on(device_, count * sizeof(float)));
  ATT_CHECK(
      device_.copy_to_device(answer.numbers.get(), numbers.data(), numbers.size() * sizeof(int)));
  att::LaunchParams own = params;
  own.o = answer.o.get();
  own.lse = static_cast<float*>(answer.lse.get());
  own.scheduler_counter = static_cast<int*>(answer.numbers.get());
  ATT_CHECK(exact_->launch(own, nullptr, nullptr));
  ATT_CHECK(device_.synchronize());
  return answer;
}

Result<Verdict> DeviceOracle::judge(const Answer& answer, const att::LaunchParams& params) {
  att::LaunchParams own = params;
  own.q = answer.o.get();
  own.k = answer.lse.get();
  own.v = answer.worst.get();
  own.scheduler_counter = static_cast<int*>(answer.numbers.get());
  ATT_CHECK(judge_->launch(own, nullptr, nullptr));
  return verdict_of_rows(device_, answer.worst.get(), answer.rows.size(),
                         [&](std::size_t slot) { return describe(answer, slot, params); });
}

Result<std::string> DeviceOracle::describe(const Answer& answer, std::size_t slot,
                                           const att::LaunchParams& params) {
  const Row& row = answer.rows[slot];
  const auto width = static_cast<std::size_t>(element_bytes(dtype_));
  std::vector<std::byte> bits(width_ * width);
  const auto o_at =
      static_cast<std::size_t>(row.b * params.o_stride.batch + row.h * params.o_stride.head +
                               row.q_idx * params.o_stride.seq);
  const auto lse_at = static_cast<std::size_t>(row.b * params.heads + row.h) *
                          static_cast<std::size_t>(params.q_len) +
                      static_cast<std::size_t>(row.q_idx);
  float lse = 0;
  ATT_CHECK(device_.copy_to_host(
      bits.data(), static_cast<const std::byte*>(params.o) + o_at * width, bits.size()));
  ATT_CHECK(device_.copy_to_host(&lse, params.lse + lse_at, sizeof lse));
  ATT_TRY(const Expected expected_o,
          read_pairs(device_, "o", width_,
                     static_cast<const float*>(answer.o.get()) + 2 * slot * width_, width_));
  ATT_TRY(const Expected expected_lse,
          read_pairs(device_, "lse", 1, static_cast<const float*>(answer.lse.get()) + 2 * slot, 1));
  const HostOutput out{.o = decode(dtype_, bits), .lse = {lse}};
  const Verdict verdict = compare(out, {.o = expected_o, .lse = expected_lse});
  return fmt::format("b {}, h {}, q_idx {}: {}", row.b, row.h, row.q_idx, verdict.wrong);
}

Result<ForwardOracle> DeviceOracle::download(const Answer& answer) {
  const std::size_t count = answer.rows.size();
  ATT_TRY(Expected o, read_pairs(device_, "o", width_, answer.o.get(), count * width_));
  ATT_TRY(Expected lse, read_pairs(device_, "lse", 1, answer.lse.get(), count));
  return ForwardOracle{.o = std::move(o), .lse = std::move(lse)};
}

}  // namespace attune

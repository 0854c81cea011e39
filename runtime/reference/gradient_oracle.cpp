#include "runtime/reference/gradient_oracle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "generator/emit/flatten.hpp"
#include "generator/emit/head.hpp"
#include "runtime/reference/element_bits.hpp"
#include "runtime/reference/gradient_sums.hpp"
#include "runtime/reference/operands.hpp"
#include "runtime/reference/oracle_answers.hpp"
#include "runtime/support/problem_layout.hpp"
#include "templates/reference_params.h"

namespace attune {
namespace {

constexpr int kWarpsOfBlock = 4;  // a row each; kReferenceWarps of templates/tile
// Of the size of a score function's value and argument: what two evaluations of it may differ by.
constexpr double kNoiseOfScores = 0x1p-20;
constexpr std::int64_t kLearnedElements = std::int64_t{1} << 20;

Error unsupported(const char* message) {
  return {.kind = ErrorKind::kUnsupported, .id = "oracle-unsupported", .message = message};
}

// The error model as constants of the source.
std::string tolerance_constants(const AttentionSpec& spec, Target target) {
  const Arithmetic arithmetic = arithmetic_of(target);
  const bool rounds_p = arithmetic == Arithmetic::kMatrixUnit;
  const Roundings allowed = roundings(spec.dtype, spec.precision, rounds_p);
  std::string text;
  const auto constant = [&](const char* name, double value) {
    text += fmt::format("constexpr double {} = {:a};\n", name, value);
  };
  constant("kDeviations", kAllowedDeviations);
  constant("kFp32Rounding", kFp32Rounding);
  constant("kFunctionRounding", kFunctionRounding);
  constant("kRmsOfRounding", kRmsOfRounding);
  constant("kLargestFp32Rounding", kLargestFp32Rounding);
  constant("kSmallestFp32", std::numeric_limits<float>::min());
  constant("kUnderflow", kUnderflow);
  // Scaled in fp32, then rounded.
  constant("kUnit", allowed.dtype + 4 * kLargestFp32Rounding);
  constant("kSmallest", allowed.smallest);
  constant("kPUnit", allowed.p);
  constant("kTruncation", allowed.truncation);
  constant("kLseUnit", allowed.lse);
  constant("kLseSmallest", allowed.lse_smallest);
  constant("kScoreNoise", kNoiseOfScores);
  text += fmt::format("constexpr bool kRoundsOperands = {};\n", rounds_operands(spec, arithmetic));
  return "\nnamespace att {\nnamespace tolerance {\n" + text + "}\n}\n";
}

std::vector<long long> numbers_of(const att::LaunchParams& p, const std::vector<Row>& rows) {
  std::vector<long long> numbers;
  numbers.reserve(rows.size());
  for (const Row& row : rows)
    numbers.push_back((static_cast<long long>(row.b) * p.heads + row.h) * p.q_len + row.q_idx);
  return numbers;
}
std::vector<long long> numbers_of(const att::LaunchParams& p, const std::vector<KeyRow>& rows) {
  std::vector<long long> numbers;
  numbers.reserve(rows.size());
  for (const KeyRow& row : rows) {
    numbers.push_back((static_cast<long long>(row.b) * p.kv_heads + row.h_kv) * p.kv_len +
                      row.kv_idx);
  }
  return numbers;
}

ProblemShape shape_of(const att::LaunchParams& p) {
  return {.batch = p.batch,
          .heads = p.heads,
          .kv_heads = p.kv_heads,
          .q_len = p.q_len,
          .kv_len = p.kv_len};
}

template <typename RowType>
std::int64_t offset_of(const RowType& row, std::int64_t head, std::int64_t index,
                       const att::Strides& stride) {
  return row.b * stride.batch + head * stride.head + index * stride.seq;
}

}  // namespace

GradientOracle::GradientOracle(Device& device, const AttentionSpec& spec)
    : device_(device),
      dtype_(spec.dtype),
      qk_(static_cast<std::size_t>(spec.head_dim_qk)),
      v_(static_cast<std::size_t>(spec.head_dim_v)),
      has_sink_(spec.sink != nullptr),
      tensors_(spec.environment.tensors) {}

Result<std::unique_ptr<GradientOracle>> GradientOracle::make(Device& device, Compiler& compiler,
                                                             const AttentionSpec& spec) {
  if (is_packed(spec)) return unsupported("the device's oracle knows no packed sequences");
  if (has_scaled_cache(spec))
    return unsupported("the device's oracle reads K and V in the dtype of Q");
  // The head wants a plan, whose constants the template does not read.
  ATT_TRY(const KernelPlan plan, default_plan(spec, {}, device.facts(), Pass::kBackward));
  ATT_TRY(std::string head, head_text(spec, plan, "att_gradients"));
  head += tolerance_constants(spec, plan.target);
  ATT_TRY(
      const std::string source,
      flatten_template(plan.target == Target::kCpu ? "templates/kernels/cpu_reference_backward.h"
                                                   : "templates/kernels/reference_backward.cuh",
                       head));
  ATT_TRY(const CompiledKernel code,
          compiler.compile(source, "att_gradients_queries", plan.target));
  std::unique_ptr<GradientOracle> oracle(new GradientOracle(device, spec));
  ATT_CHECK(oracle->load(code.image));
  return oracle;
}

Status GradientOracle::load(const std::vector<std::uint8_t>& image) {
  for (const auto& [function, symbol] : {std::pair{&deltas_, "att_gradients_deltas"},
                                         {&sinks_, "att_gradients_sinks"},
                                         {&query_rows_, "att_gradients_queries"},
                                         {&key_rows_, "att_gradients_keys"},
                                         {&judge_, "att_gradients_judge"}}) {
    ATT_TRY(*function,
            device_.load_function({.symbol = symbol, .threads = 32 * kWarpsOfBlock}, image));
  }
  return ok_status();
}

att::GradientReferenceParams GradientOracle::params_of(const Answer& answer,
                                                       const att::LaunchParams& params) const {
  return {.launch = params,
          .queries = static_cast<const long long*>(answer.queries.get()),
          .keys = static_cast<const long long*>(answer.keys.get()),
          .query_count = static_cast<long long>(answer.sample.queries.size()),
          .key_count = static_cast<long long>(answer.sample.keys.size()),
          .deltas = static_cast<double*>(answer.deltas.get()),
          .d_q = static_cast<float*>(answer.d_q.get()),
          .d_k = static_cast<float*>(answer.d_k.get()),
          .d_v = static_cast<float*>(answer.d_v.get()),
          .sink = static_cast<float*>(answer.sink.get()),
          .tensors = {},
          .worst = static_cast<float*>(answer.worst.get())};
}

Status GradientOracle::run(const LoadedFunction& function,
                           const att::GradientReferenceParams& params, std::size_t count) {
  if (count == 0) return ok_status();
  const std::size_t rows =
      device_.facts().target == Target::kCpu ? 1 : static_cast<std::size_t>(kWarpsOfBlock);
  return function.launch(&params, static_cast<int>((count + rows - 1) / rows), nullptr);
}

Result<GradientOracle::Answer> GradientOracle::answer(const att::LaunchParams& params,
                                                      BackwardSample sample) {
  Answer answer;
  answer.sample = std::move(sample);
  const std::size_t queries = answer.sample.queries.size(), keys = answer.sample.keys.size();
  const std::size_t rows = static_cast<std::size_t>(params.batch) *
                           static_cast<std::size_t>(params.heads) *
                           static_cast<std::size_t>(params.q_len);
  const auto upload = [&](const std::vector<long long>& numbers) -> Result<std::shared_ptr<void>> {
    ATT_TRY(std::shared_ptr<void> on_device,
            allocate_shared_on(device_, numbers.size() * sizeof(long long)));
    ATT_CHECK(device_.copy_to_device(on_device.get(), numbers.data(),
                                     numbers.size() * sizeof(long long)));
    return on_device;
  };
  ATT_TRY(answer.queries, upload(numbers_of(params, answer.sample.queries)));
  ATT_TRY(answer.keys, upload(numbers_of(params, answer.sample.keys)));
  ATT_TRY(answer.deltas, allocate_shared_on(device_, 2 * rows * sizeof(double)));
  ATT_TRY(answer.d_q, allocate_shared_on(device_, 2 * queries * qk_ * sizeof(float)));
  ATT_TRY(answer.d_k, allocate_shared_on(device_, 2 * keys * qk_ * sizeof(float)));
  ATT_TRY(answer.d_v, allocate_shared_on(device_, 2 * keys * v_ * sizeof(float)));
  ATT_TRY(answer.worst, allocate_shared_on(device_, (queries + keys) * sizeof(float)));
  att::GradientReferenceParams own = params_of(answer, params);
  ATT_CHECK(run(*deltas_, own, rows));
  if (queries == rows) {
    ATT_CHECK(sum_up_learned(own, answer));
  } else {
    ATT_CHECK(run(*query_rows_, own, queries));
  }
  ATT_CHECK(run(*key_rows_, own, keys));
  ATT_CHECK(device_.synchronize());
  return answer;
}

// All rows of dQ, with what they add to tensors.
Status GradientOracle::sum_up_learned(att::GradientReferenceParams& own, Answer& answer) {
  const att::LaunchParams& params = own.launch;
  const ProblemShape shape = shape_of(params);
  const auto heads = static_cast<std::size_t>(shape.batch * shape.heads);
  std::vector<std::shared_ptr<void>> sums(tensors_.size());
  std::vector<std::size_t> counts(tensors_.size());
  for (std::size_t slot = 0; slot < tensors_.size(); ++slot) {
    const std::int64_t count = element_count(tensor_sizes(tensors_[slot], shape));
    if (!tensors_[slot].grad || params.d_tensors[slot] == nullptr || count > kLearnedElements)
      continue;
    counts[slot] = static_cast<std::size_t>(count);
    const std::size_t bytes = counts[slot] * att::kLearnedSums * sizeof(double);
    ATT_TRY(sums[slot], allocate_shared_on(device_, bytes));
    ATT_CHECK(device_.fill(sums[slot].get(), 0, bytes));
    own.tensors[slot] = static_cast<double*>(sums[slot].get());
  }
  ATT_CHECK(run(*query_rows_, own, answer.sample.queries.size()));
  if (has_sink_) {
    ATT_TRY(answer.sink, allocate_shared_on(device_, 2 * heads * sizeof(float)));
    own.sink = static_cast<float*>(answer.sink.get());
    ATT_CHECK(run(*sinks_, own, heads));
  }
  ATT_CHECK(device_.synchronize());
  if (has_sink_ && params.d_sink != nullptr) {
    ATT_TRY(answer.of_sink,
            read_pairs(device_, "the gradient of the sink", 1, answer.sink.get(), heads));
  }
  for (std::size_t slot = 0; slot < tensors_.size(); ++slot) {
    answer.tensors.emplace_back();
    if (sums[slot] == nullptr) continue;
    std::vector<double> raw(counts[slot] * att::kLearnedSums);
    ATT_CHECK(device_.copy_to_host(raw.data(), sums[slot].get(), raw.size() * sizeof(double)));
    Sums of_tensor(counts[slot]);
    for (std::size_t i = 0; i < counts[slot]; ++i) {
      const double* const one = &raw[i * att::kLearnedSums];
      of_tensor.values[i] = one[0];
      of_tensor.variances[i] = one[1];
      of_tensor.squares[i] = one[2];
      of_tensor.counts[i] = one[3];
    }
    answer.tensors[slot] =
        finished("the gradient of " + tensors_[slot].name, 1, std::move(of_tensor), 0,
                 kLargestFp32Rounding, std::numeric_limits<float>::min());
  }
  return ok_status();
}

Result<Verdict> GradientOracle::judge(const Answer& answer, const att::LaunchParams& params) {
  const std::size_t rows = answer.sample.queries.size() + answer.sample.keys.size();
  ATT_CHECK(run(*judge_, params_of(answer, params), rows));
  ATT_TRY(Verdict verdict,
          verdict_of_rows(device_, answer.worst.get(), rows,
                          [&](std::size_t slot) { return describe(answer, slot, params); }));
  if (verdict.worst > 1) return verdict;
  ATT_TRY(const Verdict learned, judge_learned(answer, params));
  return learned.worst > verdict.worst ? learned : verdict;
}

Result<Verdict> GradientOracle::judge_learned(const Answer& answer,
                                              const att::LaunchParams& params) {
  Verdict worst;
  const auto look_at = [&](const Expected& expected, const float* data) -> Status {
    if (expected.values.empty()) return ok_status();
    std::vector<float> values(expected.values.size());
    ATT_CHECK(device_.copy_to_host(values.data(), data, values.size() * sizeof(float)));
    Verdict verdict = attune::judge(expected, std::vector<double>(values.begin(), values.end()));
    if (verdict.worst > worst.worst) worst = std::move(verdict);
    return ok_status();
  };
  for (std::size_t slot = 0; slot < answer.tensors.size(); ++slot)
    ATT_CHECK(look_at(answer.tensors[slot], params.d_tensors[slot]));
  ATT_CHECK(look_at(answer.of_sink, params.d_sink));
  return worst;
}

Result<Verdict> GradientOracle::verdict_of_row(const Expected& expected, const void* data,
                                               std::int64_t at) {
  const auto width = static_cast<std::size_t>(element_bytes(dtype_));
  std::vector<std::byte> bits(expected.width * width);
  ATT_CHECK(device_.copy_to_host(
      bits.data(), static_cast<const std::byte*>(data) + static_cast<std::size_t>(at) * width,
      bits.size()));
  return attune::judge(expected, decode(dtype_, bits));
}

Result<std::string> GradientOracle::describe(const Answer& answer, std::size_t slot,
                                             const att::LaunchParams& params) {
  const auto pairs_at = [](const std::shared_ptr<void>& pairs, std::size_t row, std::size_t width) {
    return static_cast<const float*>(pairs.get()) + 2 * row * width;
  };
  const std::size_t queries = answer.sample.queries.size();
  if (slot < queries) {
    const Row& row = answer.sample.queries[slot];
    ATT_TRY(const Expected expected,
            read_pairs(device_, "dq", qk_, pairs_at(answer.d_q, slot, qk_), qk_));
    ATT_TRY(
        const Verdict verdict,
        verdict_of_row(expected, params.d_q, offset_of(row, row.h, row.q_idx, params.d_q_stride)));
    return fmt::format("b {}, h {}, q_idx {}: {}", row.b, row.h, row.q_idx, verdict.wrong);
  }
  const std::size_t key = slot - queries;
  const KeyRow& row = answer.sample.keys[key];
  ATT_TRY(const Expected dk, read_pairs(device_, "dk", qk_, pairs_at(answer.d_k, key, qk_), qk_));
  ATT_TRY(const Expected dv, read_pairs(device_, "dv", v_, pairs_at(answer.d_v, key, v_), v_));
  ATT_TRY(const Verdict of_k,
          verdict_of_row(dk, params.d_k, offset_of(row, row.h_kv, row.kv_idx, params.d_k_stride)));
  ATT_TRY(const Verdict of_v,
          verdict_of_row(dv, params.d_v, offset_of(row, row.h_kv, row.kv_idx, params.d_v_stride)));
  return fmt::format("b {}, h_kv {}, kv_idx {}: {}", row.b, row.h_kv, row.kv_idx,
                     of_k.worst > of_v.worst ? of_k.wrong : of_v.wrong);
}

Result<BackwardOracle> GradientOracle::download(const Answer& answer) {
  const std::size_t queries = answer.sample.queries.size(), keys = answer.sample.keys.size();
  BackwardOracle oracle;
  ATT_TRY(oracle.dq, read_pairs(device_, "dq", qk_, answer.d_q.get(), queries * qk_));
  ATT_TRY(oracle.dk, read_pairs(device_, "dk", qk_, answer.d_k.get(), keys * qk_));
  ATT_TRY(oracle.dv, read_pairs(device_, "dv", v_, answer.d_v.get(), keys * v_));
  oracle.tensors = answer.tensors;
  oracle.sink = answer.of_sink;
  return oracle;
}

}  // namespace attune

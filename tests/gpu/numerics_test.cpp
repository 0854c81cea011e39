// Every family over head dims, dtypes, lengths and head groups, and over the whole library of
// specs.
#include <fmt/format.h>

#include <regex>

#include "generator/spec/library.hpp"
#include "tests/gpu/judge.hpp"

namespace attune::gpu_test {
namespace {

struct Case {
  std::string name;
  AttentionSpec spec;
  std::vector<ProblemShape> shapes;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::string identifier(std::string_view text) {
  return std::regex_replace(std::string(text), std::regex("[^A-Za-z0-9]+"), "_");
}

// q_len = kv_len and not, more queries than keys, one query; 1, 4 and 8 query heads a key head.
const std::vector<ProblemShape>& lengths() {
  static const std::vector<ProblemShape> shapes = {
      {.batch = 2, .heads = 4, .kv_heads = 1, .q_len = 1, .kv_len = 1},
      {.batch = 1, .heads = 8, .kv_heads = 1, .q_len = 17, .kv_len = 17},
      {.batch = 2, .heads = 2, .kv_heads = 2, .q_len = 127, .kv_len = 127},
      {.batch = 1, .heads = 8, .kv_heads = 2, .q_len = 128, .kv_len = 128},
      {.batch = 1, .heads = 8, .kv_heads = 8, .q_len = 129, .kv_len = 129},
      {.batch = 1, .heads = 8, .kv_heads = 1, .q_len = 1000, .kv_len = 1000},
      {.batch = 1, .heads = 4, .kv_heads = 1, .q_len = 1, .kv_len = 4096},
      {.batch = 2, .heads = 4, .kv_heads = 4, .q_len = 17, .kv_len = 1000},
      {.batch = 1, .heads = 8, .kv_heads = 2, .q_len = 1000, .kv_len = 127},
      {.batch = 1, .heads = 2, .kv_heads = 2, .q_len = 129, .kv_len = 4096},
      {.batch = 1, .heads = 2, .kv_heads = 1, .q_len = 4096, .kv_len = 4096},
  };
  return shapes;
}

std::vector<Case> head_dim_cases() {
  std::vector<Case> cases;
  for (const char* dtype : {"fp16", "bf16", "fp32", "fp32\nprecision: tf32"}) {
    for (const char* dims :
         {"16", "40", "64", "80", "96", "128", "192", "256", "{qk: 192, v: 128}"}) {
      for (const char* mask : {"true", "causal"}) {
        const std::string name = fmt::format("{}_d{}_{}", dtype, dims, mask);
        cases.push_back({identifier(name),
                         spec_of(fmt::format("name: test\ndtype: {}\nhead_dim: {}\nmask: {}\n",
                                             dtype, dims, mask)),
                         lengths()});
      }
    }
  }
  return cases;
}

// What the library lacks, in both precisions of fp32: dropout, and a few specs beside it.
std::vector<Case> fp32_cases() {
  std::vector<Case> cases;
  for (const char* precision : {"strict", "tf32"}) {
    for (const char* lines :
         {"head_dim: 64\nmask: causal\ndropout: 0.25", "head_dim: 128\ndropout: 0.5",
          "head_dim: 80\nmask: 0 <= q_idx - kv_idx < 100\nscore: 20 * tanh(score / 20)",
          "head_dim: 40\nmask: (q_idx - kv_idx) % 3 == 0\nsink: 0.5",
          "head_dim: 128\nmask: causal\nscore: score + 0.02 * (kv_idx - q_idx)\n"
          "softmax_scale: float"}) {
      const std::string name = fmt::format("fp32_{}_{}", precision, lines);
      cases.push_back(
          {identifier(name),
           spec_of(fmt::format("name: test\ndtype: fp32\nprecision: {}\n{}\n", precision, lines)),
           lengths()});
    }
  }
  return cases;
}

// The library as it stands: GPU dtypes only, lengths that no tile divides; and in fp32.
std::vector<Case> library_cases() {
  std::vector<Case> cases;
  for (const LibrarySpec& entry : spec_library()) {
    auto spec = parse_spec(entry.text, entry.path);
    if (!spec.ok() || spec->dtype == DType::kF32 || spec->dtype == DType::kFp8E4m3) continue;
    AttentionSpec in_fp32 = *spec;
    in_fp32.dtype = DType::kF32;
    if (!entry.name.starts_with("bench/") && !entry.name.starts_with("models/")) {
      cases.push_back({identifier(entry.name) + "_fp32",
                       std::move(in_fp32),
                       {{.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 129, .kv_len = 300},
                        {.batch = 1, .heads = 2, .kv_heads = 1, .q_len = 1000, .kv_len = 1000}}});
    }
    cases.push_back({identifier(entry.name),
                     *std::move(spec),
                     {{.batch = 2, .heads = 8, .kv_heads = 2, .q_len = 1000, .kv_len = 1000},
                      {.batch = 1, .heads = 4, .kv_heads = 4, .q_len = 129, .kv_len = 300},
                      {.batch = 2, .heads = 4, .kv_heads = 1, .q_len = 300, .kv_len = 129},
                      {.batch = 1, .heads = 2, .kv_heads = 1, .q_len = 2100, .kv_len = 2100}}});
  }
  return cases;
}

class Numerics : public testing::TestWithParam<Case> {};

TEST_P(Numerics, KeepsFlashAttentionsRule) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const Case& c = GetParam();
  if (!families_for(c.spec, bank.device().facts().target).ok())
    GTEST_SKIP() << "no family serves it";
  const std::vector<KernelPlan> plans =
      plans_of_families(c.spec, c.shapes.back(), bank.device().facts());
  std::uint64_t seed = std::hash<std::string>{}(c.name);
  for (const ProblemShape& shape : c.shapes) {
    EXPECT_TRUE(judge(c.spec, random_problem(c.spec, shape, ++seed), plans));
  }
}

const auto kName = [](const testing::TestParamInfo<Case>& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(HeadDims, Numerics, testing::ValuesIn(head_dim_cases()), kName);
INSTANTIATE_TEST_SUITE_P(Fp32, Numerics, testing::ValuesIn(fp32_cases()), kName);
INSTANTIATE_TEST_SUITE_P(Library, Numerics, testing::ValuesIn(library_cases()), kName);

// Compiles for the tests that will run, all at once.
class CompileFirst : public testing::Environment {
 public:
  void SetUp() override {
    KernelBank& bank = KernelBank::instance();
    if (!bank.missing().empty()) return;
    std::vector<Request> requests;
    for (const auto& [suite, cases] : {std::pair{"HeadDims/Numerics", head_dim_cases()},
                                       {"Fp32/Numerics", fp32_cases()},
                                       {"Library/Numerics", library_cases()}}) {
      for (const Case& c : cases) {
        if (!will_run(suite, c.name)) continue;
        for (const KernelPlan& plan :
             cheapest_of_families(c.spec, c.shapes.back(), bank.device().facts())) {
          requests.push_back({c.spec, plan});
        }
      }
    }
    bank.prepare(requests);
  }
};
const auto* const kCompileFirst = testing::AddGlobalTestEnvironment(new CompileFirst);

}  // namespace
}  // namespace attune::gpu_test

// Dims that are computed from a size: what may be written, what it comes down to, what is refused.
#include <gtest/gtest.h>

#include <string>

#include "generator/spec/limits.hpp"
#include "generator/spec/shape.hpp"

namespace attune {
namespace {

std::string yaml_with(std::string_view dim) {
  return "attune: 1\nname: m\ndtype: bf16\nhead_dim: 64\ntensors: {t: {dtype: int32, dims: [" +
         std::string(dim) + "]}}\nmask: t[q_idx] == 1\n";
}
// Of the dim in yaml_with, counted from 1.
constexpr int kLine = 5, kColumn = 36;

expr::DimSize dim_of(std::string_view text) {
  const auto spec = parse_spec(yaml_with(text), "test.yaml");
  EXPECT_TRUE(spec.ok()) << render(spec.error());
  return spec.ok() ? spec->environment.tensors[0].dims[0] : expr::DimSize{};
}

TEST(ComputedDims, HaveOneTextForOneSize) {
  const struct {
    std::string_view written, canonical;
  } cases[] = {
      {"q_len", "q_len"},
      {"(q_len)", "q_len"},
      {"q_len // 1", "q_len"},
      {"4 * q_len // 4", "q_len"},
      {"q_len // 64", "q_len // 64"},
      {"q_len//8//8", "q_len // 64"},
      {"(q_len + 127) // 128", "(q_len + 127) // 128"},
      {"(127 + q_len) // 128", "(q_len + 127) // 128"},
      {"(q_len - 1) // 128 + 1", "(q_len + 127) // 128"},
      {"-(-q_len // 128)", "(q_len + 127) // 128"},
      {"1 - -kv_len // 2", "(kv_len + 3) // 2"},
      {"2 * q_len // 4", "q_len // 2"},
      {"(2 * q_len + 5) // 4", "(q_len + 2) // 2"},
      {"(2 * q_len - 5) // 4", "(q_len - 3) // 2"},
      {"2 * kv_len - 1", "2 * kv_len - 1"},
      {"kv_len + kv_len - 1", "2 * kv_len - 1"},
      {"kv_len * 3 // 2", "3 * kv_len // 2"},
      {"batch + 1", "batch + 1"},
      {"heads * 4", "4 * heads"},
      {"(kv_heads + 3 - 2) // (1 + 1)", "(kv_heads + 1) // 2"},
      {"'q_len // 64'", "q_len // 64"},
      {"4 * 16 // 3", "21"},
      {"q_len - q_len + 7", "7"},
      {"q_len * 4", "4 * q_len"},
      {"(q_len + 1048576) // 1048576", "(q_len + 1048576) // 1048576"},
  };
  for (const auto& test : cases) {
    const expr::DimSize dim = dim_of(test.written);
    EXPECT_EQ(dim_text(dim), test.canonical) << test.written;
    EXPECT_EQ(dim_of(test.canonical), dim) << test.written;
    EXPECT_EQ(spec_hash(*parse_spec(yaml_with(test.written), "f")),
              spec_hash(*parse_spec(yaml_with(test.canonical), "f")));
  }
}

TEST(ComputedDims, AreSizesOfAnyProblemAndNeverNone) {
  ProblemShape shape{.batch = 3, .heads = 12, .kv_heads = 4, .q_len = 1, .kv_len = 1};
  EXPECT_EQ(dim_size(dim_of("batch + 1"), shape), 4);
  EXPECT_EQ(dim_size(dim_of("heads // 5"), shape), 2);
  EXPECT_EQ(dim_size(dim_of("3 * kv_heads // 2"), shape), 6);
  for (std::int64_t length = 1; length < 300; ++length) {
    shape.q_len = length;
    shape.kv_len = 2 * length;
    EXPECT_EQ(dim_size(dim_of("(q_len + 127) // 128"), shape), (length + 127) / 128);
    EXPECT_EQ(dim_size(dim_of("-(-q_len // 128)"), shape), (length + 127) / 128);
    EXPECT_EQ(dim_size(dim_of("2 * kv_len - 1"), shape), 4 * length - 1);
    EXPECT_EQ(dim_size(dim_of("q_len // 64"), shape), std::max<std::int64_t>(length / 64, 1));
    EXPECT_EQ(dim_size(dim_of("(2 * q_len - 5) // 4"), shape),
              std::max<std::int64_t>((2 * length - 5) / 4, 1));
    EXPECT_EQ(dim_size(dim_of("q_len - 9"), shape), std::max<std::int64_t>(length - 9, 1));
  }
  shape.q_len = expr::kMaxSequenceLength;
  const std::int64_t largest = dim_size(dim_of("4 * q_len + 1048576"), shape);
  EXPECT_EQ(largest, 4 * expr::kMaxSequenceLength + kMaxDimOffset);
  EXPECT_EQ(static_cast<int>(largest), largest);
}

TEST(ComputedDims, AreRefusedWhereTheyAreWrong) {
  const struct {
    std::string_view text, id;
    int column;  // of the dim
  } cases[] = {
      {"q_lenn // 64", "spec-unknown-value", 1},
      {"2 * length", "spec-unknown-value", 5},
      {"q_len / 64", "spec-dim", 7},
      {"q_len // 0", "spec-dim", 10},
      {"q_len // -4", "spec-dim", 10},
      {"q_len // heads", "spec-dim", 10},
      {"q_len * kv_len", "spec-dim", 1},
      {"1 + q_len + kv_len", "spec-dim", 1},
      {"q_len % 64", "spec-dim", 1},
      {"q_len // 2 * 2", "spec-dim", 1},
      {"q_len // 2 + q_len", "spec-dim", 1},
      {"1 + ceil(q_len // 2)", "spec-dim", 5},
      {"2.5 * q_len", "spec-dim", 1},
      {"q_len > 4", "spec-dim", 1},
      {"not q_len", "spec-dim", 1},
      {"q_len +", "expr-unexpected-end", 8},
      {"(q_len", "expr-unexpected-end", 7},
      {"q_len 64", "expr-unexpected-token", 7},
      {"5 * q_len", "spec-out-of-range", 1},
      {"1 - q_len", "spec-out-of-range", 1},
      {"q_len + 1048577", "spec-out-of-range", 1},
      {"q_len // 1048577", "spec-out-of-range", 1},
      {"q_len // 65536 // 65536 // 65536", "spec-out-of-range", 1},
      {"2000000000 * 2000000000", "spec-out-of-range", 1},
      {"8 - 8", "spec-out-of-range", 1},
      {"16777217 * 1", "spec-out-of-range", 1},
  };
  for (const auto& test : cases) {
    const auto spec = parse_spec(yaml_with(test.text), "test.yaml");
    ASSERT_FALSE(spec.ok()) << test.text;
    const Error& error = spec.error();
    EXPECT_EQ(error.id, test.id) << render(error);
    EXPECT_EQ(error.span.line, kLine) << render(error);
    EXPECT_EQ(error.span.column, kColumn + test.column - 1) << render(error);
    EXPECT_EQ(error.kind, ErrorKind::kBadInput);
  }
  EXPECT_EQ(parse_spec(yaml_with("q_lenn // 64"), "f").error().hint, "did you mean `q_len`?");
  EXPECT_EQ(parse_spec(yaml_with("q_len / 64"), "f").error().hint, "`//` divides and rounds down");
  const std::string deep = std::string(5000, '(') + "q_len" + std::string(5000, ')');
  EXPECT_FALSE(parse_spec(yaml_with(deep), "f").ok());
}

}  // namespace
}  // namespace attune

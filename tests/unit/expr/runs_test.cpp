#include "generator/expr/runs.hpp"

#include <algorithm>

#include "generator/expr/build.hpp"
#include "tests/unit/expr/fixture.hpp"

namespace attune::expr {
namespace {

// The environment, and behind it where runs of `doc` begin and end.
const Environment& environment_with_runs() {
  static const Environment environment = [] {
    Environment with_runs = test_environment();
    for (const char* const name : {"first", "behind"}) {
      TensorDecl positions = with_runs.tensors[0];
      positions.name = name;
      with_runs.tensors.push_back(positions);
    }
    return with_runs;
  }();
  return environment;
}
constexpr RunTensors kTensors = {.begin = 4, .end = 5};

std::string by_runs(std::string_view mask, RunsOf whose) {
  const auto form = run_form(parsed(mask));
  if (!form) return "no runs";
  return print(mask_by_runs(*form, kTensors, whose).by_runs, environment_with_runs());
}

TEST(Runs, AreOfTensorsThatQueryAndKeyLookUpAlike) {
  for (const std::string_view mask :
       {"document(doc)", "causal and document(doc)", "doc[b, kv_idx] == doc[b, q_idx]",
        "doc[b, q_idx] == doc[b, kv_idx] and slope[h] < 2",
        "doc[0, q_idx] == doc[0, kv_idx] and kv_idx < limit"}) {
    ASSERT_TRUE(run_form(parsed(mask))) << mask;
    EXPECT_EQ(run_form(parsed(mask))->slot(), 0) << mask;
  }
  for (const std::string_view mask :
       {"causal", "causal or document(doc)", "not document(doc)", "doc[b, q_idx] <= doc[b, kv_idx]",
        "doc[b, q_idx] == doc[0, kv_idx]", "doc[b, q_idx] == doc[b, kv_idx - 1]",
        "doc[b, q_idx] == doc[b, kv_idx // 2]", "doc[b, q_idx + kv_idx] == doc[b, kv_idx]",
        "doc[b, 3] == doc[b, kv_idx]", "doc[q_idx, q_idx] == doc[q_idx, kv_idx]",
        "doc[doc[b, 0], q_idx] == doc[doc[b, 0], kv_idx]", "doc[b, q_idx] == limit",
        // An index that may lie beyond every end that a run has.
        "doc[b, q_idx * 4] == doc[b, kv_idx]", "doc[b, q_idx + limit] == doc[b, kv_idx]"}) {
    EXPECT_FALSE(run_form(parsed(mask))) << mask;
  }
  EXPECT_FALSE(run_form(nullptr));
}

TEST(Runs, OneEndIsEnoughUnderACausalMask) {
  EXPECT_EQ(by_runs("causal and doc[b, q_pos] == doc[b, kv_idx]", RunsOf::kQuery),
            print(parsed("causal"), test_environment()) +
                " and first[b, q_idx + (kv_len - q_len)] <= kv_idx");
  EXPECT_EQ(by_runs("q_idx >= kv_idx and doc[b, q_idx] == doc[b, kv_idx]", RunsOf::kKey),
            "q_idx >= kv_idx and q_idx < behind[b, kv_idx]");
  EXPECT_EQ(by_runs("kv_idx < q_idx and doc[b, q_idx] == doc[b, kv_idx]", RunsOf::kBoth),
            "kv_idx < q_idx and (first[b, q_idx] <= kv_idx and q_idx < behind[b, kv_idx])");
  // Causal in another sense than that of the tensor's positions.
  EXPECT_EQ(by_runs("causal and doc[b, q_idx] == doc[b, kv_idx]", RunsOf::kQuery),
            print(parsed("causal"), test_environment()) +
                " and (first[b, q_idx] <= kv_idx and kv_idx < behind[b, q_idx])");
}

TEST(Runs, BothEndsAreAskedForElse) {
  EXPECT_EQ(by_runs("doc[b, q_idx] == doc[b, kv_idx]", RunsOf::kQuery),
            "first[b, q_idx] <= kv_idx and kv_idx < behind[b, q_idx]");
  EXPECT_EQ(by_runs("doc[b, q_idx] == doc[b, kv_idx]", RunsOf::kKey),
            "q_idx < behind[b, kv_idx] and first[b, kv_idx] <= q_idx");
}

// Of numbers in the order of `numbers`, a row for each batch index: what the launch in front of a
// kernel works out.
struct Numbers {
  std::vector<double> numbers, begin, end;

  explicit Numbers(std::vector<double> row) : numbers(std::move(row)) {
    const auto size = static_cast<int>(numbers.size());
    for (int at = 0; at < size; ++at) {
      int first = at, behind = at + 1;
      while (first > 0 && number(first - 1) == number(at)) --first;
      while (behind < size && number(behind) == number(at)) ++behind;
      for (int other = 0; other < size; ++other)
        is_told = is_told && (number(other) != number(at) || (other >= first && other < behind));
      begin.push_back(first == 0 ? kRunsBegin : first);
      end.push_back(behind == size ? kRunsEnd : behind);
    }
    if (is_told) return;
    begin.assign(numbers.size(), kNoRuns);
    end.assign(numbers.size(), kRunsEnd);
  }
  double number(int at) const { return numbers[static_cast<std::size_t>(at)]; }
  bool is_told = true;
};

// Lengths of 6 queries and 8 keys, and the other way round: indices are clamped into the row of 7.
TEST(Runs, MaskIsWhatItWas) {
  for (const std::vector<double>& row : {std::vector<double>{0, 0, 1, 1, 1, 2, 2},
                                         {7, 7, 3, 3, -1, -1, -5},
                                         {4, 4, 4, 4, 4, 4, 4},
                                         {1, 1, 5, 5, 2, 2, -1},
                                         {1, 2, 1, 2, 1, 2, 1},
                                         {1, 1, 2, 2, 3, 1, 1}}) {
    const Numbers made(row);
    const std::vector<TensorValues> tensors = {{{1, 7}, made.numbers}, {{1}, {1}},
                                               {{1, 1}, {1}},          {{}, {1}},
                                               {{1, 7}, made.begin},   {{1, 7}, made.end}};
    for (const std::string_view text :
         {"document(doc)", "causal and document(doc)", "doc[b, q_idx] == doc[b, kv_idx]",
          "causal and doc[b, q_idx] == doc[b, kv_idx]",
          "doc[b, q_idx] == doc[b, kv_idx] and abs(q_idx - kv_idx) < 3"}) {
      const Expr mask = parsed(text);
      for (const RunsOf whose : {RunsOf::kQuery, RunsOf::kKey, RunsOf::kBoth}) {
        const MaskByRuns by = mask_by_runs(*run_form(mask), kTensors, whose);
        for (const int q_len : {6, 7, 8}) {
          const int kv_len = 14 - q_len;
          for (int at = 0; at < q_len * kv_len; ++at) {
            const double scalars[] = {4, 2, 7};
            Point point;
            point.q_idx = at / kv_len;
            point.kv_idx = at % kv_len;
            point.q_len = q_len;
            point.kv_len = kv_len;
            point.scalars = scalars;
            point.tensors = tensors;
            EXPECT_EQ(evaluate(by.is_told, point), made.is_told ? 1 : 0) << text;
            if (made.is_told) {
              EXPECT_EQ(evaluate(by.by_runs, point), evaluate(mask, point)) << text;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace attune::expr

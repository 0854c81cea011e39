#include "generator/expr/global_keys.hpp"

#include "tests/unit/expr/fixture.hpp"

namespace attune::expr {
namespace {

constexpr double kScalars[] = {4, 0, 0};  // of test_environment()

TEST(GlobalKeys, AreShownByTheKeyAloneBesideWhatNearQueriesSee) {
  for (const std::string_view text :
       {"causal and (q_pos - kv_idx < window or kv_idx < 4)", "sink_window(1024, 4)",
        "global_window(128, 2)", "doc[b, kv_idx] == 0 or abs(kv_idx - q_idx) < 9"}) {
    EXPECT_TRUE(has_global_keys(parsed(text), kScalars)) << text;
  }
}

TEST(GlobalKeys, AreNoneWhereFarQueriesSeeTheOthersTooOrNobodyDoes) {
  for (const std::string_view text :
       {"causal", "sliding_window(1024)", "kv_idx < 4", "kv_idx < 4 or kv_idx > 100",
        "q_idx < 4 or causal", "prefix_lm(16)", "document(doc)", "sink_window(9000, 4)"}) {
    EXPECT_FALSE(has_global_keys(parsed(text), kScalars)) << text;
  }
  EXPECT_FALSE(has_global_keys(nullptr, {}));
}

TEST(GlobalQueries, SeeAllKeysWhereOthersDoNot) {
  for (const std::string_view text : {"global_window(128, 2)", "q_idx < 4 or causal",
                                      "q_idx < 4 or doc[b, kv_idx] == 0", "kv_idx >= q_idx"}) {
    EXPECT_TRUE(has_global_queries(parsed(text), kScalars)) << text;
  }
  for (const std::string_view text :
       {"causal", "kv_idx < 100", "sink_window(1024, 4)", "document(doc)",
        "abs(kv_idx - q_idx) < 9", "abs(kv_idx - q_idx) < 100000"}) {
    EXPECT_FALSE(has_global_queries(parsed(text), kScalars)) << text;
  }
  EXPECT_FALSE(has_global_queries(nullptr, {}));
}

}  // namespace
}  // namespace attune::expr

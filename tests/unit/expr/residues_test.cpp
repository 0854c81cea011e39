#include "generator/expr/residues.hpp"

#include "tests/unit/expr/fixture.hpp"

namespace attune::expr {
namespace {

int modulus_of(std::string_view text) {
  const auto form = residue_form(parsed(text));
  return form ? form->modulus : 1;
}

std::string rest_of_part(std::string_view text) {
  const auto form = residue_form(parsed(text));
  if (!form) return "no residues";
  const Expr rest = by_residues(form->rest, form->modulus);
  return rest ? print(rest, test_environment()) : "none";
}

TEST(Residues, AreFoundInWhatAllOfTheMaskNeeds) {
  EXPECT_EQ(modulus_of("dilated(8)"), 8);
  EXPECT_EQ(modulus_of("(q_idx - kv_idx) % 5 == 0 and abs(q_idx - kv_idx) < 100"), 5);
  EXPECT_EQ(modulus_of("causal and q_idx % 3 == kv_idx % 3"), 3);
  EXPECT_EQ(modulus_of("0 == (kv_idx - q_idx + 6) % 2"), 2);
  EXPECT_EQ(modulus_of("(q_idx - kv_idx) % 4 == 0 and (q_idx - kv_idx) % 6 == 0"), 6);
  EXPECT_EQ(modulus_of("(q_idx - kv_idx) & 7 == 0"), 8);
}

TEST(Residues, AreNoneElsewhere) {
  for (const std::string_view text :
       {"causal", "causal or (q_idx - kv_idx) % 8 == 0", "(q_idx - kv_idx) % 8 == 1",
        "(q_idx + kv_idx) % 8 == 0", "(q_idx - 2 * kv_idx) % 8 == 0", "q_idx % 8 == 0",
        "(q_idx - kv_idx) % limit == 0", "(q_idx - kv_idx) % 128 == 0", "q_idx % 8 == kv_idx % 4",
        "not ((q_idx - kv_idx) % 8 == 0)", "(q_idx - kv_idx + limit) % 8 == 0"}) {
    EXPECT_EQ(modulus_of(text), 1) << text;
  }
  EXPECT_FALSE(residue_form(nullptr));
}

// So that a residue of a causal mask is a causal mask to all that looks at it.
TEST(Residues, DistancesAreThoseOfWholeSequencesDivided) {
  EXPECT_EQ(rest_of_part("dilated(8)"), print(parsed("causal"), test_environment()));
  EXPECT_EQ(rest_of_part("(q_idx - kv_idx) % 4 == 0 and abs(q_idx - kv_idx) <= 18"),
            "abs(q_idx - kv_idx) <= 4");
  EXPECT_EQ(rest_of_part("(q_idx - kv_idx) % 4 == 0 and q_idx - kv_idx < 18"),
            "q_idx - kv_idx < 5");
  EXPECT_EQ(rest_of_part("(q_idx - kv_idx) % 4 == 0"), "none");
  EXPECT_EQ(rest_of_part("(q_idx - kv_idx) % 4 == 0 and kv_idx < 9"), "kv_idx * 4 + b % 4 < 9");
}

}  // namespace
}  // namespace attune::expr

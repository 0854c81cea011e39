// What the command says to words that it does not know.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/process.hpp"

namespace attune::cli_test {
namespace {

using testing::HasSubstr;

struct Slip {
  const char* what;
  std::vector<std::string> arguments;
  const char* complaint;
  const char* hint;
};

class Slips : public testing::TestWithParam<Slip> {};

TEST_P(Slips, AreNamedWithWhatWasMeant) {
  const Outcome outcome = attune(GetParam().arguments);
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr(GetParam().complaint));
  EXPECT_THAT(outcome.err, HasSubstr(GetParam().hint));
}

INSTANTIATE_TEST_SUITE_P(
    , Slips,
    testing::Values(
        Slip{"Command", {"chek", "causal"}, "`attune` has no command `chek`", "mean `check`?"},
        Slip{"CommandOfAGroup",
             {"cache", "exprot", "a.db"},
             "`attune cache` has no command `exprot`",
             "mean `export`?"},
        Slip{"CommandToHelpWith",
             {"help", "chek"},
             "`attune` has no command `chek`",
             "mean `check`?"},
        Slip{"CommandOfAGroupToHelpWith",
             {"help", "cache", "exprot"},
             "`attune cache` has no command `exprot`",
             "mean `export`?"},
        Slip{"CommandLikeNoOther",
             {"cache", "salvage", "--cache", "a.db"},
             "`attune cache` has no command `salvage`",
             "one of `ls`, `show`, "},
        Slip{"Option",
             {"generate", "causal", "--tagret", "sm_80"},
             "`attune generate` has no option `--tagret`",
             "mean `--target`?"},
        Slip{"OptionWithItsValue",
             {"run", "causal", "--shpae=heads=8,q_len=64"},
             "`attune run` has no option `--shpae`",
             "mean `--shape`?"},
        Slip{"OptionOfEveryCommand",
             {"check", "causal", "--quite"},
             "`attune check` has no option `--quite`",
             "mean `--quiet`?"},
        Slip{"OptionOfAnotherCommand",
             {"run", "--target", "sm_80", "causal"},
             "`attune run` has no option `--target`",
             "it is an option of `attune generate`, `attune compile` or `attune explain`"},
        Slip{"OptionOfACommandOfAGroup",
             {"cache", "gc", "--rebuild"},
             "`attune cache gc` has no option `--rebuild`",
             "it is an option of `attune cache verify`"},
        Slip{"OptionLikeNoOther",
             {"check", "causal", "--frob"},
             "`attune check` has no option `--frob`",
             "`attune check --help` shows what it takes"},
        Slip{"ShortOption",
             {"check", "causal", "-z"},
             "`attune check` has no option `-z`",
             "`attune check --help` shows what it takes"},
        Slip{"WordTooMany",
             {"devices", "cuda:0"},
             "`attune devices` takes no `cuda:0` here",
             "`attune devices --help` shows what it takes"},
        Slip{"ValueThatIsNone",
             {"tune", "causal", "--max-candidates", "many", "--frob"},
             "--max-candidates",
             "`attune tune --help` shows what it takes"}),
    [](const auto& info) { return std::string(info.param.what); });

}  // namespace
}  // namespace attune::cli_test

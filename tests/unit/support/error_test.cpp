#include "generator/support/error.hpp"

#include <gtest/gtest.h>

#include "generator/support/result.hpp"

namespace attune {
namespace {

TEST(Render, ShowsPositionLineCaretAndHint) {
  Error error{.kind = ErrorKind::kBadInput,
              .id = "spec-unknown-key",
              .message = "unknown key `maks`",
              .file = "a.yaml",
              .span = {.line = 3, .column = 2, .length = 4},
              .source_line = "\tmaks: causal",
              .hint = "did you mean `mask`?",
              .detail = ""};
  EXPECT_EQ(render(error),
            "a.yaml:3:2: error: unknown key `maks` [spec-unknown-key]\n"
            "    3 | \tmaks: causal\n"
            "      | \t^~~~\n"
            "      = did you mean `mask`?\n");
}

TEST(Render, PutsTheCaretUnderWideCharacters) {
  EXPECT_EQ(render({.id = "x",
                    .message = "m",
                    .span = {.line = 1, .column = 4, .length = 100},
                    .source_line = "\xc3\xa9 \xc3\xa9z"}),
            "1:4: error: m [x]\n    1 | \xc3\xa9 \xc3\xa9z\n      |   ^~\n");
}

TEST(Render, LeavesOutWhatIsUnknown) {
  EXPECT_EQ(render({.id = "io", .message = "cannot read"}), "error: cannot read [io]\n");
}

TEST(Render, SaysWhetherItIsOnlyAWarning) {
  EXPECT_EQ(render({.id = "x", .message = "m"}, Severity::kWarning), "warning: m [x]\n");
}

TEST(ExitCode, FollowsTheKind) {
  EXPECT_EQ(exit_code(ErrorKind::kFailed), 1);
  EXPECT_EQ(exit_code(ErrorKind::kBadInput), 2);
  EXPECT_EQ(exit_code(ErrorKind::kUnsupported), 2);
  EXPECT_EQ(exit_code(ErrorKind::kUnavailable), 3);
}

Result<int> half(int x) {
  if (x % 2 != 0) return Error{.id = "odd", .message = "odd"};
  return x / 2;
}
Result<int> quarter(int x) {
  ATT_TRY(const int h, half(x));
  return half(h);
}

TEST(Result, TryReturnsTheFirstError) {
  EXPECT_EQ(*quarter(8), 2);
  EXPECT_EQ(quarter(6).error().id, "odd");
}

}  // namespace
}  // namespace attune

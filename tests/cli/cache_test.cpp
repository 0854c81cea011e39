// attune cache.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/cli/json.hpp"
#include "tests/cli/on_the_cpu.hpp"
#include "tests/cli/process.hpp"

namespace attune::cli_test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST_F(OnTheCpu, TheCacheListsAndShowsWhatWasMeasured) {
  const Json listed = parse(attune({"cache", "ls", "--cache", cache(), "--json"}));
  ASSERT_EQ(listed["problems"].size(), 1u);
  EXPECT_EQ(listed["problems"][0]["spec"], "causal");
  const Json shown = parse(attune({"cache", "show", "causal", "--cache", cache(), "--json"}));
  EXPECT_EQ(shown["problems"][0]["measured"].size(), listed["problems"][0]["measured"]);
  EXPECT_THAT(attune({"cache", "show", "full", "--cache", cache()}).out, IsEmpty());
}

TEST_F(OnTheCpu, CacheFilesAreExportedMergedVerifiedAndTrimmed) {
  const std::string exported = scratch_directory() + "/exported.db",
                    merged = scratch_directory() + "/merged.db";
  EXPECT_EQ(attune({"cache", "export", exported, "--spec", "causal", "--cache", cache()}).code, 0);
  EXPECT_EQ(attune({"cache", "export", exported, "--cache", cache()}).code, 2) << "it exists";
  const Json first = parse(attune({"cache", "merge", exported, "--cache", merged, "--json"}));
  EXPECT_GT(first["merged"][0]["rows_gained"], 0);
  const Json again = parse(attune({"cache", "import", exported, "--cache", merged, "--json"}));
  EXPECT_EQ(again["merged"][0]["rows_gained"], 0);
  EXPECT_EQ(attune({"cache", "ls", "--cache", merged, "--json"}).code, 0);
  EXPECT_EQ(parse(attune({"cache", "verify", "--cache", merged, "--json"}))["ok"], true);
  EXPECT_EQ(attune({"cache", "gc", "--cache", merged, "--limit-mb", "1"}).code, 0);
}

TEST_F(OnTheCpu, CommandsAskTheFilesThatWereShipped) {
  const std::string shipped = scratch_directory() + "/shipped.db";
  std::filesystem::remove(shipped);
  ASSERT_EQ(attune({"cache", "export", shipped, "--cache", cache()}).code, 0);
  const Outcome ran =
      attune({"run", "causal", "--shape", "heads=2,q_len=64", "--device", "cpu"},
             {.environment = {{"ATTUNE_CACHE", "none"}, {"ATTUNE_SYSTEM_CACHE", shipped}}});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("(measured)"));
  EXPECT_THAT(ran.out, HasSubstr("from the cache"));
  EXPECT_THAT(ran.err, IsEmpty());
}

TEST_F(OnTheCpu, ImportLeavesKernelsOutWhenAskedAndWhenOthersMayWriteThem) {
  const std::string exported = scratch_directory() + "/given.db",
                    taken = scratch_directory() + "/taken.db";
  ASSERT_EQ(attune({"cache", "export", exported, "--cache", cache()}).code, 0);
  const auto kernels = [&] {
    return parse(attune({"cache", "ls", "--cache", taken, "--json"}))["kernels"].get<int>();
  };
  ASSERT_EQ(attune({"cache", "import", "--no-code", exported, "--cache", taken}).code, 0);
  EXPECT_EQ(kernels(), 0);
  std::filesystem::permissions(exported, std::filesystem::perms::others_write,
                               std::filesystem::perm_options::add);
  const Outcome refused = attune({"cache", "import", exported, "--cache", taken});
  EXPECT_EQ(refused.code, 0);
  EXPECT_THAT(refused.err, HasSubstr("may be written by anybody"));
  EXPECT_EQ(kernels(), 0);
  EXPECT_EQ(attune({"cache", "export", taken + ".out", "--cache", exported}).code, 2);
  std::filesystem::permissions(exported, std::filesystem::perms::others_write,
                               std::filesystem::perm_options::remove);
  EXPECT_EQ(attune({"cache", "import", exported, "--cache", taken}).code, 0);
  EXPECT_GT(kernels(), 0);
}

TEST(Cache, WhatIsNoneIsNotImported) {
  const std::string into = scratch_directory() + "/nothing.db";
  for (const std::string& text : {std::string("spec,us\ncausal,12\n"), std::string(5000, 'x')}) {
    const Outcome outcome =
        attune({"cache", "import", scratch_file("notes.csv", text), "--cache", into});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, HasSubstr("notes.csv` is not an Attune cache"));
    EXPECT_THAT(outcome.out, IsEmpty());
  }
  EXPECT_FALSE(std::filesystem::exists(into));
}

TEST(Cache, WithoutAHomeThereIsNone) {
  const RunOptions homeless{.environment = {{"HOME", ""}}};
  const Outcome outcome = attune({"cache", "ls"}, homeless);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("needs a cache file"));
  EXPECT_FALSE(std::filesystem::exists("attune.db"));
}

TEST_F(OnTheCpu, ADamagedFileIsFoundAndRebuilt) {
  std::string bytes = read_file(cache());
  for (std::size_t at = bytes.size() / 2; at < bytes.size() / 2 + 4096; ++at) bytes[at] = '!';
  const std::string damaged = scratch_file("damaged.db", bytes);
  EXPECT_EQ(attune({"cache", "verify", "--cache", damaged}).code, 1);
  const Outcome rebuilding = attune({"cache", "verify", "--rebuild", "--cache", damaged});
  EXPECT_EQ(rebuilding.code, 0);
  EXPECT_THAT(rebuilding.out, HasSubstr("\nlost: "));
  const Outcome rebuilt = attune({"cache", "verify", "--cache", damaged, "--json"});
  EXPECT_EQ(rebuilt.code, 0) << rebuilt.out;
  EXPECT_EQ(parse(rebuilt)["ok"], true);
}

TEST_F(OnTheCpu, TheBestPlansKernelIsPinnedAndAllOfASpecsAreUnpinned) {
  const std::vector<std::string> pin = {"cache", "pin", "causal", "--cache", cache(), "--json"};
  EXPECT_EQ(parse(attune(pin))["pinned"], 1);
  std::vector<std::string> unpin = pin;
  unpin.push_back("--off");
  EXPECT_GT(parse(attune(unpin))["unpinned"], 1) << "every candidate's";
  EXPECT_EQ(parse(attune({"cache", "pin", "full", "--cache", cache(), "--json"}))["pinned"], 0);
}

// Nothing is measured for a file that will not remember it.
TEST_F(OnTheCpu, WhatCannotBeWrittenIsToldBeforeItIsTuned) {
  namespace fs = std::filesystem;
  const std::string folder = scratch_directory() + "/kept", file = folder + "/kept.db";
  fs::create_directory(folder);
  fs::copy(cache(), file);
  fs::permissions(scratch_directory(), fs::perms{0711});
  const auto as_stranger = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--device", "cpu", "--cache", file});
    return attune(arguments, {.stranger = true});
  };
  if (as_stranger({"status"}).code == 127) GTEST_SKIP() << "no other user can reach the build";
  struct Case {
    int file, folder;
    const char* why;
  };
  for (const Case& one : {Case{0444, 0777, "cannot be written: Permission denied"},
                          Case{0666, 0555, "cannot be written: its folder: Permission denied"}}) {
    fs::permissions(file, fs::perms(one.file));
    fs::permissions(folder, fs::perms(one.folder));
    const Outcome status = as_stranger({"status"});
    EXPECT_EQ(status.code, 0);
    EXPECT_THAT(status.out, HasSubstr(file + " read-only, 1 tuned problem"));
    EXPECT_THAT(status.out, HasSubstr(one.why));
    const Outcome tuned = as_stranger({"tune", "causal", "--shape", "heads=2,q_len=96"});
    EXPECT_EQ(tuned.code, 1);
    EXPECT_THAT(tuned.err, HasSubstr(one.why));
    EXPECT_THAT(tuned.err, Not(HasSubstr("measuring")));
    EXPECT_EQ(as_stranger({"run", "causal", "--shape", "heads=2,q_len=64"}).code, 0);
  }
  fs::permissions(folder, fs::perms{0755});
}

TEST(Cache, OfNoFileIsAnError) {
  EXPECT_NE(attune({"cache", "ls", "--cache", scratch_directory() + "/absent.db"}).code, 0);
}

}  // namespace
}  // namespace attune::cli_test

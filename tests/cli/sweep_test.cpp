// attune sweep.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/cli/json.hpp"
#include "tests/cli/on_the_cpu.hpp"
#include "tests/cli/process.hpp"

namespace attune::cli_test {
namespace {

using testing::HasSubstr;

TEST_F(OnTheCpu, ASweepIsPlannedRunAndMergedAndRunsOnceOnly) {
  const std::string directory = scratch_directory() + "/sweep",
                    merged = scratch_directory() + "/swept.db";
  const std::vector<std::string> run = {
      "sweep", "run", directory, "--device", "cpu", "--max-candidates", "1", "--json"};
  ASSERT_EQ(
      attune({"sweep", "plan", directory, "causal", "full", "--shape", "heads=2,q_len=64"}).code,
      0);
  EXPECT_EQ(parse(attune({"sweep", "status", directory, "--json"}))["tuned"], 0);
  EXPECT_EQ(parse(attune(run))["tuned"], 2);
  const Json again = parse(attune(run));
  EXPECT_EQ(again["tuned"], 0);
  EXPECT_EQ(again["before"], 2);
  EXPECT_EQ(parse(attune({"sweep", "status", directory, "--json"}))["tuned"], 2);
  ASSERT_EQ(attune({"sweep", "merge", directory, "--cache", merged}).code, 0);
  EXPECT_EQ(parse(attune({"cache", "ls", "--cache", merged, "--json"}))["problems"].size(), 2u);
}

TEST_F(OnTheCpu, ASweepHasAProblemForEachPass) {
  const std::string directory = scratch_directory() + "/passes";
  ASSERT_EQ(attune({"sweep", "plan", directory, "causal", "--pass", "both", "--shape",
                    "heads=2,q_len=64"})
                .code,
            0);
  const Json problems = parse(attune({"sweep", "status", directory, "--json"}))["problems"];
  ASSERT_EQ(problems.size(), 2u);
  EXPECT_EQ(problems[0]["pass"], "forward");
  EXPECT_EQ(problems[1]["pass"], "backward");
}

// The job array's own script, as Slurm runs it, with an `attune` that takes this machine for GPUs.
TEST_F(OnTheCpu, TheTasksOfAJobArrayShareTheSweepOut) {
  const std::string sweep = scratch_directory() + "/array", bin = scratch_directory() + "/bin";
  ASSERT_EQ(
      attune({"sweep", "plan", sweep, "causal", "full", "prefix_lm", "--shape", "heads=2,q_len=64"})
          .code,
      0);
  std::filesystem::create_directories(bin);
  const std::string stand_in = scratch_file(
      "bin/attune",
      "#!/bin/sh\n[ \"$*\" = \"sweep run $SWEEP --gpus all\" ] || exit 9\nexec '" +
          std::string(ATTUNE_BINARY) +
          "' sweep run \"$SWEEP\" --device cpu --max-candidates 1 2>> \"$SWEEP/log\"\n");
  std::filesystem::permissions(stand_in, std::filesystem::perms::owner_all);
  for (const auto& [task, tuned] : {std::pair("1", 2), std::pair("2", 3)}) {
    const std::string command = "PATH='" + bin + "':\"$PATH\" SWEEP='" + sweep +
                                "' SLURM_ARRAY_TASK_MIN=1 SLURM_ARRAY_TASK_COUNT=2 "
                                "SLURM_ARRAY_TASK_ID=" +
                                task + " bash examples/slurm/sweep.sbatch > /dev/null";
    EXPECT_EQ(std::system(command.c_str()), 0) << read_file(sweep + "/log");
    EXPECT_EQ(parse(attune({"sweep", "status", sweep, "--json"}))["tuned"], tuned);
    EXPECT_THAT(read_file(sweep + "/log"), HasSubstr("shard " + std::string(task) + "/2"));
  }
}

}  // namespace
}  // namespace attune::cli_test

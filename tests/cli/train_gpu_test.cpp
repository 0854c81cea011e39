// examples/train on GPUs: its kernels compile, compute what the CPU's operations do, and the curve
// is the CPU's. Small ones run on an emulated GPU (tests/emulator) as well.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <sstream>

#include "tests/cli/process.hpp"

namespace attune::cli_test {
namespace {

using testing::HasSubstr;

using Arguments = std::vector<std::string>;

Arguments joined(Arguments arguments, const Arguments& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// The losses of a run that writes its table.
std::vector<double> curve(const Arguments& arguments, const RunOptions& options = {}) {
  const std::string csv = scratch_directory() + "/curve.csv";
  const Outcome outcome = attune(joined(arguments, {"--csv", csv}), options);
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  std::istringstream table(read_file(csv));
  std::vector<double> losses;
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) losses.push_back(std::stod(line.substr(line.find(',') + 1)));
  return losses;
}

double apart(const std::vector<double>& x, const std::vector<double>& y) {
  if (x.empty() || x.size() != y.size()) return HUGE_VAL;
  double largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!(std::abs(x[i] - y[i]) <= largest)) largest = std::abs(x[i] - y[i]);
  }
  return largest;
}

TEST(TrainKernels, CompileWithoutAGpu) {
  const Outcome outcome = attune({"--check-kernels"});
  if (outcome.code == 3) GTEST_SKIP() << outcome.err;
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("kernels for sm_90"));
}

class TrainOnAnEmulatedGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(nvrtc_)) GTEST_SKIP() << "no emulated GPU was built";
  }
  Outcome run(const Arguments& arguments, const std::string& variable = "ATTUNE_EMULATOR_ORDER",
              const std::string& value = "late") const {
    RunOptions options = emulated_;
    options.environment[variable] = value;
    return attune(joined(own_, arguments), options);
  }
  const std::string folder_ = EMULATED_GPU, nvrtc_ = folder_ + "/libnvrtc.so.13";
  const RunOptions emulated_ = {
      .environment = {{"LD_LIBRARY_PATH", folder_}, {"ATTUNE_NVRTC", nvrtc_}}};
  const Arguments own_ = {"--device", "cuda:0", "--products", "own"};
};

TEST_F(TrainOnAnEmulatedGpu, OperationsAreTheCpus) {
  const Outcome outcome = run({"--check-operations"});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("operations on emulated sm_90, products by the example's"));
}

// Losses are rounded to 2e-8 of 4.5 nats a token, and differ by 3e-9.
TEST_F(TrainOnAnEmulatedGpu, CurveIsTheCpus) {
  const Arguments small = {"--attention", "reference", "--steps",  "3",
                           "--batch",     "1",         "--length", "150"};
  EXPECT_LT(apart(curve(small), curve(joined(own_, small), emulated_)), 1e-7);
}

// By Attune's kernels, as a device runs them: everything but the products' speed.
TEST_F(TrainOnAnEmulatedGpu, StepsLieOnThoseOfTheDefinition) {
  const Outcome outcome = run({"--compare", "--steps", "2", "--batch", "1", "--length", "100",
                               "--spec", "examples/train/attention_bf16.yaml"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("(right)"));
}

TEST_F(TrainOnAnEmulatedGpu, SaysWhatIsMissing) {
  const Arguments step = {"--attention", "reference", "--steps", "1"};
  const Outcome no_gpu = run(joined(step, {"--device", "cuda:1"}));
  EXPECT_EQ(no_gpu.code, 3);
  EXPECT_THAT(no_gpu.err, HasSubstr("cuda:1: the number of GPUs here is 1"));

  const Outcome no_memory = run(step, "ATTUNE_EMULATOR_MEMORY", "8");
  EXPECT_EQ(no_memory.code, 1);
  EXPECT_THAT(no_memory.err, HasSubstr("a smaller --batch or --length takes less"));

  const Outcome no_nvrtc = run(step, "ATTUNE_NVRTC", "/no/such.so");
  EXPECT_EQ(no_nvrtc.code, 3);
  EXPECT_THAT(no_nvrtc.err, HasSubstr("need NVRTC 12 or newer"));
}

class TrainOnAGpu : public testing::Test {
 protected:
  void SetUp() override {
    const Outcome outcome = attune(joined(gpu_, {"--steps", "1"}));
    if (outcome.code == 3) GTEST_SKIP() << outcome.err;
  }
  void is_right(const Arguments& arguments) const {
    const Outcome outcome = attune(joined(gpu_, arguments));
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("(right)"));
  }
  const Arguments gpu_ = {"--device", "cuda:0"};
  const Arguments bf16_ = {"--spec", "examples/train/attention_bf16.yaml"};
};

TEST_F(TrainOnAGpu, OperationsAreTheCpus) {
  is_right({"--check-operations"});
  is_right({"--check-operations", "--products", "own"});
}

TEST_F(TrainOnAGpu, GradientsAreThoseOfFiniteDifferences) {
  is_right({"--check-gradients"});
  is_right(joined({"--check-gradients"}, bf16_));
}

TEST_F(TrainOnAGpu, CurveLiesOnThatOfTheDefinition) {
  const Arguments small = {"--compare", "--steps", "20", "--batch", "2", "--length", "150"};
  is_right(small);
  is_right(joined(small, bf16_));
}

// On an H200 they differ by 4.6e-8, and with attention in bf16 by 2.0e-4.
TEST_F(TrainOnAGpu, CurveIsTheCpus) {
  const Arguments steps = {"--steps", "20"};
  const std::vector<double> cpu = curve(steps);
  EXPECT_LT(apart(cpu, curve(joined(gpu_, steps))), 1e-6);
  EXPECT_LT(apart(cpu, curve(joined(joined(gpu_, bf16_), steps))), 1e-3);
}

}  // namespace
}  // namespace attune::cli_test

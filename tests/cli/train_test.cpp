// examples/train: it learns, its curve lies on that of attention's definition, and what computes
// something else is found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/cli/process.hpp"

namespace attune::cli_test {
namespace {

using testing::HasSubstr;
using testing::Not;

// Rows that no tile fills, with documents longer than the bias' 64 distances and shorter ones.
const std::vector<std::string> kSmall = {"--batch", "2", "--length", "150"};

class Train : public testing::Test {
 protected:
  void SetUp() override {
    if (train({"--steps", "1"}).code == 3) GTEST_SKIP() << "no compiler for the CPU is here";
  }
  static std::vector<std::string> small(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), kSmall.begin(), kSmall.end());
    return arguments;
  }
  static Outcome train(const std::vector<std::string>& arguments) {
    return attune(small(arguments));
  }
  // Compared with the definition, Attune having the example's spec with `from` replaced.
  static Outcome compare_with(const std::string& from, const std::string& to) {
    std::string spec = read_file("examples/train/attention.yaml");
    const std::size_t at = spec.find(from);
    EXPECT_NE(at, spec.npos) << from;
    spec.replace(at, from.size(), to);
    return train({"--compare", "--steps", "3", "--spec", scratch_file("other.yaml", spec)});
  }
};

TEST_F(Train, GradientsAreThoseOfFiniteDifferences) {
  const Outcome outcome = attune({"--check-gradients"});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("(right)"));
}

TEST_F(Train, CurveLiesOnThatOfTheDefinition) {
  const Outcome outcome = train({"--compare", "--steps", "20"});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("losses of 20 steps apart by"));
  EXPECT_THAT(outcome.out, HasSubstr("(right)"));
}

// The gradients are off by 5e-3 at most there, and 3e-2 are allowed: what is wrong in one head or
// one term shows.
TEST_F(Train, AttentionInBf16LiesOnTheDefinitionToItsRounding) {
  const std::vector<std::string> bf16 = {"--spec", "examples/train/attention_bf16.yaml"};
  const auto with_bf16 = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), bf16.begin(), bf16.end());
    return arguments;
  };
  for (const Outcome& outcome : {train(with_bf16({"--compare", "--steps", "10"})),
                                 attune(with_bf16({"--check-gradients"}))}) {
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("(right)"));
  }
}

TEST_F(Train, ComparisonFindsWhatComputesSomethingElse) {
  const std::pair<const char*, const char*> kFaults[] = {
      {"causal and document(doc)", "causal"},      // documents see each other
      {"dropout: 0.1", "dropout: 0.11"},           // two elements in 256 more
      {"q_pos - kv_idx)", "q_pos - kv_idx + 1)"},  // the bias of the next distance
      {"dropout: 0.1", "softmax_scale: 0.2501\ndropout: 0.1"},
  };
  for (const auto& [from, to] : kFaults) {
    const Outcome outcome = compare_with(from, to);
    EXPECT_EQ(outcome.code, 1) << to << '\n' << outcome.out << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("(WRONG)")) << to;
  }
}

TEST_F(Train, LearnsAndWritesItsCurve) {
  const std::string csv = scratch_directory() + "/curve.csv", svg = scratch_directory() + "/c.svg";
  const Outcome outcome = train({"--steps", "60", "--csv", csv, "--svg", svg});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  const std::string table = read_file(csv);
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 61);
  // A uniform guess among 92 characters is 4.52 nats, their frequencies are 3.0.
  const double last = std::stod(table.substr(table.rfind(',') + 1));
  EXPECT_LT(last, 3.2) << outcome.out;
  EXPECT_GT(last, 1) << outcome.out;
  EXPECT_THAT(read_file(svg), HasSubstr("</svg>"));

  const Outcome reference = train({"--steps", "2", "--attention", "reference"});
  EXPECT_EQ(reference.code, 0) << reference.err;
  EXPECT_THAT(reference.out, HasSubstr("attention by its definition"));

  const std::string again = scratch_directory() + "/again.csv";
  EXPECT_EQ(train({"--steps", "60", "--csv", again}).code, 0);
  EXPECT_EQ(read_file(again), table) << "the same to the bit";
  EXPECT_EQ(train({"--steps", "60", "--seed", "2", "--csv", again}).code, 0);
  EXPECT_NE(read_file(again), table);

  EXPECT_EQ(train({"--steps", "2", "--beside", "longer=" + csv, "--svg", svg}).code, 0);
  EXPECT_THAT(read_file(svg), HasSubstr(">longer</text>"));
}

TEST_F(Train, InterruptedItWritesWhatThereIs) {
  const std::string csv = scratch_directory() + "/interrupted.csv";
  Terminal terminal(small({"--steps", "1000000", "--csv", csv}));
  ASSERT_TRUE(terminal.read_until("step    1 ")) << terminal.finish().out;
  terminal.type("\x03");
  const Outcome outcome = terminal.finish();
  EXPECT_EQ(outcome.code, 1) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("interrupted after"));
  const std::string table = read_file(csv);
  EXPECT_THAT(table, HasSubstr("\n1,4.5"));
  EXPECT_EQ(table.back(), '\n');
}

TEST_F(Train, SaysWhatIsWrongWithItsInput) {
  const std::pair<std::vector<std::string>, const char*> kInputs[] = {
      {{"--step", "5"}, "--step is no option; train --help"},
      {{"--steps", "0"}, "--steps takes a number from 1 to 1000000, not 0"},
      {{"--steps=5x"}, "not 5x"},
      {{"--steps"}, "--steps takes a value"},
      {{"--compare=1"}, "--compare takes no value"},
      {{"--attention", "flash"}, "--attention is attune or reference, not flash"},
      {{"--compare", "--check-gradients"}, "exclude each other"},
      {{"--products", "mkl"}, "--products is cublas or own, not mkl"},
      {{"--products", "cublas"}, "--products cublas is for a GPU"},
      {{"--compare", "--attention", "attune"}, "run both"},
      {{"--text", "/no/such.txt"}, "/no/such.txt: cannot be read"},
      {{"--text", "/dev/null"}, "/dev/null: no paragraph in it"},
      {{"--csv", "/no/such/curve.csv"}, "/no/such/curve.csv: cannot be written"},
      {{"--beside", "curve.csv"}, "--beside takes NAME=FILE, not curve.csv"},
      {{"--beside", "x=/dev/null"}, "/dev/null: no table that --csv has written"},
      {{"--spec", "causal"}, "causal: the model's head_dim is 16"},
      {{"--device", "gpu"}, "--device is cpu or cuda:0, cuda:1 and so on, not gpu"},
      {{"--device", "cuda:x"}, "not cuda:x"},
  };
  for (const auto& [arguments, message] : kInputs) {
    const Outcome outcome = attune(arguments);
    EXPECT_EQ(outcome.code, 2) << message;
    EXPECT_THAT(outcome.err, HasSubstr(message));
    EXPECT_THAT(outcome.out, Not(HasSubstr("step"))) << message;
  }
  const std::string no_bias =
      scratch_file("no_bias.yaml", "attune: 1\nname: plain\ndtype: fp32\nhead_dim: 16\n");
  const Outcome outcome = attune({"--spec", no_bias});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("plain: the model has the tensors doc and bias"));

  const std::string fp16 =
      scratch_file("fp16.yaml", "attune: 1\nname: half\ndtype: fp16\nhead_dim: 16\n");
  EXPECT_THAT(attune({"--spec", fp16}).err, HasSubstr("half: the model trains with attention in"));

  const Outcome help = attune({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, HasSubstr("--check-gradients"));
}

}  // namespace
}  // namespace attune::cli_test

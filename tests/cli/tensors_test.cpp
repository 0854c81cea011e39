// Tensors that a user brings, and what a spec says of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/cli/json.hpp"
#include "tests/cli/on_the_cpu.hpp"
#include "tests/cli/process.hpp"

namespace attune::cli_test {
namespace {

using testing::HasSubstr;

// Queries see the keys of their own document.
class Tensors : public testing::Test {
 protected:
  Tensors() {
    directory_ = std::filesystem::path(testing::TempDir()) /
                 (std::string("attune_tensors_") +
                  testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  ~Tensors() override { std::filesystem::remove_all(directory_); }
  void SetUp() override {
    if (attune(command("run", spec(""))).code == 3)
      GTEST_SKIP() << "no compiler for the CPU is here";
  }

  std::string spec(const std::string& sample) const {
    const std::string path = directory_ / "documents.yaml";
    std::ofstream(path) << "attune: 1\nname: documents\ndtype: fp32\nhead_dim: 16\n"
                           "mask: document(doc)\n"
                           "tensors: {doc: {dtype: int32, dims: [batch, kv_len]"
                        << sample << "}}\n";
    return path;
  }
  // As numpy.save() writes 64 numbers: two documents of 32.
  std::string two_documents() const {
    std::string dict = "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 64), }";
    dict.resize(117, ' ');
    dict += '\n';
    std::string bytes("\x93NUMPY\x01\x00\x76\x00", 10);
    bytes += dict;
    for (std::int32_t i = 0; i < 64; ++i) {
      const std::int32_t document = i / 32;
      bytes.append(reinterpret_cast<const char*>(&document), sizeof document);
    }
    const std::string path = directory_ / "doc.npy";
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::vector<std::string> command(const std::string& name, const std::string& yaml) const {
    return {name,      yaml,    "--shape", "heads=2,q_len=64", "--device", "cpu",
            "--cache", cache(), "--json"};
  }
  std::string cache() const { return directory_ / "attune.db"; }

  std::filesystem::path directory_;
};

TEST_F(Tensors, AFileTakesThePlaceOfWhatIsDrawn) {
  std::vector<std::string> words = command("bench", spec(""));
  for (const std::string& word : {std::string("--samples"), std::string("1"),
                                  std::string("--tensor"), "doc=" + two_documents()})
    words.push_back(word);
  const Outcome bench = attune(words);
  ASSERT_EQ(bench.code, 0) << bench.err;
  EXPECT_EQ(parse(bench)["results"][0]["live_share"], 0.5);
  words[0] = "run";
  words.erase(words.end() - 4, words.end() - 2);
  const Outcome run = attune(words);
  EXPECT_EQ(run.code, 0) << run.err;
}

TEST_F(Tensors, AFileOfOtherSizesIsRefused) {
  std::vector<std::string> words = command("run", spec(""));
  words[3] = "heads=2,q_len=63";
  words.push_back("--tensor");
  words.push_back("doc=" + two_documents());
  const Outcome run = attune(words);
  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.err, HasSubstr("`doc` is [1, 64] in its file and [1, 63]"));
}

TEST_F(Tensors, ASampleIsWhatIsDrawn) {
  std::vector<std::string> words = command("bench", spec(", sample: constant(1)"));
  words.push_back("--samples");
  words.push_back("1");
  const Outcome bench = attune(words);
  ASSERT_EQ(bench.code, 0) << bench.err;
  EXPECT_EQ(parse(bench)["results"][0]["live_share"], 1);
}

TEST_F(Tensors, ATuneOfWhatNobodyDescribedTriesSeveralKinds) {
  std::vector<std::string> words = command("tune", spec(""));
  words.push_back("--max-candidates");
  words.push_back("2");
  const Outcome all = attune(words);
  ASSERT_EQ(all.code, 0) << all.err;
  EXPECT_EQ(parse(all)["results"][0]["candidates"], 12);  // three kinds, each once more
  words[1] = spec(", sample: segments(mean=8)");
  const Outcome one = attune(words);
  ASSERT_EQ(one.code, 0) << one.err;
  // One kind, and what was nearly the fastest on it and two variations. A clock decides how many
  // these are, and what is measured again.
  EXPECT_GE(parse(one)["results"][0]["candidates"], 2 + 3);
  // Data of that kind gets the plan of that kind.
  words = command("run", words[1]);
  const Outcome run = attune(words);
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(parse(run)["plan"], parse(one)["results"][0]["plan"]);
  EXPECT_EQ(parse(run)["plan_from"], "measured");
}

}  // namespace
}  // namespace attune::cli_test

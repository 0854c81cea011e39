// A poor man's fuzzer for builds without libFuzzer: the corpus of tests/fuzz, changed at random
// from a fixed seed.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <vector>

#include "tests/fuzz/spec_target.hpp"

namespace attune {
namespace {

constexpr int kMutations = 20000;

// Pieces that mean something to YAML, to the schema or to expressions.
constexpr std::string_view kWords[] = {
    "\n",
    "\n  ",
    ": ",
    "- ",
    "? ",
    "[",
    "]",
    "{",
    "}",
    ",",
    "'",
    "\"",
    "|",
    ">-",
    "&a ",
    "*a",
    "!!str ",
    "---\n",
    "...\n",
    "%YAML 1.2\n",
    "#",
    "~",
    "null",
    "\\x41",
    "\\u00e9",
    "\\\n",
    "\t",
    "\r\n",
    "\xc3\xa9",
    "\xff",
    "\xef\xbb\xbf",
    "0",
    "-1",
    "1e39",
    ".nan",
    "2147483648",
    "attune: 1\n",
    "name: x\n",
    "mask: ",
    "score: ",
    "sink: ",
    "scalars: ",
    "tensors: ",
    "dims: ",
    "tune: ",
    "shapes: ",
    "float",
    "int32",
    "causal",
    "q_idx",
    "kv_idx",
    "score",
    "(",
    ")",
    "//",
    "%",
    "==",
    "<",
    " and ",
    " or ",
    " if ",
    " else ",
    "not ",
    "doc[b, q_idx]",
    "sliding_window(",
    "min(",
};

std::vector<std::string> corpus() {
  std::set<std::filesystem::path> paths;
  for (const char* root : {"specs", "tests/fixtures/broken"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
      if (entry.path().extension() == ".yaml") paths.insert(entry.path());
    }
  }
  std::vector<std::string> texts;
  for (const auto& path : paths) {
    std::ifstream in(path, std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    texts.push_back(text.str());
  }
  return texts;
}

class Mutator {
 public:
  explicit Mutator(const std::vector<std::string>& corpus) : corpus_(corpus) {}

  std::string next() {
    std::string text = corpus_[below(corpus_.size())];
    for (std::size_t changes = 1 + below(4); changes > 0; --changes) change(text);
    return text;
  }

 private:
  std::size_t below(std::size_t count) { return random_() % count; }

  void change(std::string& text) {
    const std::size_t at = below(text.size() + 1);
    const std::size_t length = std::min(below(12), text.size() - at);
    switch (below(6)) {
      case 0:
        text.erase(at, length);
        break;
      case 1:
        text.insert(at, kWords[below(std::size(kWords))]);
        break;
      case 2:
        text.replace(at, length, kWords[below(std::size(kWords))]);
        break;
      case 3:
        if (at < text.size()) text[at] = static_cast<char>(below(256));
        break;
      case 4:
        text.insert(at, text.substr(below(text.size() + 1), below(40)));
        break;
      default: {
        const std::string& other = corpus_[below(corpus_.size())];
        text = text.substr(0, at) + other.substr(below(other.size() + 1));
      }
    }
  }

  const std::vector<std::string>& corpus_;
  std::minstd_rand random_{
      20260};  // its sequence is the standard's, so every platform runs the same mutations
};

TEST(SpecMutations, NeverBreakTheParser) {
  const std::vector<std::string> texts = corpus();
  ASSERT_GE(texts.size(), 100u);
  for (const std::string& text : texts) EXPECT_EQ(check_spec_bytes(text), "") << text;
  Mutator mutator(texts);
  for (int i = 0; i < kMutations; ++i) {
    const std::string text = mutator.next();
    ASSERT_EQ(check_spec_bytes(text), "") << "mutation " << i << "\n" << text;
  }
}

}  // namespace
}  // namespace attune

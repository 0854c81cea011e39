// Every spec of the library parses, and means what it meant: tests/fixtures/spec_library.txt pins
// hashes and canonical texts. ATTUNE_UPDATE_GOLDEN=1 rewrites it.
#include "generator/spec/library.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "generator/spec/spec.hpp"

namespace attune {
namespace {

constexpr const char* kGolden = "tests/fixtures/spec_library.txt";

std::string file_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(Library, EverySpecParses) {
  EXPECT_GE(spec_library().size(), 40u);
  for (const LibrarySpec& entry : spec_library()) {
    SCOPED_TRACE(entry.path);
    const auto spec = parse_spec(entry.text, entry.path);
    ASSERT_TRUE(spec.ok()) << render(spec.error());
    EXPECT_EQ(spec->name, entry.name.substr(entry.name.rfind('/') + 1));
    EXPECT_EQ(entry.text, file_text(std::string(entry.path)));
    EXPECT_FALSE(spec->tune_shapes.empty());
    for (const ProblemShape& shape : spec->tune_shapes) EXPECT_LE(shape.batch * shape.q_len, 16384);
  }
}

TEST(Library, MeansWhatItMeant) {
  std::string text;
  for (const LibrarySpec& entry : spec_library()) {
    const auto spec = parse_spec(entry.text, entry.path);
    ASSERT_TRUE(spec.ok()) << render(spec.error());
    text += fmt::format("== {} {}\n{}", entry.name, spec_hash(*spec), canonical_text(*spec));
  }
  if (std::getenv("ATTUNE_UPDATE_GOLDEN")) std::ofstream(kGolden, std::ios::binary) << text;
  EXPECT_EQ(text, file_text(kGolden)) << "ATTUNE_UPDATE_GOLDEN=1 accepts the change";
}

// The numbers that the models publish.
TEST(Library, ModelsHaveTheirPublishedShapes) {
  const struct {
    std::string_view name;
    int qk, v;
    std::int64_t heads, kv_heads;
    double scale, dropout;
  } cases[] = {
      {"models/llama3_8b", 128, 128, 32, 8, 0.08838834764831845, 0},
      {"models/mistral_7b", 128, 128, 32, 8, 0.08838834764831845, 0},
      {"models/gemma2_9b_local", 256, 256, 16, 8, 0.0625, 0},
      {"models/gemma2_9b_global", 256, 256, 16, 8, 0.0625, 0},
      {"models/gpt2", 64, 64, 12, 12, 0.125, 0.1},
      {"models/bert_large", 64, 64, 16, 16, 0.125, 0.1},
      {"models/mpt_7b", 128, 128, 32, 32, 0.08838834764831845, 0},
      {"models/deepseek_v3_prefill", 192, 128, 128, 128, 0.1352337788608801, 0},
      {"models/deepseek_v3_decode", 576, 512, 128, 1, 0.1352337788608801, 0},
      {"models/vit_h", 80, 80, 16, 16, 0.11180339887498948, 0},
  };
  for (const auto& test : cases) {
    SCOPED_TRACE(test.name);
    const auto entry = find_library_spec(test.name);
    ASSERT_TRUE(entry.ok());
    const auto spec = parse_spec(entry->text, entry->path);
    ASSERT_TRUE(spec.ok()) << render(spec.error());
    EXPECT_EQ(spec->head_dim_qk, test.qk);
    EXPECT_EQ(spec->head_dim_v, test.v);
    EXPECT_DOUBLE_EQ(spec->softmax_scale.value, test.scale);
    EXPECT_EQ(spec->dropout.value, test.dropout);
    for (const ProblemShape& shape : spec->tune_shapes) {
      EXPECT_EQ(shape.heads, test.heads);
      EXPECT_EQ(shape.kv_heads, test.kv_heads);
    }
  }
}

TEST(Library, FindsByNameAndPath) {
  for (const std::string_view name :
       {"causal", "specs/causal.yaml", "./specs/causal.yaml", "causal.yaml"}) {
    const auto found = find_library_spec(name);
    ASSERT_TRUE(found.ok()) << name;
    EXPECT_EQ(found->path, "specs/causal.yaml");
  }
  EXPECT_EQ(find_library_spec("models/gpt2")->name, "models/gpt2");
}

TEST(Library, SuggestsTheNearestName) {
  const struct {
    std::string_view name, hint;
  } cases[] = {
      {"casual", "did you mean `causal`?"},
      {"llama3_8b", "did you mean `models/llama3_8b`?"},
      {"llama3-8b", "did you mean `models/llama3_8b`?"},
      {"model/gpt2", "did you mean `models/gpt2`?"},
      {"specs/softcp.yaml", "did you mean `softcap`?"},
      {"zzzzzzzzzzzz", ""},
      {"", ""},
  };
  for (const auto& test : cases) {
    const auto found = find_library_spec(test.name);
    ASSERT_FALSE(found.ok()) << test.name;
    EXPECT_EQ(found.error().id, "spec-not-found");
    EXPECT_EQ(found.error().hint, test.hint) << test.name;
  }
}

// docs/spec.md shows a spec that works, and names every spec that a user may ask for.
TEST(Library, IsDocumented) {
  const std::string page = file_text("docs/spec.md");
  const std::string fence = "```yaml\n";
  const std::size_t begin = page.find(fence) + fence.size();
  const auto spec = parse_spec(page.substr(begin, page.find("```", begin) - begin), "docs/spec.md");
  EXPECT_TRUE(spec.ok()) << render(spec.error());
  for (const LibrarySpec& entry : spec_library()) {
    if (entry.name.starts_with("bench/")) continue;
    EXPECT_NE(page.find(fmt::format("| `{}` |", entry.name)), std::string::npos) << entry.name;
  }
}

}  // namespace
}  // namespace attune

// The HTML report of a cache file that other GPUs filled.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "cache/store.hpp"
#include "runtime/specs/spec_file.hpp"
#include "tests/cli/process.hpp"

namespace attune::cli_test {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kGpu = "NVIDIA H200 / 132 SMs / 143771 MiB / driver 580.159";

void record(Store& store, const MeasurementKey& key, const Sm80Plan& tile, double us,
            const std::string& compiler = "nvrtc 13.0.88", int shared_bytes = 98304,
            int samples = 30) {
  const KernelPlan plan{.pass = Pass::kForward, .target = Target::kSm90a, .tile = tile};
  BuildKey build{.spec_hash = key.spec_hash,
                 .plan = to_string(plan),
                 .body_hash = "b",
                 .compiler = compiler,
                 .target = "sm_90a"};
  ASSERT_TRUE(store
                  .record(key, {.plan = build.plan,
                                .build_digest = build.digest(),
                                .compiler = compiler,
                                .median_us = us,
                                .spread_us = us / 100,
                                .samples = samples,
                                .threads = 128,
                                .registers = 200,
                                .shared_bytes = shared_bytes,
                                .measured_at = "2026-03-04T05:06:07Z",
                                .conditions = R"({"sm_mhz": 1755, "temperature_c": 46})"})
                  .ok());
}

MeasurementKey key_of(const std::string& hash, const ProblemShape& shape) {
  return {.spec_hash = hash, .device = kGpu, .shape = shape, .protocol = "events-cold-l2-2"};
}
MeasurementKey causal_key() {
  return key_of(spec_hash(load_spec("causal").value()), {.q_len = 2048, .kv_len = 2048});
}

// A few tile sizes of two problems, one of them by both compilers, a candidate that miscomputed,
// and a spec that nobody here knows.
std::string filled_cache(const std::string& name = "gpu.db") {
  const std::string path = scratch_directory() + "/" + name;
  auto store = open_store(path).value();
  const std::string causal = spec_hash(load_spec("causal").value());
  for (const std::string& hash : {causal, std::string(32, 'e')}) {
    const MeasurementKey key =
        key_of(hash, {.batch = 2, .heads = 16, .kv_heads = 16, .q_len = 8192, .kv_len = 8192});
    for (const int tile_kv : {32, 64, 128}) {
      record(*store, key, {.tile_q = 128, .tile_kv = tile_kv}, 1500 + tile_kv);
      record(*store, key, {.tile_q = 64, .tile_kv = tile_kv}, 1900 - tile_kv);
    }
    record(*store, key, {.tile_q = 128, .tile_kv = 32}, 1501, "clang 19.1.7, driver 13.0");
    const Rejection rejection{.plan = "sm80 forward sm_90a q128 k256 s2 w4 c32 u1 frozen",
                              .build_digest = "d",
                              .reason = "miscompute",
                              .detail = "o[0] is <off> by 2"};
    EXPECT_TRUE(store->reject(key, rejection).ok());
  }
  return path;
}

// The n-th cell of numbers of a row of the overview.
std::string number_of(const std::string& row, int n) {
  std::size_t at = 0;
  for (int i = 0; i < n; ++i) at = row.find("<td class=\"n\">", at) + 14;
  return row.substr(at, row.find('<', at) - at);
}

TEST(Report, IsOneSelfContainedPage) {
  const std::string page = scratch_directory() + "/report.html";
  const Outcome outcome = attune({"report", "--cache", filled_cache(), "-o", page});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("2 problems"));
  const std::string html = read_file(page);
  for (const char* part : {kGpu, "causal", "eeeeeeee", "1532.0", "1501.0", "clang 19.1.7",
                           "sm_mhz 1755", "1 rejected: miscompute", "o[0] is &lt;off&gt; by 2",
                           "regret of the first guess", "tile sizes", "roofline"}) {
    EXPECT_THAT(html, HasSubstr(part));
  }
  for (const char* foreign : {"http:", "https:", "<script", "<link", "url(", "nan", "inf,"}) {
    EXPECT_THAT(html, Not(HasSubstr(foreign)));
  }
}

TEST(Report, ShowsBothPassesEachUnderItsOwnRoofline) {
  const std::string path = scratch_directory() + "/passes.db";
  {
    auto store = open_store(path).value();
    record(*store, causal_key(), {.tile_q = 128, .tile_kv = 64}, 100);
    MeasurementKey key = causal_key();
    key.pass = Pass::kBackward;
    const std::string plan = "sm80 backward sm_90a w4 t32 s2";
    ASSERT_TRUE(parse_plan(plan).ok());
    ASSERT_TRUE(store->record(key, {.plan = plan, .build_digest = "b", .median_us = 250}).ok());
  }
  const Outcome outcome = attune({"report", "--cache", path, "-o", "-"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("2 problems"));
  EXPECT_THAT(outcome.out, HasSubstr(">causal, backward</a>"));
  EXPECT_THAT(outcome.out, HasSubstr("sm80 backward sm_90a w4 t32 s2"));
  // 2.5 times the work in 2.5 times the time.
  const auto rate = [&](const std::string& name) {
    const std::string row = outcome.out.substr(outcome.out.find(">" + name + "</a>"));
    return number_of(row, 2);
  };
  EXPECT_EQ(rate("causal"), rate("causal, backward"));
  EXPECT_NE(rate("causal"), "");
}

TEST(Report, SaysWhenAndOnWhat) {
  const Outcome outcome = attune({"report", "--cache", filled_cache("when.db"), "-o", "-"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("Measured from 2026-03-04 to 2026-03-04."));
  EXPECT_THAT(outcome.out, testing::ContainsRegex("Written [0-9-]+ [0-9:]+ UTC\\."));
  EXPECT_THAT(outcome.out, HasSubstr("<th>device<th"));
  EXPECT_THAT(outcome.out, HasSubstr("<td class=\"whole\">NVIDIA H200</td>"));
}

// Labels of the vertical axis of the first scatter chart.
int labels_of_candidates(const std::string& html) {
  const auto begin = html.find("aria-label=\"candidates\"");
  const std::string chart = html.substr(begin, html.find("</svg>", begin) - begin);
  int count = 0;
  for (std::size_t at = chart.find("text-anchor=\"end\""); at != std::string::npos;
       at = chart.find("text-anchor=\"end\"", at + 1))
    ++count;
  return count;
}

TEST(Report, AnAxisHasAtLeastThreeLabelsWhateverItSpans) {
  for (const double slowest : {2100.0, 2700.0, 9000.0, 40000.0, 650000.0, 2e9}) {
    const std::string path = scratch_directory() + "/axis-" + std::to_string(slowest) + ".db";
    {
      auto store = open_store(path).value();
      record(*store, causal_key(), {.tile_q = 128, .tile_kv = 64}, 2100);
      record(*store, causal_key(), {.tile_q = 64, .tile_kv = 64}, slowest);
    }
    const Outcome outcome = attune({"report", "--cache", path, "-o", "-"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_GE(labels_of_candidates(outcome.out), 3) << slowest;
    EXPECT_LE(labels_of_candidates(outcome.out), 12) << slowest;
  }
}

// Not the least median, where the cache prefers another.
TEST(Report, TheBestPlanIsTheOneThatIsLaunched) {
  const std::string path = scratch_directory() + "/noise.db";
  {
    auto store = open_store(path).value();
    record(*store, causal_key(), {.tile_q = 128, .tile_kv = 64}, 1000.5);
    record(*store, causal_key(), {.tile_q = 128, .tile_kv = 32}, 1000.4, "nvrtc 13.0.88", 98303);
    record(*store, causal_key(), {.tile_q = 64, .tile_kv = 64}, 1000);
  }
  const Outcome outcome = attune({"report", "--cache", path, "-o", "-"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto first = outcome.out.find("q128 k32");
  EXPECT_LT(first, outcome.out.find("q64 k64"));
  EXPECT_LT(first, outcome.out.find("q128 k64"));
}

// The GPU was a twentieth slower in the search's final, where the first guess was not: its 1010 us
// are not less than the winner's 1050.
TEST(Report, RegretComparesTimesThatCanBeCompared) {
  const std::string path = scratch_directory() + "/warm.db";
  {
    auto store = open_store(path).value();
    for (const auto& [samples, slower] : {std::pair{30, 1.0}, {90, 1.05}}) {
      record(*store, causal_key(), {.tile_q = 128, .tile_kv = 64}, 1000 * slower, "nvrtc 13.0.88",
             98304, samples);
    }
    record(*store, causal_key(), {.tile_q = 64, .tile_kv = 32}, 1010);
  }
  const Outcome outcome = attune({"report", "--cache", path, "-o", "-"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("first guess would cost 1.0 % on average"));
}

TEST(Report, OfNothingSaysSo) {
  const std::string path = scratch_directory() + "/empty.db";
  ASSERT_TRUE(open_store(path).ok());
  const Outcome outcome = attune({"report", "--cache", path, "-o", "-"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("0 problems"));
}

TEST(Report, ABrowserDrawsIt) {
  if (std::system("command -v chromium > /dev/null 2>&1") != 0)
    GTEST_SKIP() << "chromium is not installed";
  const std::string page = scratch_directory() + "/report.html",
                    picture = scratch_directory() + "/report.png";
  const std::string profile = scratch_directory() + "/profile",
                    dom = scratch_directory() + "/dom.html";
  ASSERT_EQ(attune({"report", "--cache", filled_cache(), "-o", page}).code, 0);
  const std::string chromium =
      "chromium --headless --no-sandbox --disable-gpu --user-data-dir=" + profile +
      " --window-size=1100,1400 ";
  ASSERT_EQ(
      std::system(
          (chromium + "--screenshot=" + picture + " file://" + page + " > /dev/null 2>&1").c_str()),
      0);
  EXPECT_GT(std::filesystem::file_size(picture), 20000u) << "an empty page is smaller";
  ASSERT_EQ(
      std::system((chromium + "--dump-dom file://" + page + " > " + dom + " 2> /dev/null").c_str()),
      0);
  const std::string parsed = read_file(dom);
  std::size_t circles = 0;
  for (std::size_t at = parsed.find("<circle"); at != std::string::npos;
       at = parsed.find("<circle", at + 1))
    ++circles;
  EXPECT_EQ(circles, 8u) << "seven candidates of the known spec and its place under the roof";
}

}  // namespace
}  // namespace attune::cli_test

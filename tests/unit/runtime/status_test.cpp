// The status of a runtime: every question it is to answer, asked of the JSON.
#include "runtime/engine/status.hpp"

#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/unit/runtime/fakes.hpp"

namespace attune::runtime_test {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

class StatusTest : public EngineTest {
 protected:
  static Json status(const Dispatcher& dispatcher) {
    return Json::parse(status_json(dispatcher), nullptr, false);
  }
  void use(Dispatcher& dispatcher, const ProblemShape& shape = kShape) {
    auto entry = dispatcher.get(spec_, SpecId::from_hash(spec_hash(*spec_)), shape);
    ASSERT_TRUE(entry.ok()) << render(entry.error());
    (*entry)->release();
  }
};

TEST_F(StatusTest, SaysWhoseCodeServesForAMissingCompilers) {
  record_winner(other_plan(), kShape, 10, "fake", "other 2");
  Dispatcher dispatcher(workshop(opener_of({compiler_})), false);
  use(dispatcher);
  const Json kernel = status(dispatcher)["kernels"].at(0);
  EXPECT_EQ(kernel["source"], "measured");
  EXPECT_EQ(kernel["plan"], to_string(other_plan()));
  EXPECT_EQ(kernel["compiler"], "fake 1");
  EXPECT_EQ(kernel["measured_with"], "other 2");
}

TEST_F(StatusTest, SaysWhichFileAnsweredAndWhy) {
  record_winner(other_plan());
  Dispatcher dispatcher(workshop(opener(compiler_)), false);
  use(dispatcher);
  use(dispatcher);
  const ProblemShape longer{.batch = 1, .heads = 8, .kv_heads = 8, .q_len = 600, .kv_len = 600};
  use(dispatcher, longer);
  const Json json = status(dispatcher);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["device"]["identity"], "fake / 1 SMs / 1 MiB / driver 1");
  EXPECT_EQ(json["device"]["target"], "sm_80");
  EXPECT_EQ(json["compiler"]["identity"], "fake 1");
  EXPECT_EQ(json["background"]["enabled"], false);
  ASSERT_EQ(json["kernels"].size(), 2u);
  for (const Json& kernel : json["kernels"]) {
    EXPECT_EQ(kernel["spec"], "t");
    EXPECT_EQ(kernel["spec_hash"], spec_hash(*spec_));
    EXPECT_EQ(kernel["plan"], to_string(other_plan()));
    EXPECT_EQ(kernel["file"], cache_file());
    const bool exact = kernel["shape"]["q_len"] == 512;
    EXPECT_EQ(kernel["source"], exact ? "measured" : "nearest");
    EXPECT_EQ(kernel["measured_shape"]["q_len"], 512);
    EXPECT_EQ(kernel["hits"], exact ? 1 : 0);
  }
  EXPECT_EQ(json["counters"]["hits"], 1);
  EXPECT_EQ(json["counters"]["misses"], 2);
  EXPECT_EQ(json["counters"]["compiles"], 1);
  EXPECT_EQ(json["counters"]["store_failures"], 0);
}

TEST_F(StatusTest, SaysWhichBetterPlansCouldNotBeHadAndWhy) {
  record_winner(other_plan(0), kShape, 10);
  record_winner(other_plan(1), kShape, 12);
  compiler_->fails_at = launch_recipe(*spec_, other_plan(0)).symbol;
  Dispatcher dispatcher(workshop(opener(compiler_)), false);
  use(dispatcher);
  const Json json = status(dispatcher);
  ASSERT_EQ(json["kernels"].size(), 1u);
  const Json& kernel = json["kernels"][0];
  EXPECT_EQ(kernel["plan"], to_string(other_plan(1)));
  EXPECT_EQ(kernel["source"], "measured");
  ASSERT_EQ(kernel["failed_plans"].size(), 1u);
  EXPECT_EQ(kernel["failed_plans"][0]["plan"], to_string(other_plan(0)));
  EXPECT_EQ(kernel["failed_plans"][0]["reason"], "no [compile-failed]");
}

TEST_F(StatusTest, SaysWhatIsMissing) {
  Dispatcher dispatcher(workshop(no_compiler(), "fake", {(directory_ / "gone.db").string()}),
                        false);
  const Json json = status(dispatcher);
  EXPECT_EQ(json["compiler"]["missing"], "no NVRTC");
  ASSERT_EQ(json["cache"].size(), 2u);
  EXPECT_EQ(json["cache"][0]["path"], cache_file());
  EXPECT_EQ(json["cache"][0]["state"], "ok");
  EXPECT_EQ(json["cache"][1]["state"], "missing");
  EXPECT_THAT(std::string(json["cache"][1]["problem"]), HasSubstr("gone.db"));
  EXPECT_TRUE(json["kernels"].empty());
}

TEST_F(StatusTest, SaysWhatIsReadOnlyAndWhatWasSetAside) {
  const std::string shipped = (directory_ / "shipped.db").string();
  ASSERT_TRUE(open_store(shipped).ok());
  ASSERT_TRUE(open_store(cache_file()).ok());
  {
    // The mark of a cache and rubbish behind it.
    std::fstream file(cache_file(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(100);
    file << std::string(2000, 'x');
  }
  Dispatcher dispatcher(workshop(opener(compiler_), "fake", {shipped}), false);
  const Json json = status(dispatcher);
  ASSERT_EQ(json["cache"].size(), 2u);
  EXPECT_EQ(json["cache"][0]["state"], "set aside");
  EXPECT_EQ(json["cache"][0]["set_aside"], 1);
  EXPECT_THAT(std::string(json["cache"][0]["last_warning"]), HasSubstr("set aside"));
  EXPECT_EQ(json["cache"][1]["state"], "read-only");
}

TEST_F(StatusTest, AFileThatIsNoCacheIsUnusable) {
  std::ofstream(cache_file()) << "my poems";
  Dispatcher dispatcher(workshop(opener(compiler_)), false);
  use(dispatcher);
  const Json json = status(dispatcher);
  EXPECT_EQ(json["cache"][0]["state"], "unusable");
  EXPECT_EQ(json["cache"][0]["problem_id"], "cache-foreign-file");
  EXPECT_EQ(json["kernels"][0]["source"], "model");
  EXPECT_FALSE(json["kernels"][0].contains("file"));
}

}  // namespace
}  // namespace attune::runtime_test

// attune devices and attune status.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/cli/json.hpp"
#include "tests/cli/process.hpp"

namespace attune::cli_test {
namespace {

using testing::HasSubstr;

TEST(Status, ShowsTheCacheFilesThatARuntimeWouldAsk) {
  const std::string file = scratch_directory() + "/status.db";
  const Outcome outcome = attune({"status", "--device", "cpu", "--cache", file, "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json status = parse(outcome);
  EXPECT_EQ(status["device"]["target"], "cpu");
  ASSERT_FALSE(status["cache"].empty());
  EXPECT_EQ(status["cache"][0]["path"], file);
  EXPECT_EQ(status["cache"][0]["state"], "ok");
  const Outcome text = attune({"status", "--device", "cpu", "--cache", file});
  EXPECT_THAT(text.out, HasSubstr(file + " ok"));
}

TEST(Devices, SayWhatIsHereOrHowToGetIt) {
  const Outcome outcome = attune({"devices", "--json"});
  EXPECT_THAT((std::vector{0, 3}), testing::Contains(outcome.code));
  for (const Json& device : parse(outcome)["devices"]) {
    if (device["present"]) {
      EXPECT_FALSE(device["identity"].get<std::string>().empty()) << device;
    } else {
      EXPECT_FALSE(device["missing"].get<std::string>().empty()) << device;
      EXPECT_FALSE(device["hint"].get<std::string>().empty()) << device;
    }
  }
}

}  // namespace
}  // namespace attune::cli_test

#include "cache/contents.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/unit/cache/fixtures.hpp"

namespace attune::cache_testing {
namespace {

TEST(Contents, AreWhatWasStored) {
  const TemporaryDirectory directory;
  const std::string path = directory.file();
  {
    auto store = open_store(path).value();
    ASSERT_TRUE(store->put_code(build_key(1), code(1)).ok());
    ASSERT_TRUE(store->record(measurement_key(), measurement("plan-1", 12)).ok());
    ASSERT_TRUE(store->record(measurement_key(8192), measurement("plan-2", 50)).ok());
    const Rejection rejection{.plan = "plan-3",
                              .build_digest = build_key(3).digest(),
                              .reason = "miscompute",
                              .detail = "off by 2"};
    ASSERT_TRUE(store->reject(measurement_key(), rejection).ok());
  }
  const auto contents = read_contents(path);
  ASSERT_TRUE(contents.ok()) << render(contents.error());
  ASSERT_EQ(contents->measurements.size(), 2u);
  EXPECT_EQ(contents->measurements[0].key.device, kDevice);
  EXPECT_EQ(contents->measurements[0].measurement.median_us +
                contents->measurements[1].measurement.median_us,
            62);
  ASSERT_EQ(contents->rejections.size(), 1u);
  EXPECT_EQ(contents->rejections[0].rejection.reason, "miscompute");
  ASSERT_EQ(contents->code.size(), 1u);
  EXPECT_EQ(contents->code[0].key.digest(), build_key(1).digest());
  EXPECT_EQ(contents->code[0].image_bytes, 20000);
  EXPECT_EQ(contents->code[0].registers, 129);
  EXPECT_EQ(contents->damaged_rows, 0);
  EXPECT_GT(contents->file_bytes, 20000);
}

TEST(Contents, OfNoCacheAreAnError) {
  const TemporaryDirectory directory;
  EXPECT_EQ(read_contents(directory.file("absent")).error().id, "cache-absent");
  std::ofstream(directory.file("text"))
      << "no database at all, but long enough to look at " << std::string(4096, 'x');
  EXPECT_FALSE(read_contents(directory.file("text")).ok());
}

}  // namespace
}  // namespace attune::cache_testing

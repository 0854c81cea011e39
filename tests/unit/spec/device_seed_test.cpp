// A spec's text with dropout's seed on the device: all else stays as it was written.
#include "generator/spec/device_seed.hpp"

#include <gtest/gtest.h>

#include "generator/spec/spec.hpp"

namespace attune {
namespace {

constexpr const char* kHead = "attune: 1\nname: x  # \u00fcber\ndtype: bf16\nhead_dim: 64\n";

void expect_text(const std::string& given, const std::string& wanted) {
  const auto text = with_device_seed(given);
  ASSERT_TRUE(text.ok()) << render(text.error());
  EXPECT_EQ(*text, wanted);
  const auto spec = parse_spec(*text, "f");
  ASSERT_TRUE(spec.ok()) << *text << render(spec.error());
  EXPECT_TRUE(spec->seed_on_device);
  const auto before = parse_spec(given, "f");
  EXPECT_EQ(spec->dropout, before->dropout);
  EXPECT_EQ(*with_device_seed(*text), *text);
}

TEST(DeviceSeed, IsPutBesideTheProbability) {
  const std::string head = kHead, tail = "mask: causal\n";
  expect_text(head + "dropout: 0.1  # of 1\n" + tail,
              head + "dropout: {p: 0.1, seed: device}  # of 1\n" + tail);
  expect_text(head + tail + "dropout: float", head + tail + "dropout: {p: float, seed: device}");
  expect_text("\xef\xbb\xbf" + head + "dropout: 0.5\r\n" + tail,
              head + "dropout: {p: 0.5, seed: device}\r\n" + tail);
  expect_text("{attune: 1, name: x, dtype: fp16, dropout: 1.e-1, head_dim: 64}",
              "{attune: 1, name: x, dtype: fp16, dropout: {p: 1.e-1, seed: device}, head_dim: 64}");
}

TEST(DeviceSeed, TakesTheLaunchsPlace) {
  const std::string head = kHead;
  expect_text(head + "dropout: {seed: launch, p: 0.1}\n",
              head + "dropout: {seed: device, p: 0.1}\n");
  expect_text(head + "dropout:\n  p: 0.1\n  seed: 'launch'\n",
              head + "dropout:\n  p: 0.1\n  seed: 'device'\n");
}

TEST(DeviceSeed, IsOfWhatIsDropped) {
  for (const char* line : {"", "dropout: 0\n", "dropout: {p: 0.0, seed: launch}\n"}) {
    const auto text = with_device_seed(std::string(kHead) + line);
    ASSERT_FALSE(text.ok()) << line;
    EXPECT_EQ(text.error().id, "spec-dropout");
  }
}

}  // namespace
}  // namespace attune

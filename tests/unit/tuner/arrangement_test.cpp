#include "tuner/measure/arrangement.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "runtime/support/problem_layout.hpp"

namespace attune {
namespace {

using testing::ElementsAre;

TEST(Arrangement, OfTokensHasTheHeadsOfEachTogether) {
  const Arrangement all = {1, 2, 3, 2, contiguous_strides(Layout::kBshd, 3, 2, 2)};
  const std::vector<double> host = {0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15};
  EXPECT_THAT(all.to_device(host), ElementsAre(0, 1, 10, 11, 2, 3, 12, 13, 4, 5, 14, 15));
}

TEST(Arrangement, ComesBackToTheHostAsItWas) {
  for (const Layout layout : {Layout::kBshd, Layout::kBhsd}) {
    const Arrangement all = {2, 3, 5, 4, contiguous_strides(layout, 5, 3, 4)};
    std::vector<double> host(static_cast<std::size_t>(all.elements()));
    std::iota(host.begin(), host.end(), 0.0);
    EXPECT_EQ(all.to_host(all.to_device(host)), host);
    EXPECT_EQ(all.to_device(host) == host, layout == Layout::kBhsd);
  }
}

}  // namespace
}  // namespace attune

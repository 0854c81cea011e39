#include "runtime/engine/single_flight.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <new>
#include <thread>
#include <vector>

namespace attune {
namespace {

TEST(SingleFlight, ManyCallersMakeOneValue) {
  constexpr int kCallers = 8;
  SingleFlight<int> flights;
  std::atomic<int> made{0};
  std::latch start(kCallers);
  std::vector<std::shared_ptr<int>> values(kCallers);
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kCallers; ++i) {
      threads.emplace_back([&, i] {
        start.arrive_and_wait();
        values[static_cast<std::size_t>(i)] = *flights.get(
            "a", [&]() -> Result<std::shared_ptr<int>> { return std::make_shared<int>(++made); });
      });
    }
  }
  EXPECT_EQ(made, 1);
  for (const auto& value : values) EXPECT_EQ(value, values[0]);
}

TEST(SingleFlight, AFailureIsForgotten) {
  SingleFlight<int> flights;
  const auto failed = flights.get(
      "a", []() -> Result<std::shared_ptr<int>> { return Error{.id = "no", .message = "no"}; });
  EXPECT_FALSE(failed.ok());
  const auto again =
      flights.get("a", []() -> Result<std::shared_ptr<int>> { return std::make_shared<int>(7); });
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(**again, 7);
}

TEST(SingleFlight, AnExceptionWakesThoseWhoWaitAndFreesTheKey) {
  SingleFlight<int> flights;
  std::latch making(1), asked(1);
  bool thrown = false;
  Result<std::shared_ptr<int>> told = std::make_shared<int>(0);
  {
    const std::jthread maker([&] {
      try {
        (void)flights.get("a", [&]() -> Result<std::shared_ptr<int>> {
          making.count_down();
          asked.wait();
          throw std::bad_alloc();
        });
      } catch (const std::bad_alloc&) {
        thrown = true;
      }
    });
    making.wait();
    const std::jthread waiter([&] {
      asked.count_down();
      told = flights.get("a", []() -> Result<std::shared_ptr<int>> {
        return Error{.id = "make-threw", .message = "came too late to wait"};
      });
    });
  }
  EXPECT_TRUE(thrown);
  ASSERT_FALSE(told.ok());
  EXPECT_EQ(told.error().id, "make-threw");
  EXPECT_EQ(flights.find("a"), nullptr);
  const auto again =
      flights.get("a", []() -> Result<std::shared_ptr<int>> { return std::make_shared<int>(7); });
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(**again, 7);
}

TEST(SingleFlight, KeysDoNotWaitForEachOther) {
  SingleFlight<int> flights;
  const auto value = flights.get("a", [&]() -> Result<std::shared_ptr<int>> {
    return flights.get("b",
                       []() -> Result<std::shared_ptr<int>> { return std::make_shared<int>(2); });
  });
  EXPECT_EQ(**value, 2);
}

TEST(SingleFlight, WhatIsForgottenIsMadeAgain) {
  SingleFlight<int> flights;
  int made = 0;
  const auto make = [&]() -> Result<std::shared_ptr<int>> {
    flights.forget("a");  // is being made
    return std::make_shared<int>(++made);
  };
  EXPECT_EQ(**flights.get("a", make), 1);
  EXPECT_EQ(**flights.get("a", make), 1);
  flights.forget("a");
  flights.forget("b");  // never was
  EXPECT_EQ(flights.find("a"), nullptr);
  EXPECT_EQ(**flights.get("a", make), 2);
}

}  // namespace
}  // namespace attune

// What a command gives with --json.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/process.hpp"

namespace attune::cli_test {

using Json = nlohmann::json;

// Fails the test when the text is not one JSON document.
inline Json parse(const Outcome& outcome) {
  Json json = Json::parse(outcome.out, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << outcome.out << outcome.err;
  return json;
}

}  // namespace attune::cli_test

// The command line.
#pragma once

#include <cstdint>
#include <string>

namespace serve {

struct Options {
  bool shows_help = false, is_verbose = false;
  std::size_t requests = 24;
  std::size_t page_size = 16;
  std::size_t pages = 0;  // 0: as many as have room for kDefaultTokens
  std::uint64_t seed = 1;
  std::string device = "cpu";
  std::string spec_file;  // as given; else that beside the example's sources
};
// Of the cache. Enough for the longest request, not for eight: some are preempted.
constexpr std::size_t kDefaultTokens = 384;

// Throws Error with what is wrong and where help is.
Options parse_options(int count, const char* const* arguments);
// What --help prints.
std::string help();

}  // namespace serve

#include "options.hpp"

#include <charconv>
#include <string_view>

#include "shared.hpp"

namespace serve {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(Exit::kBadInput, what + "; serve --help lists what there is");
}

std::uint64_t number(std::string_view name, std::string_view text, std::uint64_t low,
                     std::uint64_t high) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    refuse(std::string(name) + " takes a number from " + std::to_string(low) + " to " +
           std::to_string(high) + ", not " + std::string(text));
  }
  return value;
}

}  // namespace

Options parse_options(int count, const char* const* arguments) {
  Options options;
  options.spec_file = SERVE_DIRECTORY "/attention.yaml";
  for (int i = 1; i < count; ++i) {
    // --name value and --name=value.
    const std::string_view argument = arguments[i];
    const std::size_t equals = argument.find('=');
    const std::string_view name = argument.substr(0, equals);
    const bool has_value = equals != argument.npos;
    const auto value = [&]() -> std::string_view {
      if (has_value) return argument.substr(equals + 1);
      if (i + 1 == count) refuse(std::string(name) + " takes a value");
      return arguments[++i];
    };
    const auto flag = [&] {
      if (has_value) refuse(std::string(name) + " takes no value");
      return true;
    };
    if (name == "--help" || name == "-h") {
      options.shows_help = flag();
    } else if (name == "--verbose") {
      options.is_verbose = flag();
    } else if (name == "--requests") {
      options.requests = number(name, value(), 1, 100000);
    } else if (name == "--pages") {
      options.pages = number(name, value(), 1, 1 << 20);
    } else if (name == "--page-size") {
      options.page_size = number(name, value(), 1, 1024);
    } else if (name == "--seed") {
      options.seed = number(name, value(), 0, UINT64_MAX);
    } else if (name == "--device") {
      options.device = value();
    } else if (name == "--spec") {
      options.spec_file = value();
    } else {
      refuse(std::string(argument) + " is no option");
    }
  }
  if (options.pages == 0) {
    options.pages = (kDefaultTokens + options.page_size - 1) / options.page_size;
  }
  return options;
}

std::string help() {
  return R"(serve: continuous batching on a paged cache, with Attune's attention

usage: serve [options]

  --requests N    how many are served (24)
  --page-size N   tokens of a page (16)
  --pages N       pages of the cache (as many as hold 384 tokens)
  --seed N        of weights, prompts, lengths and arrivals (1)
  --device NAME   what it runs on (cpu, and nothing else yet)
  --spec FILE     what Attune's kernel computes ()" SERVE_DIRECTORY R"(/attention.yaml)
  --verbose       a line for each step
  --help          this

Every generated token is compared with that of the whole model in fp64, without a cache.
Ctrl-C ends after the step in hand.
Exit codes: 0 done, 1 a token is wrong, failed or interrupted, 2 bad input, 3 nothing here to run
it on.
)";
}

}  // namespace serve

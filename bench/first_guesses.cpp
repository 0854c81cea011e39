// The cost model's first choice for every spec of the library at many shapes, a line each, and what
// a choice takes of a core. Compare its output before and after a change that should move no
// choice. Needs no GPU and no compiler.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <vector>

#include "generator/plan/plan.hpp"
#include "generator/spec/library.hpp"

namespace attune {
namespace {

// Prefill, chunks of it, decode, odd lengths, and queries that outnumber keys.
std::vector<ProblemShape> shapes_of(const AttentionSpec& spec) {
  std::vector<ProblemShape> shapes = spec.tune_shapes;
  for (const std::int64_t heads : {8, 16, 32}) {
    for (const std::int64_t length : {512, 1024, 2048, 4096, 8192, 16384}) {
      shapes.push_back({.batch = 16384 / length,
                        .heads = heads,
                        .kv_heads = heads,
                        .q_len = length,
                        .kv_len = length});
    }
  }
  for (const std::int64_t length : {1, 7, 100, 129, 333, 1000, 5000, 32768}) {
    for (const std::int64_t queries : {std::int64_t{1}, std::int64_t{16}, length / 2, length}) {
      if (queries < 1) continue;
      shapes.push_back(
          {.batch = 2, .heads = 32, .kv_heads = 8, .q_len = queries, .kv_len = length});
    }
  }
  shapes.push_back({.batch = 1, .heads = 4, .kv_heads = 4, .q_len = 4096, .kv_len = 1000});
  return shapes;
}

double thread_us() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
}

void print_guesses(std::string_view name, const AttentionSpec& spec) {
  for (const Target target : {Target::kSm90a, Target::kSm80, Target::kSm120, Target::kCpu}) {
    std::vector<double> us;
    for (const ProblemShape& shape : shapes_of(spec)) {
      const double start = thread_us();
      const auto plan = default_plan(spec, shape, device_facts(target));
      us.push_back(thread_us() - start);
      fmt::print("{} {} {}: {}\n", name, to_string(target), to_string(shape),
                 plan.ok() ? to_string(*plan) : plan.error().message);
    }
    std::ranges::sort(us);
    fmt::print(stderr, "{:<32} {:<7} median {:8.1f} us, longest {:8.1f} us\n", name,
               to_string(target), us[us.size() / 2], us.back());
  }
}

void run() {
  for (const LibrarySpec& library : spec_library()) {
    const auto spec = parse_spec(library.text, library.path);
    if (spec.ok()) print_guesses(library.name, *spec);
  }
}

}  // namespace
}  // namespace attune

int main() { attune::run(); }

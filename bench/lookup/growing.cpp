// What att_kernel_get costs a decode loop: kv_len grows by one at every step. On the device that is
// there, or the one that is named; needs a compiler for it.
//   growing [device] [background]
#include <attune/attune.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kFirst = 1000, kSteps = 100000;
constexpr double kChoiceNs = 1000;  // no look-up takes so long: another bucket began

bool failed(att_status status) {
  if (status != ATT_OK) fmt::print(stderr, "{}\n", att_last_error());
  return status != ATT_OK;
}

// What the clock adds to each call, median.
double clock_ns() {
  std::vector<double> ns;
  for (int i = 0; i < 10000; ++i) {
    const Clock::time_point start = Clock::now();
    const std::chrono::duration<double, std::nano> spent = Clock::now() - start;
    ns.push_back(spent.count());
  }
  std::ranges::sort(ns);
  return ns[ns.size() / 2];
}

bool time_loop(att_runtime* runtime, const char* mask) {
  const std::string yaml =
      fmt::format("attune: 1\nname: g\ndtype: bf16\nhead_dim: 64\nmask: {}\n", mask);
  att_spec* spec = nullptr;
  if (failed(att_spec_from_yaml(yaml.c_str(), &spec))) return false;
  att_shape shape = {1, 8, 8, 1, kFirst};
  att_kernel* kernel = nullptr;
  if (failed(att_kernel_get(runtime, spec, &shape, &kernel))) return false;
  att_kernel_destroy(kernel);
  std::vector<double> ns;
  ns.reserve(kSteps);
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    shape.kv_len = kFirst + step;
    const Clock::time_point start = Clock::now();
    const att_status status = att_kernel_get(runtime, spec, &shape, &kernel);
    const std::chrono::duration<double, std::nano> spent = Clock::now() - start;
    if (failed(status)) return false;
    att_kernel_destroy(kernel);
    ns.push_back(spent.count());
  }
  std::ranges::sort(ns);
  const auto at = [&](double share) { return ns[static_cast<std::size_t>(share * (kSteps - 1))]; };
  const auto slow = ns.end() - std::ranges::lower_bound(ns, kChoiceNs);
  fmt::print("{:<24} {:>8.0f} {:>8.0f} {:>8.0f} {:>14} {:>14.1f}\n", mask, at(0.5), at(0.99),
             at(0.999), slow, ns.back() / 1e3);
  att_spec_destroy(spec);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const bool background = argc > 2 && argv[2] == std::string("background");
  att_runtime_options options = {};
  options.struct_size = sizeof options;
  options.device = argc > 1 ? argv[1] : nullptr;
  options.cache_file = "";  // none
  options.background = background ? 1 : 0;
  att_runtime* runtime = nullptr;
  if (failed(att_runtime_create(&options, &runtime))) return 1;
  fmt::print(
      "{}\n{} steps from kv_len {}{}; att_kernel_get, nanoseconds, {:.0f} of them the clock's\n",
      att_runtime_device(runtime), kSteps, kFirst, background ? ", background" : "", clock_ns());
  fmt::print("{:<24} {:>8} {:>8} {:>8} {:>14} {:>14}\n", "mask", "median", "99 %", "99.9 %",
             "calls > 1 us", "longest us");
  bool done = true;
  for (const char* mask : {"kv_idx >= 0", "causal", "sliding_window(1024)"}) {
    done = done && time_loop(runtime, mask);
  }
  att_runtime_destroy(runtime);
  return done ? 0 : 1;
}

// The same generated kernels through NVRTC and LLVM in both its orders: every library spec, the
// cost model's plan of each family, checked by the oracle, then timed in interleaved rounds. One
// JSON object a line on stdout; bench/compilers.py makes the table of docs/lab/tables.md of them.
// Needs a GPU, NVRTC and the LLVM module.
//
//   compilers --cache FILE --compile --share 3/8   compiles the third eighth, one kernel at a time
//   compilers --cache FILE --share 1/2             measures a half; compiles what FILE lacks
//   compilers --only full --only causal            those specs
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "generator/emit/emit.hpp"
#include "generator/spec/library.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/reference/oracle.hpp"
#include "runtime/support/parallel.hpp"
#include "tuner/measure/device_problem.hpp"
#include "tuner/sweep/manifest.hpp"

namespace attune {
namespace {

constexpr ProblemShape kTimed{
    .batch = 2, .heads = 16, .kv_heads = 16, .q_len = 4096, .kv_len = 4096};
constexpr ProblemShape kChecked{.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 333, .kv_len = 397};
constexpr int kCheckedRows = 128;
constexpr std::size_t kRounds = 160;
// An idle GPU runs its first kernels at another clock.
constexpr double kUntimedUs = 2e5;

constexpr std::size_t kCount = std::size(kCompilers);
using Compilers = std::array<std::unique_ptr<Compiler>, kCount>;  // as kCompilers

// One compiler's code of a case.
struct Build {
  std::string failure;  // why there is no kernel; empty: there is
  CompiledKernel code;
  std::unique_ptr<LoadedKernel> kernel;
  std::vector<double> times_us;
};
struct Case {
  std::string name;
  AttentionSpec spec;
  KernelPlan plan;
  ForwardOracle oracle;
  std::array<Build, kCount> builds;  // as kCompilers
};

HostProblem checked_problem(const AttentionSpec& spec) {
  return random_problem(spec, kChecked, 17);
}
std::vector<Row> checked_rows() { return sample_rows(kChecked, kCheckedRows, 5); }

KernelPlan cheapest(const AttentionSpec& spec, const std::vector<KernelPlan>& plans,
                    const DeviceFacts& facts) {
  return *std::min_element(plans.begin(), plans.end(), [&](const auto& a, const auto& b) {
    return cost_us(spec, a, kTimed, facts) < cost_us(spec, b, kTimed, facts);
  });
}

std::vector<Case> make_cases(const DeviceFacts& facts, const std::vector<std::string>& only) {
  std::vector<Case> cases;
  for (const LibrarySpec& entry : spec_library()) {
    if (!only.empty() && std::ranges::find(only, entry.name) == only.end()) continue;
    auto spec = parse_spec(entry.text, entry.path);
    if (!spec.ok()) continue;
    auto families = families_for(*spec, facts.target);
    if (!families.ok()) continue;
    for (const Family family : *families) {
      const auto plans = legal_plans(*spec, family, facts);
      if (plans.empty()) continue;
      const KernelPlan plan = cheapest(*spec, plans, facts);
      Case& one = cases.emplace_back();
      one.name = entry.name;
      one.spec = *spec;
      one.plan = plan;
    }
  }
  return cases;
}

// Neighbours, so that shares one after the other are in the library's order.
void keep_share(std::vector<Case>& cases, const Shard& share) {
  const auto border = [&](int i) {
    return cases.begin() + static_cast<std::ptrdiff_t>(cases.size()) * i / share.count;
  };
  cases.erase(border(share.index + 1), cases.end());
  cases.erase(cases.begin(), border(share.index));
}

Status build_and_load(Device& device, const Case& one, Compiler& compiler, Store* store,
                      Build& made) {
  ATT_TRY(BuiltKernel built, build(one.spec, one.plan, compiler, store));
  made.code = std::move(built.code);
  ATT_TRY(made.kernel, device.load(one.spec, one.plan, made.code.image));
  return ok_status();
}

// Compiles what the store does not have. It remembers failures too: what ptxas has to say against a
// kernel (C7512) the driver's own cache forgets.
Status load(Device& device, const Case& one, Compiler& compiler, Store* store, Build& made) {
  if (store == nullptr) return build_and_load(device, one, compiler, store, made);
  ATT_TRY(const BuildKey build, build_key(one.spec, one.plan, compiler));
  const MeasurementKey problem{build.spec_hash, device.identity(), kTimed,
                               std::string(kMeasurementProtocol)};
  ATT_TRY(const std::vector<Rejection> rejections, store->rejections(problem));
  const auto rejected = std::ranges::find(rejections, build.digest(), &Rejection::build_digest);
  if (rejected != rejections.end()) return Error{.id = "rejected", .message = rejected->detail};
  const Status loaded = build_and_load(device, one, compiler, store, made);
  if (loaded.ok()) return loaded;
  ATT_CHECK(store->reject(
      problem, {build.plan, build.digest(), "compile", std::string(loaded.error().message)}));
  return loaded;
}

// Empty, or what is wrong with the kernel's numbers.
std::string verdict(Device& device, const Case& one, const LoadedKernel& kernel) {
  auto uploaded = DeviceProblem::upload(device, one.spec, checked_problem(one.spec));
  if (!uploaded.ok()) return uploaded.error().message;
  for (const Status& status : {(*uploaded)->poison(), (*uploaded)->launch(kernel, nullptr)}) {
    if (!status.ok()) return status.error().message;
  }
  auto output = (*uploaded)->download(checked_rows());
  if (!output.ok()) return output.error().message;
  return compare(*output, one.oracle).wrong;
}

// Each round begins with another compiler.
Status time_case(Device& device, Case& one) {
  ATT_TRY(const auto problem, DeviceProblem::for_timing(device, one.spec, kTimed, 3));
  bool any = false;
  for (Build& build : one.builds) {
    if (!build.kernel) continue;
    ATT_CHECK(problem->prepare(*build.kernel));
    any = true;
  }
  double untimed_us = 0;
  for (std::size_t round = 0, timed = 0; any && timed < kRounds; ++round) {
    const bool counts = untimed_us >= kUntimedUs;
    for (std::size_t i = 0; i < one.builds.size(); ++i) {
      Build& build = one.builds[(i + round) % kCount];
      if (!build.kernel) continue;
      ATT_TRY(const double us, device.time_us([&](StreamHandle stream) {
        return problem->launch(*build.kernel, stream);
      }));
      if (counts) {
        build.times_us.push_back(us);
      } else {
        untimed_us += us;
      }
    }
    timed += counts;
  }
  return ok_status();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

// By how much the medians of the first and the second half of the rounds differ, as a share.
double noise(const std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  return std::abs(median({values.begin(), middle}) / median({middle, values.end()}) - 1);
}

nlohmann::json to_json(const Case& one) {
  nlohmann::json row = {
      {"spec", one.name}, {"family", to_string(one.plan.family())}, {"plan", to_string(one.plan)}};
  for (std::size_t i = 0; i < kCount; ++i) {
    const Build& build = one.builds[i];
    nlohmann::json& side = row[std::string(kCompilers[i].name)];
    side = {{"registers", build.code.registers},
            {"spill_bytes", build.code.spill_store_bytes + build.code.spill_load_bytes},
            {"compile_s", build.code.compile_seconds}};
    if (!build.failure.empty()) side["failure"] = build.failure;
    if (!build.times_us.empty()) side["us"] = median(build.times_us);
    // Of each round, whose launches are at one clock; the GPU's changes by a tenth.
    std::vector<double> ratios;
    std::ranges::transform(build.times_us, one.builds[0].times_us, std::back_inserter(ratios),
                           std::divides());
    if (i == 0 || ratios.empty()) continue;
    side["ratio"] = median(ratios);
    side["noise"] = noise(ratios);
  }
  return row;
}

Status measure(Device& device, const Compilers& compilers, std::vector<Case>& cases, Store* store) {
  nlohmann::json environment = {
      {"date", fmt::format("{:%F %R} UTC", fmt::gmtime(std::time(nullptr)))},
      {"device", device.identity()},
      {"how",
       fmt::format("medians of {} rounds in which each compiler's kernel runs once", kRounds)}};
  for (const auto& compiler : compilers)
    environment[compiler_name(*compiler)] = compiler->identity();
  fmt::print("{}\n", nlohmann::json{{"environment", environment}}.dump());
  parallel_for(static_cast<std::int64_t>(cases.size()), [&](std::int64_t i) {
    Case& one = cases[static_cast<std::size_t>(i)];
    const HostProblem problem = checked_problem(one.spec);
    one.oracle = oracle_forward(one.spec, problem, checked_rows());
  });
  for (Case& one : cases) {
    for (std::size_t i = 0; i < kCount; ++i) {
      Build& made = one.builds[i];
      const Status loaded = load(device, one, *compilers[i], store, made);
      made.failure = loaded.ok() ? verdict(device, one, *made.kernel) : loaded.error().message;
      if (!made.failure.empty()) made.kernel.reset();
    }
    ATT_CHECK(time_case(device, one));
    fmt::print("{}\n", to_json(one).dump());
    std::fflush(stdout);
    for (Build& made : one.builds) made.kernel.reset();
  }
  return ok_status();
}

// One after the other, so that a time is that of a compile which has a core to itself. Loaded too:
// what the driver makes of PTX is then in its own cache, and nobody waits for it who measures.
void compile_all(Device& device, const Compilers& compilers, const std::vector<Case>& cases,
                 Store& store) {
  for (const Case& one : cases) {
    for (const auto& compiler : compilers) {
      Build made;
      const Status loaded = load(device, one, *compiler, &store, made);
      if (!loaded.ok()) fmt::print(stderr, "{}: {}\n", one.name, loaded.error().message);
    }
  }
}

struct Options {
  std::string cache, share;
  bool compile = false;
  std::vector<std::string> only;
};

Status run(const Options& options) {
  ATT_TRY(const std::unique_ptr<Device> device, open_cuda_device(0));
  Compilers compilers;
  for (std::size_t i = 0; i < kCount; ++i) {
    ATT_TRY(compilers[i], open_named_compiler(std::string(kCompilers[i].name)));
  }
  std::vector<Case> cases = make_cases(device->facts(), options.only);
  if (!options.share.empty()) {
    ATT_TRY(const Shard share, parse_shard(options.share));
    keep_share(cases, share);
  }
  std::unique_ptr<Store> store;
  if (!options.cache.empty()) {
    ATT_TRY(store, open_store(options.cache));
  }
  if (!options.compile) return measure(*device, compilers, cases, store.get());
  compile_all(*device, compilers, cases, *store);
  return ok_status();
}

}  // namespace
}  // namespace attune

int main(int argc, char** argv) {
  CLI::App app("NVRTC beside LLVM");
  attune::Options options;
  CLI::Option* const file = app.add_option("--cache", options.cache, "where compiled code is kept");
  app.add_flag("--compile", options.compile, "compile only")->needs(file);
  app.add_option("--share", options.share, "i/n: that share of the kernels only");
  app.add_option("--only", options.only, "a spec of the library; repeatable; default: all");
  CLI11_PARSE(app, argc, argv);
  const attune::Status status = attune::run(options);
  if (status.ok()) return 0;
  fmt::print(stderr, "{}", attune::render(status.error()));
  return attune::exit_code(status.error().kind);
}

// The same generated kernels through both compilers: every library spec, the cost model's plan of
// each family, checked by the oracle, then timed in interleaved rounds. One JSON object a line on
// stdout; bench/compilers.py makes the table of docs/performance.md of them. Needs a GPU, NVRTC and
// the LLVM module.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <vector>

#include "generator/emit/emit.hpp"
#include "generator/spec/library.hpp"
#include "runtime/jit/compiler.hpp"
#include "runtime/reference/oracle.hpp"
#include "runtime/support/parallel.hpp"
#include "tuner/measure/device_problem.hpp"

namespace attune {
namespace {

constexpr ProblemShape kTimed{
    .batch = 2, .heads = 16, .kv_heads = 16, .q_len = 4096, .kv_len = 4096};
constexpr ProblemShape kChecked{.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 333, .kv_len = 397};
constexpr int kCheckedRows = 128;
constexpr int kRounds = 21;

// Compiled alone as well, before all others: in a parallel build the driver assembles one kernel at
// a time.
constexpr std::string_view kCompiledAlone[] = {"bench/full_d64", "bench/causal_d128",
                                               "bench/doc_causal", "bench/softcap_causal",
                                               "bench/natten2d_k13"};

struct Build {
  double alone_seconds = 0;
  Result<CompiledKernel> code = Error{};
  std::unique_ptr<LoadedKernel> kernel;
  std::string failure;
  std::vector<double> times_us;
};
struct Case {
  std::string name;
  AttentionSpec spec;
  KernelPlan plan;
  GeneratedKernel generated;
  std::map<std::string, Build> builds;  // by compiler: "nvrtc", "llvm"
};

KernelPlan cheapest(const AttentionSpec& spec, const std::vector<KernelPlan>& plans,
                    const DeviceFacts& facts) {
  return *std::min_element(plans.begin(), plans.end(), [&](const auto& a, const auto& b) {
    return cost_us(spec, a, kTimed, facts) < cost_us(spec, b, kTimed, facts);
  });
}

std::vector<Case> make_cases(const DeviceFacts& facts) {
  std::vector<Case> cases;
  for (const LibrarySpec& entry : spec_library()) {
    auto spec = parse_spec(entry.text, entry.path);
    if (!spec.ok()) continue;
    auto families = families_for(*spec, facts.target);
    if (!families.ok()) continue;
    for (const Family family : *families) {
      const auto plans = legal_plans(*spec, family, facts);
      if (plans.empty()) continue;
      const KernelPlan plan = cheapest(*spec, plans, facts);
      auto generated = emit(*spec, plan);
      if (!generated.ok()) continue;
      cases.push_back({.name = std::string(entry.name),
                       .spec = *spec,
                       .plan = plan,
                       .generated = std::move(generated).value(),
                       .builds = {}});
    }
  }
  return cases;
}

// Empty, or what is wrong with the kernel's numbers.
std::string verdict(Device& device, const Case& one, const LoadedKernel& kernel) {
  const HostProblem problem = random_problem(one.spec, kChecked, 17);
  const std::vector<Row> rows = sample_rows(kChecked, kCheckedRows, 5);
  auto uploaded = DeviceProblem::upload(device, one.spec, problem);
  if (!uploaded.ok()) return uploaded.error().message;
  for (const Status& status : {(*uploaded)->poison(), (*uploaded)->launch(kernel, nullptr)}) {
    if (!status.ok()) return status.error().message;
  }
  auto output = (*uploaded)->download(rows);
  if (!output.ok()) return output.error().message;
  return compare(one.spec.dtype, *output, oracle_forward(one.spec, problem, rows),
                 plain_forward(one.spec, problem, rows));
}

Status time_case(Device& device, Case& one) {
  ATT_TRY(const auto problem, DeviceProblem::for_timing(device, one.spec, kTimed, 3));
  for (auto& [name, build] : one.builds) {
    if (build.kernel) ATT_CHECK(problem->prepare(*build.kernel));
  }
  for (int round = 0; round < kRounds; ++round) {
    for (auto& [name, build] : one.builds) {
      if (!build.kernel) continue;
      ATT_TRY(const double us, device.time_us([&](StreamHandle stream) {
        return problem->launch(*build.kernel, stream);
      }));
      build.times_us.push_back(us);
    }
  }
  return ok_status();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

nlohmann::json to_json(const Case& one) {
  nlohmann::json row = {
      {"spec", one.name}, {"family", to_string(one.plan.family())}, {"plan", to_string(one.plan)}};
  for (const auto& [name, build] : one.builds) {
    nlohmann::json& side = row[name];
    if (build.code.ok()) {
      if (build.alone_seconds > 0) row["alone_s"][name] = build.alone_seconds;
      side = {{"registers", build.code->registers},
              {"spill_bytes", build.code->spill_store_bytes + build.code->spill_load_bytes},
              {"compile_s", build.code->compile_seconds}};
    }
    if (!build.failure.empty()) side["failure"] = build.failure;
    if (!build.times_us.empty()) side["us"] = median(build.times_us);
  }
  return row;
}

Status run() {
  ATT_TRY(const std::unique_ptr<Device> device, open_cuda_device(0));
  std::map<std::string, std::unique_ptr<Compiler>> compilers;
  ATT_TRY(compilers["nvrtc"], open_nvrtc_compiler());
  ATT_TRY(compilers["llvm"], open_llvm_compiler());
  std::vector<Case> cases = make_cases(device->facts());
  struct Job {
    Case* one;
    std::string compiler;
  };
  std::vector<Job> jobs;
  for (Case& one : cases) {
    for (const auto& [name, compiler] : compilers) {
      one.builds[name];
      jobs.push_back({&one, name});
    }
  }
  for (const Job& job : jobs) {
    if (std::ranges::find(kCompiledAlone, job.one->name) == std::end(kCompiledAlone)) continue;
    Build& build = job.one->builds[job.compiler];
    build.code =
        compilers.at(job.compiler)
            ->compile(job.one->generated.source, job.one->generated.symbol, job.one->plan.target);
    if (build.code.ok()) build.alone_seconds = build.code->compile_seconds;
  }
  parallel_for(static_cast<std::int64_t>(jobs.size()), [&](std::int64_t i) {
    const Job& job = jobs[static_cast<std::size_t>(i)];
    if (job.one->builds[job.compiler].alone_seconds > 0) return;
    job.one->builds[job.compiler].code =
        compilers.at(job.compiler)
            ->compile(job.one->generated.source, job.one->generated.symbol, job.one->plan.target);
  });
  nlohmann::json environment = {{"device", device->identity()}};
  for (const auto& [name, compiler] : compilers) environment[name] = compiler->identity();
  fmt::print("{}\n", nlohmann::json{{"environment", environment}}.dump());
  for (Case& one : cases) {
    for (auto& [name, build] : one.builds) {
      if (!build.code.ok()) {
        build.failure = build.code.error().message;
        continue;
      }
      auto kernel = device->load(one.spec, one.plan, build.code->image);
      build.failure = kernel.ok() ? verdict(*device, one, **kernel) : kernel.error().message;
      if (build.failure.empty()) build.kernel = std::move(kernel).value();
    }
    ATT_CHECK(time_case(*device, one));
    fmt::print("{}\n", to_json(one).dump());
    std::fflush(stdout);
    for (auto& [name, build] : one.builds) build.kernel.reset();
  }
  return ok_status();
}

}  // namespace
}  // namespace attune

int main() {
  const attune::Status status = attune::run();
  if (status.ok()) return 0;
  fmt::print(stderr, "{}", attune::render(status.error()));
  return attune::exit_code(status.error().kind);
}

// The CPU's backward pass beside its forward pass, in interleaved rounds: medians of the time that
// went by, and of the processor time of all threads, which other processes disturb less; what is
// reached of the processor's multiply-adds in the latter; and its ratio. FLOPs are those of all
// pairs of a query and a key, whatever the mask; a backward pass has 2.5 times those of a forward
// pass.
//
//   cpu_backward full causal --dtype fp32 --head-dim 64 --shape batch=1,heads=4,q_len=2048
//   cpu_backward full --plan "cpu backward cpu t96 s64 u8 c3 v64" --plan ...
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ctime>
#include <functional>
#include <ranges>
#include <vector>

#include "generator/spec/shape.hpp"
#include "runtime/engine/engine.hpp"
#include "tuner/measure/backward_problem.hpp"

namespace attune {
namespace {

struct Arguments {
  std::vector<std::string> masks = {"full", "causal"};
  std::vector<std::string> plans;  // of the backward pass; none: the cost model's
  std::string dtype = "fp32", head_dim = "64", shape = "batch=1,heads=4,q_len=2048", extra;
  int rounds = 9;
};

Result<ProblemShape> shape_of(const std::string& text) {
  ProblemShape shape{.batch = 0, .heads = 0, .kv_heads = 0, .q_len = 0, .kv_len = 0};
  for (const auto part : std::views::split(std::string_view(text), ',')) {
    const std::string_view pair(part.begin(), part.end());
    const auto equals = std::min(pair.find('='), pair.size());
    for (const ShapeField& field : kShapeFields) {
      if (field.name != pair.substr(0, equals)) continue;
      const std::string_view size = pair.substr(std::min(equals + 1, pair.size()));
      if (const auto problem = read_size(field, size, shape)) {
        return Error{.kind = ErrorKind::kBadInput, .id = problem->id, .message = problem->message};
      }
    }
  }
  if (const auto problem = complete_shape(shape)) {
    return Error{.kind = ErrorKind::kBadInput, .id = problem->id, .message = problem->message};
  }
  return shape;
}

struct Contestant {
  std::string name;
  double flops;
  std::unique_ptr<LoadedKernel> kernel;
  std::function<Status(StreamHandle)> launch;
  std::vector<double> times_us = {}, processor_us = {};
};

double process_us() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

Status measure(const Arguments& arguments, const std::string& mask, Device& device,
               Compiler& compiler) {
  const std::string yaml = fmt::format(
      "attune: 1\nname: bench\ndtype: {}\nhead_dim: {}\nlayout: bhsd\nmask: {}\n{}\n",
      arguments.dtype, arguments.head_dim, mask == "full" ? "true" : mask, arguments.extra);
  ATT_TRY(const AttentionSpec spec, parse_spec(yaml, "bench.yaml"));
  ATT_TRY(const ProblemShape shape, shape_of(arguments.shape));
  const auto load = [&](const KernelPlan& plan) -> Result<std::unique_ptr<LoadedKernel>> {
    ATT_TRY(const BuiltKernel built, build(spec, plan, compiler, nullptr));
    return device.load(spec, plan, built.code.image);
  };
  const double flops = 2.0 * (spec.head_dim_qk + spec.head_dim_v) * double(shape.batch) *
                       double(shape.heads) * double(shape.q_len) * double(shape.kv_len);
  ATT_TRY(const KernelPlan forward_plan, default_plan(spec, shape, device.facts(), Pass::kForward));
  std::vector<Contestant> all;
  all.push_back({.name = to_string(forward_plan), .flops = flops});
  ATT_TRY(all.front().kernel, load(forward_plan));
  std::vector<KernelPlan> plans;
  for (const std::string& text : arguments.plans) {
    ATT_TRY(plans.emplace_back(), parse_plan(text));
  }
  if (plans.empty()) {
    ATT_TRY(plans.emplace_back(), default_plan(spec, shape, device.facts(), Pass::kBackward));
  }
  ATT_TRY(const auto forward, DeviceProblem::for_timing(device, spec, shape, kTimedSeed));
  all.front().launch = [&](StreamHandle stream) {
    return forward->launch(*all.front().kernel, stream);
  };
  const HostProblem problem = random_problem(spec, shape, kTimedSeed);
  ATT_TRY(const auto backward,
          BackwardProblem::make(device, spec, problem, *all.front().kernel, kTimedSeed));
  for (const KernelPlan& plan : plans) {
    all.push_back({.name = to_string(plan), .flops = 2.5 * flops});
    ATT_TRY(all.back().kernel, load(plan));
    all.back().launch = [&, kernel = all.back().kernel.get()](StreamHandle stream) {
      return backward->launch(*kernel, stream);
    };
  }
  for (Contestant& one : all) ATT_CHECK(one.launch(nullptr));
  for (int round = 0; round < arguments.rounds; ++round) {
    for (Contestant& one : all) {
      const double start = process_us();
      ATT_TRY(one.times_us.emplace_back(), device.time_us(one.launch));
      one.processor_us.push_back(process_us() - start);
    }
  }
  const double forward_us = median(all.front().processor_us);
  fmt::print("{} {} d {}, {}\n", mask, arguments.dtype, arguments.head_dim, to_string(shape));
  for (const Contestant& one : all) {
    const double us = median(one.processor_us);
    fmt::print("  {:<48} {:9.2f} ms {:9.2f} ms of processors {:7.1f} GFLOP/s {:6.2f} x forward\n",
               one.name, median(one.times_us) * 1e-3, us * 1e-3, one.flops / us * 1e-3,
               us / forward_us);
  }
  return ok_status();
}

Status run(const Arguments& arguments) {
  ATT_TRY(const auto compiler, open_llvm_compiler());
  ATT_TRY(const auto device, open_cpu_device());
  const DeviceFacts& facts = device->facts();
  fmt::print("{}, {:.0f} GFLOP/s fp32 of a thread\n", device->identity(),
             facts.matrix_tflops * 1e3 / facts.processor_count);
  for (const std::string& mask : arguments.masks) {
    ATT_CHECK(measure(arguments, mask, *device, *compiler));
  }
  return ok_status();
}

}  // namespace
}  // namespace attune

int main(int argc, char** argv) {
  attune::Arguments arguments;
  CLI::App app("the CPU's backward pass beside its forward pass");
  app.add_option("masks", arguments.masks, "`full`, or what a spec's `mask` may be");
  app.add_option("--dtype", arguments.dtype);
  app.add_option("--head-dim", arguments.head_dim);
  app.add_option("--shape", arguments.shape);
  app.add_option("--plan", arguments.plans, "of the backward pass; may be repeated");
  app.add_option("--with", arguments.extra, "more lines of the spec");
  app.add_option("--rounds", arguments.rounds);
  CLI11_PARSE(app, argc, argv);
  const attune::Status status = attune::run(arguments);
  if (status.ok()) return 0;
  fmt::print(stderr, "{}\n", attune::render(status.error()));
  return attune::exit_code(status.error().kind);
}

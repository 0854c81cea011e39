// attune devices: what there is to run and to compile with, and how to get what is missing.
#include <fmt/format.h>

#include <memory>

#include "cli/command.hpp"
#include "cli/options.hpp"
#include "cli/output.hpp"
#include "runtime/device/device.hpp"
#include "runtime/jit/compiler.hpp"
#include "runtime/support/json.hpp"

namespace attune::cli {
namespace {

struct Entry {
  std::string kind;  // "device", "compiler"
  std::string name;
  bool present = false;
  std::string identity;
  Error error;        // when !present
  DeviceFacts facts;  // of a device that is present
};

Entry entry(std::string name, const Result<std::unique_ptr<Device>>& device) {
  if (!device.ok()) return {"device", std::move(name), false, "", device.error(), {}};
  return {"device", std::move(name), true, device.value()->identity(), {}, device.value()->facts()};
}

Entry entry(std::string name, const Result<std::unique_ptr<Compiler>>& compiler) {
  if (!compiler.ok()) return {"compiler", std::move(name), false, "", compiler.error(), {}};
  return {"compiler", std::move(name), true, compiler.value()->identity(), {}, {}};
}

std::vector<Entry> find() {
  std::vector<Entry> entries;
  const auto count = cuda_device_count();
  const int gpus = count.ok() ? count.value() : 0;
  for (int i = 0; i < gpus; ++i) {
    entries.push_back(entry(fmt::format("cuda:{}", i), open_cuda_device(i)));
  }
  if (gpus == 0) {
    const Error none{
        .kind = ErrorKind::kUnavailable,
        .id = "cuda-no-device",
        .message = "no CUDA device",
        .hint = "needs an NVIDIA GPU of compute capability 8.0 or newer and its driver"};
    entries.push_back({"device", "cuda", false, "", count.ok() ? none : count.error(), {}});
  }
  entries.push_back(entry("cpu", open_cpu_device()));
  entries.push_back(entry("nvrtc", open_nvrtc_compiler()));
  entries.push_back(entry("llvm", open_llvm_compiler()));
  return entries;
}

Json describe(const Entry& entry) {
  Json json = {{"kind", entry.kind}, {"name", entry.name}, {"present", entry.present}};
  if (!entry.present) {
    json.set("missing", entry.error.message);
    json.set("hint", entry.error.hint);
    return json;
  }
  json.set("identity", entry.identity);
  if (entry.kind == "device") {
    json.set("target", to_string(entry.facts.target));
    json.set("processors", entry.facts.processor_count);
    json.set("memory_bytes", entry.facts.memory_bytes);
    json.set("l2_bytes", entry.facts.l2_bytes);
    json.set("shared_memory_per_block_bytes", entry.facts.shared_memory_per_block_bytes);
    json.set("clock_ghz", entry.facts.clock_ghz);
    json.set("matrix_tflops", entry.facts.matrix_tflops);
    json.set("memory_gb_per_s", entry.facts.memory_gb_per_s);
  }
  return json;
}

ExitCode run(const Options& options) {
  const std::vector<Entry> entries = find();
  bool runs = false, compiles = false;
  Json devices = Json::array();
  for (const Entry& entry : entries) {
    (entry.kind == "device" ? runs : compiles) |= entry.present;
    devices.push_back(describe(entry));
    if (options.json) continue;
    if (entry.present) {
      print(fmt::format(
          "{:<7} {}{}\n", entry.name, paint(entry.identity, Colour::kGreen),
          entry.kind == "device" ? fmt::format(" ({})", to_string(entry.facts.target)) : ""));
    } else {
      print(fmt::format("{:<7} {}\n", entry.name,
                        paint("missing: " + entry.error.message, Colour::kYellow)));
      if (!entry.error.hint.empty()) print(fmt::format("        {}\n", entry.error.hint));
    }
  }
  if (options.json) print_json({{"devices", std::move(devices)}});
  return runs && compiles ? 0 : 3;
}

}  // namespace

Command add_devices(CommandLine& parent) {
  auto options = std::make_shared<Options>();
  CommandLine line =
      parent.command("devices", "Show GPUs, CPU, NVRTC and LLVM, or what is missing");
  add_json(line, *options);
  line.footer("Example:\n  attune devices");
  return {line, [options] { return run(*options); }};
}

}  // namespace attune::cli

// attune status: what a runtime would use here: device, compiler, and cache files in the order in
// which they are asked.
#include "runtime/engine/status.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/options.hpp"
#include "cli/output.hpp"

namespace attune::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const Json& object, const char* key) {
  return object.value(key, std::string());
}

void show(const Json& status) {
  const Json& device = status["device"];
  print(fmt::format("device    {} ({})\n", paint(text_of(device, "identity"), Colour::kGreen),
                    text_of(device, "target")));
  const Json& compiler = status["compiler"];
  if (compiler.contains("identity")) {
    print(fmt::format("compiler  {}\n", paint(text_of(compiler, "identity"), Colour::kGreen)));
  } else {
    print(fmt::format("compiler  {}\n",
                      paint("missing: " + text_of(compiler, "missing"), Colour::kYellow)));
    if (const std::string hint = text_of(compiler, "hint"); !hint.empty()) {
      print(fmt::format("          {}\n", hint));
    }
  }
  for (const Json& file : status["cache"]) {
    const std::string state = text_of(file, "state");
    const bool used = !file.contains("problem");
    print(fmt::format("cache     {} {}, {} tuned problems for this device\n", text_of(file, "path"),
                      paint(state, used ? Colour::kGreen : Colour::kYellow),
                      file["problems_known"].get<int>()));
    const std::string problem = text_of(file, used ? "last_warning" : "problem");
    if (!problem.empty()) print(fmt::format("          {}\n", problem));
    const std::string refused = text_of(file, "code_refused");
    if (!refused.empty() && refused != problem) print(fmt::format("          {}\n", refused));
  }
}

ExitCode run(const Options& options) {
  auto workshop = Workshop::open(options.device, options.cache);
  if (!workshop.ok()) return fail(workshop.error());
  const Dispatcher dispatcher(*std::move(workshop), false);
  const Json status = Json::parse(status_json(dispatcher), nullptr, false);
  if (options.json) {
    print_json(status);
  } else {
    show(status);
  }
  return 0;
}

}  // namespace

Command add_status(CLI::App& parent) {
  auto options = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand(
      "status", "Show the device, compiler and cache files that a runtime would use");
  add_device(*app, *options);
  add_cache_file(*app, *options);
  add_json(*app, *options);
  app->footer("Example:\n  attune status --device cpu --json");
  return {app, [options] { return run(*options); }};
}

}  // namespace attune::cli

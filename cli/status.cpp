// attune status: what a runtime would use here: device, compiler, and cache files in the order in
// which they are asked.
#include "runtime/engine/status.hpp"

#include <fmt/format.h>

#include <memory>

#include "cli/command.hpp"
#include "cli/options.hpp"
#include "cli/output.hpp"
#include "runtime/support/json.hpp"

namespace attune::cli {
namespace {

std::string text_of(const Json& object, const char* key) {
  return object.at(key).text().value_or("");
}

void show(const Json& status) {
  const Json device = status.at("device");
  print(fmt::format("device    {} ({})\n", paint(text_of(device, "identity"), Colour::kGreen),
                    text_of(device, "target")));
  const Json compiler = status.at("compiler");
  if (compiler.contains("identity")) {
    print(fmt::format("compiler  {}\n", paint(text_of(compiler, "identity"), Colour::kGreen)));
  } else {
    print(fmt::format("compiler  {}\n",
                      paint("missing: " + text_of(compiler, "missing"), Colour::kYellow)));
    if (const std::string hint = text_of(compiler, "hint"); !hint.empty()) {
      print(fmt::format("          {}\n", hint));
    }
  }
  for (const Json& file : status.at("cache").items()) {
    int problems_known = 0;
    file.read("problems_known", problems_known);
    const std::string state = text_of(file, "state");
    const bool used = !file.contains("problem");
    print(fmt::format("cache     {} {}, {} for this device\n", text_of(file, "path"),
                      paint(state, used ? Colour::kGreen : Colour::kYellow),
                      counted(static_cast<std::size_t>(problems_known), "tuned problem")));
    const std::string problem = text_of(file, used ? "last_warning" : "problem");
    if (!problem.empty()) print(fmt::format("          {}\n", problem));
    for (const char* key : {"code_refused", "not_written"}) {
      const std::string why = text_of(file, key);
      if (!why.empty() && why != problem) print(fmt::format("          {}\n", why));
    }
  }
}

ExitCode show_status(const Options& options) {
  auto workshop = Workshop::open(options.device, options.cache);
  if (!workshop.ok()) return fail(workshop.error());
  const Dispatcher dispatcher(*std::move(workshop), false);
  const Json status = Json::parse(status_json(dispatcher)).value_or(Json());
  if (options.json) {
    print_json(status);
  } else {
    show(status);
  }
  return 0;
}

}  // namespace

Command add_status(CommandLine& parent) {
  auto options = std::make_shared<Options>();
  CommandLine line = parent.command(
      "status", "Show the device, compiler and cache files that a runtime would use");
  add_device(line, *options);
  add_cache_file(line, *options);
  add_json(line, *options);
  line.footer("Example:\n  attune status --device cpu --json");
  return {line, [options] { return show_status(*options); }};
}

}  // namespace attune::cli

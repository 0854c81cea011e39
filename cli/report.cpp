// attune report: a cache file's measurements as one HTML page that needs no network.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <memory>

#include "cli/cache_commands.hpp"
#include "cli/files.hpp"
#include "cli/output.hpp"
#include "cli/report_page.hpp"
#include "cli/spec_names.hpp"
#include "cli/spec_source.hpp"
#include "generator/spec/library.hpp"
#include "runtime/device/device.hpp"

namespace attune::cli {
namespace {

struct ReportOptions : Options {
  std::string output = "report.html";
};

// The library's specs and those named. Where several mean the same kernel, a named one stands.
Result<ReportKnowledge> gather(const std::vector<std::string>& named) {
  ReportKnowledge known;
  for (const std::string& source : named) {
    ATT_TRY(const LoadedSpec loaded, load_spec(source));
    known.specs.emplace(spec_hash(loaded.spec), KnownSpec{loaded.spec.name, loaded.spec});
  }
  const auto names = library_names();
  for (const LibrarySpec& library : spec_library()) {
    const auto spec = parse_spec(library.text, library.path);
    if (!spec.ok()) continue;
    const std::string hash = spec_hash(*spec);
    known.specs.emplace(hash, KnownSpec{name_of(names, hash), *spec});
  }
  const auto add = [&](const Result<std::unique_ptr<Device>>& device) {
    if (device.ok()) known.devices.emplace(device.value()->identity(), device.value()->facts());
  };
  add(open_cpu_device());
  const auto gpus = cuda_device_count();
  for (int i = 0; gpus.ok() && i < gpus.value(); ++i) add(open_cuda_device(i));
  return known;
}

Result<ExitCode> run(const ReportOptions& options) {
  ATT_TRY(const std::string path, cache_file(options));
  ATT_TRY(const ReportKnowledge known, gather(options.specs));
  ATT_TRY(const CacheContents contents, read_contents(path));
  Report report = collect_report(path, contents, known);
  report.written_at = fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr)));
  const std::string page = report_page(report);
  if (options.output == "-") {
    print(page);
    return 0;
  }
  ATT_CHECK(write_file(options.output, page));
  print(fmt::format("{}: {}, {:.0f} kB\n", options.output,
                    counted(report.problems.size(), "problem"),
                    static_cast<double>(page.size()) / 1e3));
  return 0;
}

}  // namespace

Command add_report(CommandLine& parent) {
  auto options = std::make_shared<ReportOptions>();
  CommandLine line = parent.command("report", "Write measurements as one HTML page");
  line.option("SPEC", options->specs, "specs of your own that the file's problems may be of");
  add_cache_file(line, *options);
  line.option("-o,--output", options->output, "the page; - for stdout", {.show_default = true});
  line.footer("Example:\n  attune report --cache tuned.db -o report.html");
  return {line, [options] { return finish(run(*options)); }};
}

}  // namespace attune::cli

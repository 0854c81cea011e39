// attune cache export, import, merge, verify, gc: moving cache files about and keeping them whole.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "cache/maintenance.hpp"
#include "cli/cache_commands.hpp"
#include "cli/output.hpp"
#include "cli/spec_source.hpp"
#include "runtime/support/json.hpp"

namespace attune::cli {
namespace {

Result<ExitCode> export_file(const CacheOptions& options) {
  ATT_TRY(const std::string path, cache_file(options));
  cache::ExportOptions wanted{.spec_hash = {}, .with_code = !options.without_code};
  if (!options.specs.empty()) {
    ATT_TRY(const LoadedSpec loaded, load_spec(options.specs.front()));
    wanted.spec_hash = spec_hash(loaded.spec);
  }
  const std::string& target = options.files.front();
  ATT_CHECK(cache::export_to(path, target, wanted));
  ATT_TRY(const cache::FileSummary summary, cache::summarize(target));
  if (options.json) {
    print_json({{"file", target},
                {"problems", summary.problems},
                {"measurements", summary.measurements},
                {"kernels", summary.images},
                {"bytes", summary.bytes}});
  } else {
    const auto number = [](int count, std::string_view noun) {
      return counted(static_cast<std::size_t>(count), noun);
    };
    print(fmt::format("{}: {}, {}, {}, {:.1f} MB\n", target, number(summary.problems, "problem"),
                      number(summary.measurements, "measurement"), number(summary.images, "kernel"),
                      static_cast<double>(summary.bytes) / 1e6));
  }
  return 0;
}

Result<ExitCode> merge_files(const CacheOptions& options) {
  ATT_TRY(const std::string into, cache_file(options));
  Json merged = Json::array();
  for (const std::string& from : options.files) {
    ATT_TRY(const cache::Merged one,
            cache::merge(from, into, {.with_code = !options.without_code}));
    Json gained = {{"file", from}, {"rows_gained", one.rows}};
    if (!one.code_refused.empty()) {
      gained.set("code_refused", one.code_refused);
      warn(one.code_refused);
    }
    merged.push_back(std::move(gained));
    if (!options.json) print(fmt::format("{}: {} rows gained by {}\n", from, one.rows, into));
  }
  if (options.json) print_json({{"cache", into}, {"merged", std::move(merged)}});
  return 0;
}

// A file too damaged to be read through is a finding, not a failure to look.
Result<cache::VerifyReport> examine(const std::string& path) {
  auto report = cache::verify(path);
  if (report.ok() || report.error().id != "cache-damaged") return report;
  return cache::VerifyReport{.structure = {report.error().message}};
}

// What a user calls the rows of a table that matter to him.
constexpr std::pair<std::string_view, std::string_view> kRowNames[] = {
    {"measurement", "measurements"},
    {"quarantine", "rejections"},
    {"cubin", "kernels"},
    {"build", "builds"},
    {"candidate", "candidates"},
    {"problem", "problems"},
    {"spec", "spec texts"},
    {"env", "devices"}};

// "lost: 3 measurements, 1 kernels"
std::string losses(const cache::Rebuilt& rebuilt) {
  std::string lost, uncounted;
  for (const auto& [table, name] : kRowNames) {
    const auto at = rebuilt.lost.find(std::string(table));
    if (at != rebuilt.lost.end())
      lost += fmt::format("{}{} {}", lost.empty() ? "" : ", ", at->second, name);
    if (std::ranges::find(rebuilt.uncounted, table) != rebuilt.uncounted.end())
      uncounted += fmt::format("{}{}", uncounted.empty() ? "" : ", ", name);
  }
  if (lost.empty() && uncounted.empty()) lost = "nothing";
  std::string text = lost.empty() ? "" : fmt::format("lost: {}\n", lost);
  if (!uncounted.empty()) text += fmt::format("lost without count: of {}\n", uncounted);
  return text;
}

std::string rebuilt_text(const cache::Rebuilt& rebuilt) {
  return fmt::format("rebuilt with {} sound rows; the old file lies beside it\n{}", rebuilt.rows,
                     losses(rebuilt));
}

std::string orphans_text(int rows) {
  return fmt::format(
      "{} rows wait for one they refer to, which was lost; they count again when it is measured "
      "anew\n",
      rows);
}

Json lost_rows(const cache::Rebuilt& rebuilt) {
  Json lost = Json::object();
  for (const auto& [table, rows] : rebuilt.lost) lost.set(table, rows);
  return lost;
}

Result<ExitCode> verify(const CacheOptions& options) {
  ATT_TRY(const std::string path, cache_file(options));
  ATT_TRY(const cache::VerifyReport report, examine(path));
  std::optional<cache::Rebuilt> rebuilt;
  int orphaned = report.orphaned_rows;
  if (!report.ok() && options.rebuild) {
    ATT_TRY(rebuilt, cache::rebuild(path));
    ATT_TRY(const cache::VerifyReport now, cache::verify(path));
    orphaned = now.orphaned_rows;
  }
  if (options.json) {
    print_json({{"cache", path},
                {"ok", report.ok()},
                {"structure", report.structure},
                {"damaged_rows", report.damaged_rows},
                {"orphaned_rows", orphaned},
                {"rebuilt_rows", rebuilt ? Json(rebuilt->rows) : Json()},
                {"lost_rows", rebuilt ? lost_rows(*rebuilt) : Json()},
                {"lost_uncounted", rebuilt ? Json(rebuilt->uncounted) : Json()}});
    return report.ok() || rebuilt ? 0 : 1;
  }
  if (report.ok()) {
    print(fmt::format("{} {}\n", paint("ok", Colour::kGreen), path));
  } else {
    for (const std::string& line : report.structure) print(line + "\n");
    print(fmt::format("{}: {} damaged rows\n", path, report.damaged_rows));
    print(rebuilt ? rebuilt_text(*rebuilt)
                  : "`attune cache verify --rebuild` carries what is sound into a new file\n");
  }
  if (orphaned > 0) print(orphans_text(orphaned));
  return report.ok() || rebuilt ? 0 : 1;
}

Result<ExitCode> collect(const CacheOptions& options) {
  ATT_TRY(const std::string path, cache_file(options));
  ATT_TRY(const cache::GcReport report,
          cache::collect_garbage(path, {.limit_bytes = options.limit_mb << 20}));
  if (options.json) {
    print_json({{"cache", path},
                {"evicted_images", report.evicted_images},
                {"orphaned_images", report.orphaned_images},
                {"leases", report.leases},
                {"temporary_files", report.temporary_files},
                {"bytes_before", report.bytes_before},
                {"bytes_after", report.bytes_after}});
  } else {
    print(
        fmt::format("{}: {:.1f} MB -> {:.1f} MB; {} kernels evicted, {} without a build, {} "
                    "leases, {} temporary files\n",
                    path, static_cast<double>(report.bytes_before) / 1e6,
                    static_cast<double>(report.bytes_after) / 1e6, report.evicted_images,
                    report.orphaned_images, report.leases, report.temporary_files));
  }
  return 0;
}

}  // namespace

void add_cache_upkeep(CacheCommands& commands) {
  auto [exporting, export_options] =
      commands.add("export", "Write a new file with all of it, or one spec's part", export_file,
                   "attune cache export shipped.db --spec causal");
  exporting.option("FILE", export_options->files, "the file to write",
                   {.required = true, .exactly_one = true});
  exporting.option("--spec", export_options->specs, "only this spec's", {.exactly_one = true});
  exporting.flag("--no-code", export_options->without_code, "times and rejections, no kernels");
  for (const char* name : {"import", "merge"}) {
    auto [merging, merge_options] = commands.add(
        name, "Add all that other files know; order and repetition do not matter", merge_files,
        name == std::string("import") ? "attune cache import shipped.db"
                                      : "attune cache merge a.db b.db --cache all.db");
    merging.option("FILE", merge_options->files, "files to read", {.required = true});
    merging.flag("--no-code", merge_options->without_code, "times and rejections, no kernels");
  }
  auto [verifying, verify_options] = commands.add("verify", "Read every byte and check it", verify,
                                                  "attune cache verify --cache tuned.db");
  verifying.flag("--rebuild", verify_options->rebuild,
                 "if it is damaged, carry what is sound into a new file");
  auto [collecting, gc_options] =
      commands.add("gc", "Drop what nothing names, and evict above a limit", collect,
                   "attune cache gc --limit-mb 512");
  collecting.option("--limit-mb", gc_options->limit_mb,
                    "evict least recently used kernels above this; 0: none",
                    {.range = {{0, 1'000'000'000}}});
}

}  // namespace attune::cli

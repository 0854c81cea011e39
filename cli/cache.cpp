// attune cache: its subcommands, those that look (ls and show), and pin.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "cache/contents.hpp"
#include "cache/maintenance.hpp"
#include "cli/cache_commands.hpp"
#include "cli/output.hpp"
#include "cli/spec_names.hpp"
#include "cli/spec_source.hpp"
#include "cli/workbench.hpp"
#include "runtime/support/json.hpp"

namespace attune::cli {
namespace {

// One problem on one device.
struct ProblemId {
  std::string spec_hash, device;
  Pass pass = Pass::kForward;
  ProblemShape shape;
  auto operator<=>(const ProblemId&) const = default;
};

struct Problem {
  std::vector<const StoredMeasurement*> measurements;
  std::vector<const Rejection*> rejections;
  const Winner* winner = nullptr;  // what a look-up of this very problem answers
};

std::map<ProblemId, Problem> by_problem(const CacheContents& contents) {
  std::map<ProblemId, Problem> problems;
  for (const StoredMeasurement& row : contents.measurements) {
    problems[{row.key.spec_hash, row.key.device, row.key.pass, row.key.shape}]
        .measurements.push_back(&row);
  }
  for (const StoredRejection& row : contents.rejections) {
    problems[{row.spec_hash, row.device, row.pass, row.shape}].rejections.push_back(&row.rejection);
  }
  return problems;
}

// The winners on every device that the problems name.
Result<std::vector<std::pair<std::string, std::vector<ProblemWinner>>>> winners(
    const std::string& path, const std::map<ProblemId, Problem>& problems) {
  ATT_TRY(const auto store, open_store(path, {.read_only = true}));
  std::set<std::string> devices;
  for (const auto& [id, problem] : problems) devices.insert(id.device);
  std::vector<std::pair<std::string, std::vector<ProblemWinner>>> found;
  for (const std::string& device : devices) {
    ATT_TRY(auto of_device, store->winners(device));
    found.emplace_back(device, std::move(of_device));
  }
  return found;
}

// What a problem was measured on, where sequences or tensors make a difference.
Json kinds_of(const Winner* winner) {
  Json kinds = Json::array();
  if (winner == nullptr) return kinds;
  const auto known = [](double number) { return number < 0 ? Json() : Json(number); };
  for (const DataPlans& kind : winner->by_data) {
    const MaskData& data = kind.data;
    if (data == MaskData{}) continue;
    kinds.push_back({{"data", data.label},
                     {"live_share", known(data.live)},
                     {"full_share", known(data.full)},
                     {"longest_over_mean", known(data.lengths.longest)},
                     {"filled_share", known(data.lengths.filled)},
                     {"page_size", data.lengths.page_size},
                     {"plan", kind.plans.front().plan},
                     {"us", kind.plans.front().median_us}});
  }
  return kinds;
}

Result<ExitCode> list(const CacheOptions& options) {
  ATT_TRY(const std::string path, cache_file(options));
  ATT_TRY(const CacheContents contents, read_contents(path));
  ATT_TRY(const cache::FileSummary summary, cache::summarize(path));
  ATT_TRY(const auto names, names_with(options.specs));
  auto problems = by_problem(contents);
  ATT_TRY(const auto won, winners(path, problems));
  for (const auto& [device, of_device] : won) {
    for (const ProblemWinner& one : of_device) {
      const auto at = problems.find({one.spec_hash, device, one.pass, one.winner.measured_shape});
      if (at != problems.end()) at->second.winner = &one.winner;
    }
  }
  Json rows = Json::array();
  Table table(
      {"spec", "pass", "best us", "measured", "rejected", "shape", "device", "plan", "compiler"});
  for (const auto& [id, problem] : problems) {
    const Winner* best = problem.winner;
    rows.push_back({{"spec", name_of(names, id.spec_hash)},
                    {"hash", id.spec_hash},
                    {"pass", to_string(id.pass)},
                    {"shape", to_string(id.shape)},
                    {"device", id.device},
                    {"best_us", best ? Json(best->median_us) : Json()},
                    {"plan", best ? Json(best->plan) : Json()},
                    {"compiler", best ? Json(best->compiler) : Json()},
                    {"kinds", kinds_of(best)},
                    {"measured", problem.measurements.size()},
                    {"rejected", problem.rejections.size()}});
    table.add({name_of(names, id.spec_hash), std::string(to_string(id.pass)),
               best ? fmt::format("{:.1f}", best->median_us) : "-",
               fmt::to_string(problem.measurements.size()),
               fmt::to_string(problem.rejections.size()), to_string(id.shape), id.device,
               best ? best->plan : "-", best ? best->compiler : "-"});
  }
  if (options.json) {
    print_json({{"cache", path},
                {"file_bytes", summary.bytes},
                {"kernels", summary.images},
                {"kernel_bytes", summary.image_bytes},
                {"damaged_rows", contents.damaged_rows},
                {"problems", std::move(rows)}});
    return 0;
  }
  if (!problems.empty()) print(table.text());
  const auto nameless = [&](const auto& one) { return !names.contains(one.first.spec_hash); };
  if (std::ranges::any_of(problems, nameless))
    note(
        "a spec that is not the library's is shown by its hash; `attune cache ls SPEC...` names "
        "it");
  print(fmt::format(
      "{}: {}, {}, {} of {:.1f} MB, file {:.1f} MB\n", path, counted(problems.size(), "problem"),
      counted(contents.measurements.size(), "measurement"),
      counted(static_cast<std::size_t>(summary.images), "kernel"),
      static_cast<double>(summary.image_bytes) / 1e6, static_cast<double>(summary.bytes) / 1e6));
  if (contents.damaged_rows > 0)
    warn(fmt::format("{} damaged rows were passed over", contents.damaged_rows));
  return 0;
}

Json describe(const StoredMeasurement& row) {
  const Measurement& m = row.measurement;
  return {{"plan", m.plan},
          {"data", row.key.data.label},
          {"compiler", m.compiler},
          {"median_us", m.median_us},
          {"spread_us", m.spread_us},
          {"samples", m.samples},
          {"registers", m.registers},
          {"threads", m.threads},
          {"shared_bytes", m.shared_bytes},
          {"measured_at", m.measured_at},
          {"conditions", Json::parse(m.conditions).value_or(Json())}};
}

// The first lines of a detail, which say what happened; a compiler's log goes on for long.
std::string indented(std::string_view detail) {
  constexpr int kLines = 4;
  std::string text;
  for (int line = 0; line < kLines && !detail.empty(); ++line) {
    const std::string_view first = detail.substr(0, detail.find('\n'));
    if (!first.empty()) text += fmt::format("  {}\n", first);
    detail.remove_prefix(std::min(detail.size(), first.size() + 1));
  }
  return detail.empty() ? text : text + "  ... (--json shows all)\n";
}

Result<ExitCode> show(const CacheOptions& options) {
  ATT_TRY(const std::string path, cache_file(options));
  ATT_TRY(const CacheContents contents, read_contents(path));
  ATT_TRY(const LoadedSpec loaded, load_spec(options.specs.front()));
  const std::string hash = spec_hash(loaded.spec);
  Json shown = Json::array();
  std::string text;
  for (const auto& [id, problem] : by_problem(contents)) {
    if (id.spec_hash != hash) continue;
    std::vector<const StoredMeasurement*> ordered = problem.measurements;
    std::ranges::stable_sort(
        ordered, {}, [](const StoredMeasurement* row) { return row->measurement.median_us; });
    Json measured = Json::array(), rejected = Json::array();
    for (const StoredMeasurement* row : ordered) measured.push_back(describe(*row));
    // The table has what was measured on the same data together.
    const auto order = [](const StoredMeasurement* row) {
      return std::string_view(row->key.data.label);
    };
    std::ranges::stable_sort(ordered, {}, order);
    Table table({"us", "spread", "samples", "registers", "shared bytes", "measured at", "plan",
                 "compiler", "data"});
    for (const StoredMeasurement* row : ordered) {
      const Measurement& m = row->measurement;
      table.add({fmt::format("{:.1f}", m.median_us), fmt::format("{:.1f}", m.spread_us),
                 fmt::to_string(m.samples), fmt::to_string(m.registers),
                 fmt::to_string(m.shared_bytes), m.measured_at, m.plan, m.compiler,
                 with_tensor_names(row->key.data.label, loaded.spec)});
    }
    text += fmt::format("{}, {}\n{}\n", paint(to_string(id.shape), Colour::kBold),
                        to_string(id.pass), id.device);
    if (!ordered.empty()) text += table.text();
    for (const Rejection* r : problem.rejections) {
      rejected.push_back({{"plan", r->plan}, {"reason", r->reason}, {"detail", r->detail}});
      text += fmt::format("rejected ({}): {}\n", r->reason, r->plan);
      text += indented(r->detail);
    }
    text += "\n";
    shown.push_back({{"pass", to_string(id.pass)},
                     {"shape", to_string(id.shape)},
                     {"device", id.device},
                     {"measured", std::move(measured)},
                     {"rejected", std::move(rejected)}});
  }
  if (options.json) {
    print_json({{"spec", loaded.source}, {"hash", hash}, {"problems", std::move(shown)}});
  } else if (text.empty()) {
    note(fmt::format("nothing of {} in {}", loaded.spec.name, path));
  } else {
    print(text);
  }
  return 0;
}

// The code of the spec's best plans, on every device the file knows, is kept whatever its size.
Result<ExitCode> pin(const CacheOptions& options) {
  ATT_TRY(const std::string path, cache_file(options));
  ATT_TRY(const CacheContents contents, read_contents(path));
  ATT_TRY(const LoadedSpec loaded, load_spec(options.specs.front()));
  const std::string hash = spec_hash(loaded.spec);
  ATT_TRY(const auto won, winners(path, by_problem(contents)));
  std::set<std::pair<std::string, std::string>> best;  // plan, compiler
  for (const auto& [device, of_device] : won) {
    for (const ProblemWinner& one : of_device) {
      if (one.spec_hash == hash) best.emplace(one.winner.plan, one.winner.compiler);
    }
  }
  ATT_TRY(const auto store, open_store(path));
  ATT_TRY(const std::vector<BuildKey> builds, store->stored_builds(hash));
  int changed = 0;
  for (const BuildKey& build : builds) {
    if (!options.unpin && !best.contains({build.plan, build.compiler})) continue;
    ATT_TRY(const bool found, store->pin_code(build, !options.unpin));
    changed += found;
  }
  const char* done = options.unpin ? "unpinned" : "pinned";
  if (options.json) {
    print_json({{"cache", path}, {"spec", loaded.source}, {done, changed}});
  } else {
    print(fmt::format("{}: {} kernels {}\n", loaded.spec.name, changed, done));
  }
  return 0;
}

}  // namespace

Result<std::string> cache_file(const Options& options) {
  std::string path = cache_path(options);
  if (!path.empty()) return path;
  return Error{.kind = ErrorKind::kBadInput,
               .id = "cache-none",
               .message = "this command needs a cache file",
               .hint = "--cache FILE"};
}

std::pair<CommandLine, std::shared_ptr<CacheOptions>> CacheCommands::add(
    const char* name, const char* description,
    std::function<Result<ExitCode>(const CacheOptions&)> action, const std::string& example) {
  auto options = std::make_shared<CacheOptions>();
  CommandLine sub = line_.command(name, description);
  add_cache_file(sub, *options);
  add_json(sub, *options);
  sub.footer("Example:\n  " + example);
  sub.when_chosen([chosen = chosen_, options, action = std::move(action)] {
    *chosen = [options, action] { return finish(action(*options)); };
  });
  return {sub, options};
}

std::function<ExitCode()> CacheCommands::runner() const {
  return [chosen = chosen_] { return (*chosen)(); };
}

Command add_cache(CommandLine& parent) {
  CommandLine line = parent.command("cache", "See, move and mend cache files");
  line.require_command();
  line.footer("Example:\n  attune cache ls --cache tuned.db");
  CacheCommands commands(line);
  auto [listing, list_options] = commands.add("ls", "Every problem with its best plan", list,
                                              "attune cache ls --cache tuned.db");
  listing.option("SPEC", list_options->specs,
                 "specs of your own, to be named and not shown by their hash");
  auto [showing, show_options] = commands.add("show", "Every candidate of a spec", show,
                                              "attune cache show causal --cache tuned.db");
  add_spec(showing, *show_options);
  auto [pinning, pin_options] =
      commands.add("pin", "Never evict the kernels of a spec's best plans", pin,
                   "attune cache pin causal --cache tuned.db");
  add_spec(pinning, *pin_options);
  pinning.flag("--off", pin_options->unpin, "let the spec's kernels go again");
  add_cache_upkeep(commands);
  return {line, commands.runner()};
}

}  // namespace attune::cli

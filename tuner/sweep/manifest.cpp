#include "tuner/sweep/manifest.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "generator/support/hash.hpp"
#include "runtime/support/json.hpp"
#include "tuner/sweep/files.hpp"

namespace attune {
namespace {

std::optional<int> number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// nullopt when unset; -1 when set to something that is no number.
std::optional<int> environment_number(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) return std::nullopt;
  return number(text).value_or(-1);
}

Error bad_manifest(const std::string& path, const std::string& why) {
  return {.kind = ErrorKind::kBadInput,
          .id = "sweep-bad-manifest",
          .message = fmt::format("`{}` is no manifest: {}", path, why),
          .hint = "plan the sweep again, in another directory"};
}

}  // namespace

std::string SweepProblem::digest() const {
  // The forward pass has the name that it had when there was no other.
  const std::string of_pass = pass == Pass::kForward ? "" : fmt::format(" {}", to_string(pass));
  const std::string of_sequences = sequences
                                       ? fmt::format(" {}, {}, {}", sequences->lengths,
                                                     sequences->page_size, sequences->shared_prefix)
                                       : "";
  return hash128_hex(fmt::format("{}:{}{}{}{}", spec_yaml.size(), spec_yaml, to_string(shape),
                                 of_pass, of_sequences));
}

std::string Manifest::hash() const {
  std::string all;
  for (const SweepProblem& problem : problems) all += problem.digest();
  return hash128_hex(all);
}

Manifest make_manifest(std::vector<SweepProblem> problems) {
  Manifest manifest;
  std::set<std::string> seen;
  for (SweepProblem& problem : problems) {
    if (seen.insert(problem.digest()).second) manifest.problems.push_back(std::move(problem));
  }
  return manifest;
}

Status write_manifest(const Manifest& manifest, const std::string& directory) {
  const std::string path = sweep_files::manifest(directory);
  if (std::filesystem::exists(path)) {
    ATT_TRY(const Manifest there, read_manifest(directory));
    if (there.hash() == manifest.hash()) return ok_status();
    return Error{.kind = ErrorKind::kBadInput,
                 .id = "sweep-other-manifest",
                 .message = fmt::format("`{}` plans another sweep", path),
                 .hint = "give every sweep a directory of its own"};
  }
  Json problems = Json::array();
  for (const SweepProblem& p : manifest.problems) {
    Json entry{{"spec", p.spec_source},
               {"shape", to_string(p.shape)},
               {"pass", to_string(p.pass)},
               {"yaml", p.spec_yaml}};
    if (p.sequences) {
      entry.set("lengths", p.sequences->lengths);
      entry.set("page_size", p.sequences->page_size);
      entry.set("shared_prefix", p.sequences->shared_prefix);
    }
    problems.push_back(std::move(entry));
  }
  const Json json{
      {"attune_sweep", 1}, {"hash", manifest.hash()}, {"problems", std::move(problems)}};
  return sweep_files::write_whole(path, json.dump(1) + "\n");
}

Result<Manifest> read_manifest(const std::string& directory) {
  const std::string path = sweep_files::manifest(directory);
  std::ifstream file(path);
  if (!file) {
    return Error{.kind = ErrorKind::kBadInput,
                 .id = "sweep-no-manifest",
                 .message = fmt::format("cannot read `{}`", path),
                 .hint = "`attune sweep plan` writes it"};
  }
  std::ostringstream text;
  text << file.rdbuf();
  const auto json = Json::parse(text.view());
  if (!json) return bad_manifest(path, "it is not JSON");
  if (int version = 0; !json->read("attune_sweep", version) || version != 1) {
    return bad_manifest(path, "its version is not 1");
  }
  Manifest manifest;
  for (const Json& entry : json->at("problems").items()) {
    SweepProblem problem;
    std::string shape;
    if (!entry.read("spec", problem.spec_source) || !entry.read("yaml", problem.spec_yaml) ||
        !entry.read("shape", shape)) {
      return bad_manifest(path, "a problem is without its spec or shape");
    }
    ATT_TRY(problem.shape, parse_shape(shape));
    // Not in a manifest of a version that had one pass.
    std::string of_pass = "forward";
    entry.read("pass", of_pass);
    const auto pass = pass_from_string(of_pass);
    if (!pass) return bad_manifest(path, "it has a pass that this version does not know");
    problem.pass = *pass;
    SequenceWords words;
    if (entry.read("lengths", words.lengths) && entry.read("page_size", words.page_size) &&
        entry.read("shared_prefix", words.shared_prefix)) {
      problem.sequences = std::move(words);
    }
    manifest.problems.push_back(std::move(problem));
  }
  if (json->at("hash").text() != manifest.hash())
    return bad_manifest(path, "its content does not match its hash");
  return manifest;
}

std::string to_string(const Shard& shard) {
  return fmt::format("{}/{}", shard.index + 1, shard.count);
}

Result<Shard> parse_shard(const std::string& text) {
  const auto slash = text.find('/');
  const int index = number(text.substr(0, slash)).value_or(0);
  const int count = slash == std::string::npos ? 0 : number(text.substr(slash + 1)).value_or(0);
  if (index < 1 || index > count) {
    return Error{.kind = ErrorKind::kBadInput,
                 .id = "sweep-bad-shard",
                 .message = fmt::format("`{}` is no shard", text),
                 .hint = "1/4 is the first of four"};
  }
  return Shard{index - 1, count};
}

Result<std::optional<Shard>> shard_from_environment() {
  struct Scheduler {
    const char* name;
    std::optional<int> index, count;
  };
  const auto slurm = environment_number("SLURM_ARRAY_TASK_ID");
  const int first = environment_number("SLURM_ARRAY_TASK_MIN").value_or(0);
  const int step = std::max(1, environment_number("SLURM_ARRAY_TASK_STEP").value_or(1));
  const Scheduler schedulers[] = {
      {"SLURM_ARRAY_TASK_ID and SLURM_ARRAY_TASK_COUNT",
       slurm ? std::optional((*slurm - first) / step) : slurm,
       environment_number("SLURM_ARRAY_TASK_COUNT")},
      {"JOB_COMPLETION_INDEX and JOB_COMPLETIONS", environment_number("JOB_COMPLETION_INDEX"),
       environment_number("JOB_COMPLETIONS")},
  };
  for (const Scheduler& s : schedulers) {
    if (!s.index) continue;
    if (!s.count || *s.index < 0 || *s.index >= *s.count) {
      return Error{.kind = ErrorKind::kBadInput,
                   .id = "sweep-bad-environment",
                   .message = fmt::format("the variables {} name no shard", s.name),
                   .hint = "--shard i/N goes before them"};
    }
    return std::optional(Shard{*s.index, *s.count});
  }
  return std::optional<Shard>();
}

std::vector<std::size_t> problems_of(const Manifest& manifest, const Shard& shard) {
  std::vector<std::size_t> indices;
  for (auto i = static_cast<std::size_t>(shard.index); i < manifest.problems.size();
       i += static_cast<std::size_t>(shard.count)) {
    indices.push_back(i);
  }
  return indices;
}

}  // namespace attune

// The options that mean the same in every subcommand. A subcommand adds those it reads.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "generator/spec/spec.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace attune::cli {

struct Options {
  std::vector<std::string> specs;    // a path, a library name, or "-"
  std::vector<std::string> targets;  // "sm_90a"
  std::string pass;                  // "forward", "backward", "both"; empty: the spec's
  std::string shape;                 // "batch=2,heads=32,..."; empty: the spec's first tune shape
  std::string plan;                  // empty: the tuned one, else the cost model's
  std::string device;                // "cuda:0", "cpu"; empty: cuda:0, else the CPU
  std::string compiler = "auto";     // of kCompilers; "auto": those that serve the target
  std::string cache;                 // empty: the user's default; "none": no cache
  bool json = false;
};

void add_spec(CLI::App& app, Options& options);           // exactly one
CLI::Option* add_specs(CLI::App& app, Options& options);  // one or more
void add_targets(CLI::App& app, Options& options);
void add_pass(CLI::App& app, Options& options);    // one
void add_passes(CLI::App& app, Options& options);  // one or both
void add_shape(CLI::App& app, Options& options);
void add_plan(CLI::App& app, Options& options);
void add_device(CLI::App& app, Options& options);
void add_compiler(CLI::App& app, Options& options);
void add_cache_file(CLI::App& app, Options& options);
void add_json(CLI::App& app, Options& options);
// What names kernels of one spec, beside the pass, for commands that do not run them: spec, target,
// shape, plan, and the device and cache that choose a plan.
void add_one_kernel(CLI::App& app, Options& options);

// kBadInput when a text among them is wrong whatever the spec; so that a list of specs complains
// once.
Status check_options(const Options& options);
// The targets named by --target, else that of --plan, else `fallback`. kBadInput on an unknown
// name.
Result<std::vector<Target>> targets(const Options& options, const std::vector<Target>& fallback);
// The pass named by --pass, else the spec's first. kBadInput on an unknown name and on both.
Result<Pass> pass(const Options& options, const AttentionSpec& spec);
// The passes named by --pass, else those that the spec lists. kBadInput on an unknown name.
Result<std::vector<Pass>> passes(const Options& options, const AttentionSpec& spec);
// The same, else the spec's first: for commands that show one thing.
Result<std::vector<Pass>> first_or_named_passes(const Options& options, const AttentionSpec& spec);
// --shape, else the spec's first tune shape, else a common one that says so on stderr.
Result<ProblemShape> shape(const Options& options, const AttentionSpec& spec);
// --shape alone, else all of the spec's tune shapes, else that common one.
Result<std::vector<ProblemShape>> tune_shapes(const Options& options, const AttentionSpec& spec);

}  // namespace attune::cli

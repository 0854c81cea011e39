// The options that mean the same in every subcommand. A subcommand adds those it reads.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/command_line.hpp"
#include "generator/spec/spec.hpp"

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
  std::vector<std::string> tensors;  // "doc=file.npy": of the spec's tensors, instead of drawn ones
  std::string lengths;               // of made-up sequences; empty: the spec's
  int page_size = 0;                 // of paged problems that are made up; 0: the spec's
  int shared_prefix = 0;             // of paged problems: keys that all sequences begin with alike
  bool json = false;
};

void add_spec(CommandLine& line, Options& options);  // exactly one
// One or more, or none when not required.
void add_specs(CommandLine& line, Options& options, bool required = true);
void add_targets(CommandLine& line, Options& options);
void add_pass(CommandLine& line, Options& options);    // one
void add_passes(CommandLine& line, Options& options);  // one or both
void add_shape(CommandLine& line, Options& options);
void add_plan(CommandLine& line, Options& options);
void add_device(CommandLine& line, Options& options);
void add_compiler(CommandLine& line, Options& options);
void add_cache_file(CommandLine& line, Options& options);
void add_json(CommandLine& line, Options& options);
void add_tensors(CommandLine& line, Options& options);
// What commands that run kernels of their specs take beside these: shape, passes, plan, device,
// compiler, cache file, tensors, sequences and JSON.
void add_launches(CommandLine& line, Options& options);
// What names kernels of one spec, beside the pass, for commands that do not run them: spec, target,
// shape, plan, and the device and cache that choose a plan.
void add_one_kernel(CommandLine& line, Options& options);

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
// Gives the spec the tensors of --tensor. kBadInput where they are not of it, or not of its sizes
// at one of `shapes`.
Status give_tensors(const Options& options, std::span<const ProblemShape> shapes,
                    AttentionSpec& spec);
// --shape alone, else all of the spec's tune shapes, else that common one.
Result<std::vector<ProblemShape>> tune_shapes(const Options& options, const AttentionSpec& spec);

}  // namespace attune::cli

// What a sweep consists of: problems, named by a hash of their content.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "generator/spec/sequence_words.hpp"

namespace attune {

struct SweepProblem {
  std::string spec_source;  // for messages
  std::string spec_yaml;
  ProblemShape shape;
  Pass pass = Pass::kForward;
  std::optional<SequenceWords> sequences = {};  // in the place of what the spec says itself
  // Names the problem in the sweep's files: hash of the YAML text and all below.
  std::string digest() const;
};

struct Manifest {
  std::vector<SweepProblem> problems;  // in the order given, each once
  std::string hash() const;            // of all of them
};

// Leaves out repeated problems.
Manifest make_manifest(std::vector<SweepProblem> problems);
// DIR/manifest.json, written whole or not at all. Planning the same sweep again is no error,
// another one in the same directory is ("sweep-other-manifest").
Status write_manifest(const Manifest& manifest, const std::string& directory);
// "sweep-no-manifest", or "sweep-bad-manifest" when the file is not what its hash says.
Result<Manifest> read_manifest(const std::string& directory);

// One of `count` parts of a sweep; index counts from 0.
struct Shard {
  int index = 0;
  int count = 1;
  bool operator==(const Shard&) const = default;
};
std::string to_string(const Shard& shard);  // "2/8", counting from 1 as on the command line
Result<Shard> parse_shard(const std::string& text);
// The shard of a Slurm array task (SLURM_ARRAY_TASK_ID, _COUNT, and _MIN and _STEP when set) or of
// a Kubernetes indexed job (JOB_COMPLETION_INDEX; the job's spec must hand its completions over as
// JOB_COMPLETIONS, which Kubernetes does not). nullopt outside of both; "sweep-bad-environment"
// when the variables contradict themselves.
Result<std::optional<Shard>> shard_from_environment();

// The shard's problems, as indices into the manifest: every count-th, so that neighbours in the
// list, which are alike in size, are spread. Never a part of a problem.
std::vector<std::size_t> problems_of(const Manifest& manifest, const Shard& shard);

}  // namespace attune

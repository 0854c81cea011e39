// A cache file's measurements, brought together problem by problem for the report.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cache/contents.hpp"
#include "generator/plan/plan.hpp"

namespace attune::cli {

struct ReportCandidate {
  KernelPlan plan;
  std::string text;      // of the plan
  std::string compiler;  // identity; empty: not known
  double us = 0, spread_us = 0;
  int samples = 0, registers = 0, shared_bytes = 0;
  double predicted_us = 0;  // by the cost model; 0: the spec is not known here
  int tile_q = 0, tile_kv = 0;
};

struct ReportRejection {
  std::string plan, reason, detail;
};

struct ReportProblem {
  std::string name;  // of the spec, or the start of its hash; and the pass, unless it is forward
  std::string device;
  ProblemShape shape;
  Pass pass = Pass::kForward;
  std::vector<ReportCandidate> candidates;  // the one that is launched, then the fastest first
  std::vector<ReportRejection> rejections;
  std::string conditions;   // JSON, of the first one's measurement
  std::string first, last;  // when measuring began and ended
  // The rest only where the spec is known, and the device: it is here, or a GPU of published make.
  bool is_known = false;
  DeviceFacts facts;
  double flops = 0, bytes = 0, roofline_us = 0;
  double first_guess_us =
      0;  // measured time of the plan that the cost model likes best; 0: not measured
  // Time lost by taking the first guess, as a share of what is launched; negative when unknown.
  double regret() const;
};

struct Report {
  std::string source;                   // the file
  std::string written_at = {};          // "2026-03-04 05:06 UTC"
  std::vector<ReportProblem> problems;  // by name, device, shape
};

struct KnownSpec {
  std::string name;
  AttentionSpec spec;
};

struct ReportKnowledge {
  std::map<std::string, KnownSpec> specs;      // by hash: those that a file's problems may be of
  std::map<std::string, DeviceFacts> devices;  // by identity: those that are here
};
Report collect_report(std::string source, const CacheContents& contents,
                      const ReportKnowledge& knowledge);

}  // namespace attune::cli

// What the search needs done with a candidate, wherever that happens: in this process
// (local_executor) or in workers that may die (isolated_executor).
#pragma once

#include <string>

#include "generator/plan/plan.hpp"

namespace attune {

// A plan, and which of the problem's compilers builds it: the search tries plans with the first.
struct Candidate {
  // Implicit: most of the search knows plans only.
  Candidate(const KernelPlan& plan, int compiler = 0) : plan(plan), compiler(compiler) {}
  auto operator<=>(const Candidate&) const = default;

  KernelPlan plan;
  int compiler;
};

struct CompiledFacts {
  std::string build_digest;
  std::string compiler;  // Compiler::identity()
  int threads = 0, registers = 0, shared_bytes = 0;
  double compile_seconds = 0;
};

// An error whose id is "candidate-<reason>" condemns the candidate, with that reason of
// cache/store.hpp's Rejection. Any other error is the machine's and ends the search.
class Executor {
 public:
  virtual ~Executor() = default;
  // Readies what verify() and time_us() need beside a candidate, so that it happens while the first
  // ones compile. They do it themselves where it was not asked for.
  virtual Status prepare() { return ok_status(); }
  // Of the code that it would be built into, without compiling it.
  virtual Result<std::string> build_digest(const Candidate& candidate) = 0;
  // Called from several threads at once; the other members from one.
  virtual Result<CompiledFacts> compile(const Candidate& candidate) = 0;
  // Compares the kernel's results with the oracle's. After compile().
  virtual Status verify(const Candidate& candidate) = 0;
  // One launch from cold L2, microseconds. After verify().
  virtual Result<double> time_us(const Candidate& candidate) = 0;
  // The candidate is out of the race; what it holds may go.
  virtual void release(const Candidate& candidate) = 0;
  // JSON of clocks, temperature, power and throttle reasons now.
  virtual std::string conditions() = 0;
};

// "miscompute" of "candidate-miscompute"; empty when the error is not the candidate's.
std::string rejection_reason(const Error& error);
Error candidate_error(const std::string& reason, const std::string& message,
                      const std::string& detail = {});

}  // namespace attune

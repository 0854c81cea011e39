// What an executor needs of a spec and shape, whichever pass it measures: a problem to launch for
// the clock, and problems with an oracle's answer that a candidate must solve before.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/store.hpp"
#include "runtime/device/device.hpp"
#include "runtime/jit/compiler.hpp"
#include "runtime/reference/judge.hpp"

namespace attune {

// A problem in device memory. Not thread-safe.
class TimedProblem {
 public:
  virtual ~TimedProblem() = default;
  // Makes room for the kernel's workspace, so that launch() allocates nothing.
  virtual Status prepare(const LoadedKernel& kernel) = 0;
  // Enqueues on `stream`, after prepare() if that was not called. Does not synchronise.
  virtual Status launch(const LoadedKernel& kernel, StreamHandle stream) = 0;
  // Fills outputs with NaN.
  virtual Status poison() = 0;
  // Memory of the device that can be read for as long as its context lives.
  virtual const void* input() const = 0;
};

// A problem that a candidate must solve. Not thread-safe.
class Check {
 public:
  virtual ~Check() = default;
  virtual const ProblemShape& shape() const = 0;
  virtual TimedProblem& problem() = 0;
  // What the last launch left in the problem's outputs. After synchronising.
  virtual Result<Verdict> judge() = 0;
  // Of the same shape on other numbers, made when first asked for.
  Result<Check*> another() {
    if (!another_) {
      ATT_TRY(another_, make_another());
    }
    return another_.get();
  }

 protected:
  virtual Result<std::unique_ptr<Check>> make_another() = 0;

 private:
  std::unique_ptr<Check> another_;
};

// The problems of one pass; each is made when first asked for. Not thread-safe.
class PassProblems {
 public:
  virtual ~PassProblems() = default;
  // Of the very shape. What a mask reads is the same whatever the seed.
  virtual Result<TimedProblem*> timed() = 0;
  // Drawn by the seed. Never empty.
  virtual Result<std::vector<Check*>> checks() = 0;
};

inline std::vector<Check*> borrowed(const std::vector<std::unique_ptr<Check>>& checks) {
  std::vector<Check*> pointers;
  for (const auto& check : checks) pointers.push_back(check.get());
  return pointers;
}

class GivenLaunch;

// What problems are made of. All that it refers to must outlive them.
struct ProblemSource {
  const AttentionSpec& spec;
  const ProblemShape shape;
  Device& device;
  Compiler& compiler;  // of kernels beside the candidates: an oracle's, the other pass'
  Store* store;        // for compiled code; may be null
  std::uint64_t seed;
  // A host's, of `shape`: what is timed has its numbers, and candidates are verified on them too,
  // as far as an oracle can afford it. Null: all numbers are drawn.
  const GivenLaunch* launch = nullptr;
};

// "memory-short" where the problems of the pass do not fit.
Status check_memory(Pass pass, const ProblemSource& source);
std::unique_ptr<PassProblems> make_problems(Pass pass, const ProblemSource& source);

// Problems a candidate must solve before it is timed, as far as the CPU's oracle can afford them:
// the shape itself with few heads and batches (packed sequences keep their own lengths, so there
// are fewer tokens), and a ragged one, because tuned kernels serve other lengths too: those that
// plans which take sequences apart can serve, where the shape is one of these.
std::vector<ProblemShape> verification_shapes(const AttentionSpec& spec, Pass pass,
                                              const ProblemShape& shape);

// Added to a seed for the problem that confirms a verdict.
inline constexpr std::uint64_t kAnotherSeed = 0x9e3779b97f4a7c15;

}  // namespace attune

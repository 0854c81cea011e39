// Candidates that behave as planted, on a clock that only they move.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "generator/support/hash.hpp"
#include "tuner/executor.hpp"
#include "tuner/search/search.hpp"

namespace attune::tuner_testing {

// What one candidate does. `fails_at`: "compile", "verify", "time" or nowhere.
struct Behaviour {
  double time_us = 100;
  double noise = 0;  // relative, uniform in +-noise
  std::string fails_at, reason;
  int registers = 128, shared_bytes = 1000;
};

class FakeExecutor final : public Executor {
 public:
  explicit FakeExecutor(std::function<Behaviour(const KernelPlan&)> behaviour)
      : behaviour_(std::move(behaviour)) {}

  Status prepare() override {
    ++prepared;
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(compiled_.wait_for(lock, kPatience, [&] { return compiles.size() >= awaited; }))
        << "compiled: " << compiles.size();
    return ok_status();
  }
  Result<std::string> build_digest(const Candidate& candidate) override {
    return hash128_hex(name(candidate));
  }

  Result<CompiledFacts> compile(const Candidate& candidate) override {
    const std::lock_guard lock(mutex_);
    ++compiles[candidate];
    compiled_.notify_all();
    seconds += 0.5;
    const Behaviour b = behaviour(candidate);
    if (b.fails_at == "compile") return candidate_error(b.reason, "planted");
    return CompiledFacts{.build_digest = hash128_hex(name(candidate)),
                         .compiler = compilers[static_cast<std::size_t>(candidate.compiler)],
                         .threads = 128,
                         .registers = b.registers,
                         .shared_bytes = b.shared_bytes,
                         .compile_seconds = 0.5};
  }
  Status verify(const Candidate& candidate) override {
    const std::lock_guard lock(mutex_);
    EXPECT_GT(compiles[candidate], 0) << "verified before it was compiled";
    seconds += 0.01;
    const Behaviour b = behaviour(candidate);
    if (b.fails_at == "verify") return candidate_error(b.reason, "planted");
    verified_.insert(candidate);
    released.erase(candidate);  // compiled anew
    return ok_status();
  }
  Result<double> time_us(const Candidate& candidate) override {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(verified_.contains(candidate))
        << "timed before it was verified: " << name(candidate);
    EXPECT_FALSE(released.contains(candidate)) << "timed after it was released";
    if (machine_fails_after > 0 && --machine_fails_after == 0)
      return Error{.id = "device-lost", .message = "planted"};
    const Behaviour b = behaviour(candidate);
    if (b.fails_at == "time") return candidate_error(b.reason, "planted");
    order.push_back(candidate.plan);
    const int turn = ++timings[candidate];
    const std::string hash = hash128_hex(name(candidate) + std::to_string(turn));
    const double uniform =
        static_cast<double>(std::stoul(hash.substr(0, 8), nullptr, 16)) / 4294967295.0;
    const double time = b.time_us * (1 + b.noise * (2 * uniform - 1));
    seconds += time * 1e-6;
    return time;
  }
  void release(const Candidate& candidate) override {
    verified_.erase(candidate);
    released.insert(candidate);
  }
  std::string conditions() override { return "{}"; }

  Clock clock() {
    return [this] {
      const std::lock_guard lock(mutex_);
      return seconds;
    };
  }

  std::vector<std::string> compilers{"first 1.0", "second 2.0"};
  int prepared = 0;
  std::size_t awaited = 0;  // candidates that prepare() waits for to be compiled
  // What another compiler than the first makes of a candidate; null: the same.
  std::function<void(const Candidate&, Behaviour&)> of_other_compiler;
  std::map<Candidate, int> compiles, timings;
  std::vector<KernelPlan> order;  // of timings
  std::set<Candidate> released;
  double seconds = 0;
  int machine_fails_after = 0;  // timings; 0: never

 private:
  static std::string name(const Candidate& candidate) {
    const std::string plan = to_string(candidate.plan);
    return candidate.compiler == 0 ? plan : plan + " by " + std::to_string(candidate.compiler);
  }
  Behaviour behaviour(const Candidate& candidate) const {
    Behaviour behaviour = behaviour_(candidate.plan);
    if (candidate.compiler > 0 && of_other_compiler) of_other_compiler(candidate, behaviour);
    return behaviour;
  }

  const std::function<Behaviour(const KernelPlan&)> behaviour_;
  // Of prepare(), for what does not come.
  static constexpr std::chrono::seconds kPatience{10};
  std::mutex mutex_;
  std::condition_variable compiled_;
  std::set<Candidate> verified_;
};

inline KernelPlan sm80_plan(int tile_q, int tile_kv, int stages, int warps,
                            bool q_in_registers = false, bool frozen_max = true) {
  return {.pass = Pass::kForward,
          .target = Target::kSm80,
          .tile = Sm80Plan{.tile_q = tile_q,
                           .tile_kv = tile_kv,
                           .stages = stages,
                           .warps = warps,
                           .q_in_registers = q_in_registers,
                           .frozen_max = frozen_max}};
}

}  // namespace attune::tuner_testing

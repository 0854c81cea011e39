// Code that is built and loaded when a launch first wants it.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/engine/workshop.hpp"

namespace attune {

// Thread-safe.
class CodeOnDemand {
 public:
  // By that family of compilers if it can be had, as Workshop::load() takes it.
  CodeOnDemand(const KernelPlan& plan, std::string family)
      : plan_(plan), family_(std::move(family)) {}

  const KernelPlan& plan() const { return plan_; }
  // The first call builds, also while its thread captures a graph, and calls that come meanwhile
  // wait for it. An error stays, as a launch that tried again would wait for a compiler each time;
  // but not one of the driver's, which may have wanted memory, nor that other compiles are stuck.
  Result<const LoadedKernel*> get(const AttentionSpec& spec, Workshop& workshop);

 private:
  const KernelPlan plan_;
  const std::string family_;
  std::atomic<const LoadedKernel*> ready_{nullptr};
  std::mutex mutex_;  // guards the rest
  std::shared_ptr<LoadedKernel> kernel_;
  std::optional<Error> failure_;
};

}  // namespace attune

// Code that is built and loaded when a launch first wants it.
#pragma once

#include <memory>
#include <mutex>

#include "runtime/engine/workshop.hpp"

namespace attune {

// Thread-safe.
class CodeOnDemand {
 public:
  explicit CodeOnDemand(const KernelPlan& plan) : plan_(plan) {}

  // Null: it cannot be had, which is found out once and stays so. The first call waits for it, also
  // while its thread captures a graph, and so do calls that come meanwhile.
  const LoadedKernel* get(const AttentionSpec& spec, Workshop& workshop);

 private:
  const KernelPlan plan_;
  std::once_flag once_;
  std::shared_ptr<LoadedKernel> kernel_;
};

}  // namespace attune

// What the opaque handles of attune.h point to.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "runtime/engine/kernel_table.hpp"
#include "runtime/engine/workshop.hpp"
#include "runtime/include/attune/attune.h"

// Immutable.
struct att_spec {
  std::shared_ptr<const attune::AttentionSpec> spec;
  attune::SpecId id;
};

// Counted: the runtime's table holds one reference, every att_kernel_get hands out another.
struct att_kernel {
  std::atomic<long> references{1};
  attune::KernelKey key;
  std::shared_ptr<attune::Workshop> workshop;
  std::shared_ptr<const attune::AttentionSpec> spec;
  attune::PlanSource source;
  std::string plan;
  std::shared_ptr<attune::LoadedKernel> code;
  // The plan for strides that `code` cannot take (TMA); built when such a launch comes.
  std::optional<attune::KernelPlan> fallback;
};

struct att_runtime {
  std::shared_ptr<attune::Workshop> workshop;
  std::string device;  // its identity
  attune::KernelTable<att_kernel> kernels;
};

namespace attune {

inline void retain(att_kernel& kernel) {
  kernel.references.fetch_add(1, std::memory_order_relaxed);
}
inline void release(att_kernel* kernel) {
  if (kernel->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete kernel;
}

}  // namespace attune

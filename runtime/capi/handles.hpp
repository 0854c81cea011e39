// What the opaque handles of attune.h point to.
#pragma once

#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/capi/log.hpp"
#include "runtime/capi/tasks.hpp"
#include "runtime/engine/dispatcher.hpp"
#include "runtime/include/attune/attune.h"

// Immutable.
struct att_spec {
  std::shared_ptr<const attune::AttentionSpec> spec;
  attune::SpecId id;
  std::string hash;
  std::vector<std::string> tensor_dims;  // "batch, kv_len", by slot
  std::string yaml;                      // as it was given
};

struct att_runtime {
  att_runtime(std::unique_ptr<attune::RuntimeLog> log, std::shared_ptr<attune::Workshop> workshop,
              bool background)
      : device(workshop->device().identity()),
        log(std::move(log)),
        dispatcher(std::move(workshop), background) {}

  // False in a process that was forked from it, where none of its threads is.
  bool is_of_this_process() const { return getpid() == process; }

  const pid_t process = getpid();
  const std::string device;                       // its identity
  const std::unique_ptr<attune::RuntimeLog> log;  // outlives the dispatcher, which may warn
  attune::Dispatcher dispatcher;
  attune::RuntimeTasks tasks;  // last: they use the dispatcher
};

namespace attune {

// att_kernel is the name under which C knows a KernelEntry.
inline att_kernel* to_handle(KernelEntry* entry) { return reinterpret_cast<att_kernel*>(entry); }
inline KernelEntry* from_handle(att_kernel* kernel) {
  return reinterpret_cast<KernelEntry*>(kernel);
}
inline const KernelEntry* from_handle(const att_kernel* kernel) {
  return reinterpret_cast<const KernelEntry*>(kernel);
}

}  // namespace attune

// A runtime's warnings on their way to the host's log.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <mutex>

#include "generator/support/error.hpp"
#include "runtime/include/attune/attune.h"

namespace attune {

// One line at a time, from any thread; none once it is closed. What a runtime shares with others
// (kernels that outlive it) may go on writing to it.
class LogSink {
 public:
  LogSink(att_log_function function, void* context) : function_(function), context_(context) {}

  void write(const Error& warning) {
    const std::string line = fmt::format("{} [{}]", warning.message, warning.id);
    const std::lock_guard lock(mutex_);
    if (function_ != nullptr) function_(context_, ATT_LOG_WARNING, line.c_str());
  }
  void close() {
    const std::lock_guard lock(mutex_);
    function_ = nullptr;
  }

 private:
  std::mutex mutex_;  // guards function_
  att_log_function function_;
  void* const context_;
};

// The runtime's end of it, which closes it.
class RuntimeLog {
 public:
  RuntimeLog(att_log_function function, void* context)
      : sink_(function == nullptr ? nullptr : std::make_shared<LogSink>(function, context)) {}
  ~RuntimeLog() {
    if (sink_ != nullptr) sink_->close();
  }
  RuntimeLog(const RuntimeLog&) = delete;
  RuntimeLog& operator=(const RuntimeLog&) = delete;

  // Empty, which stands for stderr, when the host has no log.
  std::function<void(const Error&)> writer() const {
    if (sink_ == nullptr) return {};
    return [sink = sink_](const Error& warning) { sink->write(warning); };
  }

 private:
  const std::shared_ptr<LogSink> sink_;
};

}  // namespace attune

// Attune for C++17 and newer: owners of attune.h's handles and results instead of codes. Nothing
// here throws but what std::string throws.
//
//   auto runtime = attune::Runtime::create();
//   auto spec = attune::Spec::from_yaml(text);
//   if (!runtime || !spec) ...                         // runtime.error().message says why
//   auto kernel = runtime->kernel(*spec, shape);       // compiles at first use, then < 100 ns
//   attune::ForwardArgs args;                          // q, k, v, o, lse, strides, ...
//   attune::Status status = kernel->forward(args, stream);
//
// Threads: a Runtime, a Spec and a Kernel may be used from any number of threads at once. A launch
// enqueues on the stream given (a CUstream; null: the default stream) and returns: it allocates
// nothing, waits for nothing and may be captured into a CUDA graph. On the CPU device it runs at
// once.
//
// Contexts: a Runtime belongs to one CUDA context: the one that is current where it is created
// without a device name, else the primary context of the device named. Several Runtimes may live
// side by side.
//
// Environment, read when a Runtime is created:
//   ATTUNE_CACHE         the user's cache file; default $XDG_CACHE_HOME/attune/attune.db
//   ATTUNE_SYSTEM_CACHE  read-only cache files asked after it, separated by colons
//   ATTUNE_NVRTC         path of libnvrtc.so, instead of the loader's path, CUDA_HOME and CUDA_PATH
//   ATTUNE_LLVM_MODULE   path of libattune_llvm.so, instead of beside the library
//   ATTUNE_COMMAND       path of the `attune` command, whose processes tune; read by tune()
//   ATTUNE_CHECK         1: RuntimeOptions::check for every Runtime
#pragma once

#include <attune/attune.h>

#include <cassert>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace attune {
inline namespace v1 {

struct Error {
  att_status code = ATT_OK;
  std::string message;  // position, caret, hint and detail where there are any
};

// A value or an Error.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Error error) : error_(std::move(error)) {}
  explicit operator bool() const { return value_.has_value(); }
  // Precondition of the next four: *this is true; of error(): it is not.
  T& operator*() { return assert(value_), *value_; }
  const T& operator*() const { return assert(value_), *value_; }
  T* operator->() { return assert(value_), &*value_; }
  const T* operator->() const { return assert(value_), &*value_; }
  const Error& error() const { return error_; }

 private:
  std::optional<T> value_;
  Error error_;
};

// The outcome of a call that yields nothing; true: it worked.
class [[nodiscard]] Status {
 public:
  // Takes this thread's message, so make it before the next call.
  explicit Status(att_status code)
      : error_{code, code == ATT_OK ? std::string() : std::string(att_last_error())} {}
  explicit operator bool() const { return error_.code == ATT_OK; }
  const Error& error() const { return error_; }

 private:
  Error error_;
};

// Lengths at most 2^28, heads a multiple of kv_heads; batch = 0 or q_len = 0: an empty batch.
using Shape = att_shape;
using Strides = att_strides;
using Tensor = att_tensor;  // an auxiliary one, with its sizes

enum class Pass { kForward = ATT_PASS_FORWARD, kBackward = ATT_PASS_BACKWARD };

// A struct of attune.h, all zero but struct_size.
template <typename Struct>
struct Sized : Struct {
  Sized() : Struct{} { this->struct_size = sizeof(Struct); }
};
using SpecInfo = Sized<att_spec_info>;
using ScalarInfo = Sized<att_scalar_info>;
using TensorInfo = Sized<att_tensor_info>;
// Pointers and sizes of one launch.
using ForwardArgs = Sized<att_forward_args>;
using BackwardArgs = Sized<att_backward_args>;
// Rows of one of its tensors that no sequence has.
using UntouchedArgs = Sized<att_untouched_args>;
// What an append does, and pointers and sizes of one launch of it.
using AppendOptions = Sized<att_append_options>;
using AppendArgs = Sized<att_append_args>;
// What tuning found, and how far it has come.
using TuneResult = Sized<att_tune_result>;
using TuneProgress = att_tune_progress;

// A validated spec.
class Spec {
 public:
  static Result<Spec> from_yaml(const std::string& text) {
    return make([&](att_spec** out) { return att_spec_from_yaml(text.c_str(), out); });
  }
  // A file's path, or a name of the library of specs: "causal", "models/llama3_8b".
  static Result<Spec> from_file(const std::string& path_or_name) {
    return make([&](att_spec** out) { return att_spec_from_file(path_or_name.c_str(), out); });
  }

  // The same spec, but launches say where on the device dropout's seed and offset lie.
  Result<Spec> with_device_seed() const {
    return make([&](att_spec** out) { return att_spec_with_device_seed(get(), out); });
  }

  SpecInfo info() const {
    SpecInfo info;
    (void)att_spec_describe(handle_.get(), &info);
    return info;
  }
  // Position in ForwardArgs::scalars or ::tensors; negative: the spec has no such launch-time name.
  int scalar_slot(const std::string& name) const {
    return att_spec_scalar_slot(handle_.get(), name.c_str());
  }
  int tensor_slot(const std::string& name) const {
    return att_spec_tensor_slot(handle_.get(), name.c_str());
  }
  // By slot. The error: no such slot.
  Result<ScalarInfo> scalar(int slot) const {
    ScalarInfo info;
    if (const Status status(att_spec_describe_scalar(handle_.get(), slot, &info)); !status) {
      return status.error();
    }
    return info;
  }
  Result<TensorInfo> tensor(int slot) const {
    TensorInfo info;
    if (const Status status(att_spec_describe_tensor(handle_.get(), slot, &info)); !status) {
      return status.error();
    }
    return info;
  }
  // What the tensor's sizes must be at `shape`.
  Result<std::vector<std::int64_t>> tensor_sizes(int slot, const Shape& shape) const {
    const Result<TensorInfo> info = tensor(slot);
    if (!info) return info.error();
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(info->ndim));
    if (const Status status(
            att_spec_tensor_sizes(handle_.get(), slot, &shape, sizes.data(), info->ndim));
        !status) {
      return status.error();
    }
    return sizes;
  }
  const att_spec* get() const { return handle_.get(); }

 private:
  template <typename Make>
  static Result<Spec> make(const Make& make) {
    att_spec* handle = nullptr;
    if (const Status status(make(&handle)); !status) return status.error();
    Spec spec;
    spec.handle_.reset(handle);
    return Result<Spec>(std::move(spec));
  }
  struct Destroy {
    void operator()(att_spec* handle) const { att_spec_destroy(handle); }
  };
  Spec() = default;
  std::unique_ptr<att_spec, Destroy> handle_;
};

// Loaded code for one spec and pass, good for the shape it was asked for and right for every other;
// a Kernel made for a shape is the fastest known for it. May outlive its Runtime.
class Kernel {
 public:
  // "sm80 forward sm_80 q128 k64 s2 w4 qreg frozen".
  std::string plan() const { return att_kernel_plan(handle_.get()); }
  // "measured": tuned for this shape; "nearest": for a similar one; "model": the cost model's
  // guess; "stand-in": code that is there while better code is not.
  std::string source() const { return att_kernel_source(handle_.get()); }
  // Device memory that a launch needs, 16-byte aligned, not shared by launches that may overlap;
  // often 0. SIZE_MAX: no launch can have this shape.
  std::size_t workspace_bytes(const Shape& shape) const {
    return att_kernel_workspace_bytes(handle_.get(), &shape);
  }
  Status forward(const ForwardArgs& args, void* stream = nullptr) const {
    return Status(att_forward(handle_.get(), &args, stream));
  }
  // Of a kernel of the backward pass.
  Status backward(const BackwardArgs& args, void* stream = nullptr) const {
    return Status(att_backward(handle_.get(), &args, stream));
  }
  // In front of either.
  Status fill_untouched(const UntouchedArgs& args, void* stream = nullptr) const {
    return Status(att_fill_untouched(handle_.get(), &args, stream));
  }

 private:
  friend class Runtime;
  struct Destroy {
    void operator()(att_kernel* handle) const { att_kernel_destroy(handle); }
  };
  explicit Kernel(att_kernel* handle) : handle_(handle) {}
  std::unique_ptr<att_kernel, Destroy> handle_;
};

// Code that turns new queries and keys and writes new keys and values into a cache, as att_append()
// says. May outlive its Runtime.
class AppendKernel {
 public:
  Status append(const AppendArgs& args, void* stream = nullptr) const {
    return Status(att_append(handle_.get(), &args, stream));
  }

 private:
  friend class Runtime;
  struct Destroy {
    void operator()(att_append_kernel* handle) const { att_append_kernel_destroy(handle); }
  };
  explicit AppendKernel(att_append_kernel* handle) : handle_(handle) {}
  std::unique_ptr<att_append_kernel, Destroy> handle_;
};

struct TuneOptions {
  double budget_ms = 0;     // 0: until the search ends by itself
  bool background = false;  // tune() returns once the data are copied
  int max_candidates = 0;   // 0: as many as the search asks for
  int compile_threads = 0;  // 0: all cores that the process may use, in the background one
  std::string command;      // path of the `attune` command; empty: where docs/runtime.md says
  // What the search does, at every step, on the thread that tunes; false: stop. Must not throw nor
  // use the Runtime or the Tuning. Empty: nobody is told.
  std::function<bool(const TuneProgress&)> progress;
};

// A search for the fastest kernel on a host's data, under way or over. One that is dropped is
// cancelled, and waited for. Thread-safe.
class Tuning {
 public:
  // Returns when it is over, with its error where it failed.
  Status wait() { return Status(att_tuning_wait(handle_.get())); }
  // Asks it to stop and returns at once.
  void cancel() { att_tuning_cancel(handle_.get()); }
  // Of what is known so far; its texts are valid as long as the Tuning.
  TuneResult result() const {
    TuneResult result;
    (void)att_tuning_result(handle_.get(), &result);
    return result;
  }

 private:
  friend class Runtime;
  using Progress = std::function<bool(const TuneProgress&)>;
  struct Destroy {
    std::unique_ptr<Progress> progress;  // outlives the handle, which calls it
    void operator()(att_tuning* handle) const { att_tuning_destroy(handle); }
  };
  using Handle = std::unique_ptr<att_tuning, Destroy>;
  explicit Tuning(Handle handle) : handle_(std::move(handle)) {}
  Handle handle_;
};

struct RuntimeOptions {
  std::string
      device;  // "cuda:0", "cpu"; empty: the current context's device, else cuda:0, else cpu
  std::string cache_file;  // empty: the user's default
  bool use_cache = true;   // false: nothing is read from or remembered in the user's file
  // A first use does not wait for a compile while other code of the spec is there; a thread
  // compiles, and the better code takes its place.
  bool background = false;
  // What was worked around, a line each, on whatever thread met it, never two at a time; must not
  // throw nor use the Runtime. Empty: lines go to stderr.
  std::function<void(const std::string& line)> log;
  // Launches look at offsets, lengths and page numbers first, as att_forward() says, and wrong ones
  // are an error: to look for a mistake, as it waits for the stream. So it is with ATTUNE_CHECK=1.
  bool check = false;
};

// A device, its compilers and its caches. A cache that is broken, locked or full is a warning in
// the log, never an error.
class Runtime {
 public:
  // ATT_UNAVAILABLE: no such device, or its driver is missing.
  static Result<Runtime> create(const RuntimeOptions& options = {}) {
    att_runtime_options raw{};
    raw.struct_size = sizeof(raw);
    raw.device = options.device.empty() ? nullptr : options.device.c_str();
    raw.cache_file = !options.use_cache           ? ""
                     : options.cache_file.empty() ? nullptr
                                                  : options.cache_file.c_str();
    raw.background = options.background ? 1 : 0;
    raw.check = options.check ? 1 : 0;
    auto log = std::make_unique<Log>(options.log);
    if (*log) {
      raw.log = [](void* to, int, const char* line) { (*static_cast<Log*>(to))(line); };
      raw.log_context = log.get();
    }
    att_runtime* handle = nullptr;
    if (const Status status(att_runtime_create(&raw, &handle)); !status) return status.error();
    Runtime runtime;
    runtime.handle_ = Handle(handle, Destroy{std::move(log)});
    return Result<Runtime>(std::move(runtime));
  }

  // The best kernel known for spec and shape. The first call for a pair compiles (well under a
  // second) unless the cache has the code; later ones are a lookup without lock or allocation.
  // ATT_UNSUPPORTED: no kernel of the device can do this pass, whether or not the spec lists it.
  Result<Kernel> kernel(const Spec& spec, const Shape& shape, Pass pass = Pass::kForward) {
    att_kernel* handle = nullptr;
    if (const Status status(att_kernel_get_for_pass(handle_.get(), spec.get(), &shape,
                                                    static_cast<int>(pass), &handle));
        !status) {
      return status.error();
    }
    return Result<Kernel>(Kernel(handle));
  }
  // Compiles at the first use of a dtype, head dims and kind of rotation.
  Result<AppendKernel> append_kernel(const AppendOptions& options) {
    att_append_kernel* handle = nullptr;
    if (const Status status(att_append_kernel_get(handle_.get(), &options, &handle)); !status) {
      return status.error();
    }
    return Result<AppendKernel>(AppendKernel(handle));
  }
  // Takes up what was tuned since, as att_runtime_refresh() says. Kernels stay valid.
  Status refresh() { return Status(att_runtime_refresh(handle_.get())); }
  // What the tensors of a kernel's launches are like, as att_runtime_tell_tensors() says; in the
  // host's memory.
  Status tell_tensors(Kernel& kernel, const Shape& shape, const std::vector<Tensor>& tensors) {
    return Status(att_runtime_tell_tensors(handle_.get(), kernel.handle_.get(), &shape,
                                           tensors.data(), static_cast<int>(tensors.size())));
  }
  // The same of the shares of live and of full tiles, as att_runtime_tell_shares() says.
  Status tell_shares(Kernel& kernel, double live_share, double full_share) {
    return Status(
        att_runtime_tell_shares(handle_.get(), kernel.handle_.get(), live_share, full_share));
  }
  // The same of the keys of each sequence, shape.batch of them in the host's memory, as
  // att_runtime_tell_lengths() says.
  Status tell_lengths(Kernel& kernel, const Shape& shape, const std::int32_t* kv_lengths,
                      std::int64_t page_size = 0) {
    return Status(att_runtime_tell_lengths(handle_.get(), kernel.handle_.get(), &shape, kv_lengths,
                                           page_size));
  }
  // Searches the fastest plan for a launch with the host's own data, as att_tune() says: `args` are
  // copied before tune() returns, what a launch writes is never touched. Without `background` the
  // search is over then.
  Result<Tuning> tune(const Spec& spec, const ForwardArgs& args, const TuneOptions& options = {}) {
    return tune_by(att_tune, spec, args, options);
  }
  Result<Tuning> tune(const Spec& spec, const BackwardArgs& args, const TuneOptions& options = {}) {
    return tune_by(att_tune_backward, spec, args, options);
  }
  // Returns when nothing is compiled in the background any more.
  void wait() { att_runtime_wait(handle_.get()); }
  // JSON: device, compiler, cache files, counters, kernels; empty when it failed.
  std::string status() const {
    std::string text;
    std::size_t size = att_runtime_status(handle_.get(), nullptr, 0);
    while (size > text.size()) {  // it may grow in between
      text.resize(size);
      size = att_runtime_status(handle_.get(), &text[0], text.size());
    }
    text.resize(size > 0 ? size - 1 : 0);
    return text;
  }
  // The name of the device: "NVIDIA H200 / 132 SMs / ...".
  std::string device() const { return att_runtime_device(handle_.get()); }

 private:
  using Log = std::function<void(const std::string&)>;
  struct Destroy {
    std::unique_ptr<Log> log;  // outlives the handle, which calls it
    void operator()(att_runtime* handle) const { att_runtime_destroy(handle); }
  };
  using Handle = std::unique_ptr<att_runtime, Destroy>;
  template <typename Function, typename Args>
  Result<Tuning> tune_by(Function* function, const Spec& spec, const Args& args,
                         const TuneOptions& options) {
    Sized<att_tune_options> raw;
    raw.budget_ms = options.budget_ms;
    raw.background = options.background ? 1 : 0;
    raw.max_candidates = options.max_candidates;
    raw.compile_threads = options.compile_threads;
    raw.command = options.command.empty() ? nullptr : options.command.c_str();
    auto progress = std::make_unique<Tuning::Progress>(options.progress);
    if (*progress) {
      raw.progress = [](void* to, const att_tune_progress* now) {
        return (*static_cast<Tuning::Progress*>(to))(*now) ? 0 : 1;
      };
      raw.progress_context = progress.get();
    }
    att_tuning* handle = nullptr;
    if (const Status status(function(handle_.get(), spec.get(), &args, &raw, &handle)); !status) {
      return status.error();
    }
    return Result<Tuning>(Tuning(Tuning::Handle(handle, Tuning::Destroy{std::move(progress)})));
  }
  Runtime() = default;
  Handle handle_;
};

}  // namespace v1
}  // namespace attune

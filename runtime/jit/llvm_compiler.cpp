#include <fmt/format.h>

#include <array>
#include <chrono>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/jit/compiler.hpp"
#include "runtime/jit/failure.hpp"
#include "runtime/jit/llvm_library.hpp"
#include "runtime/jit/ptx_assembler.hpp"
#include "runtime/jit/ptxas_log.hpp"

namespace attune {
namespace {

// A buffer of the module's, given back when it goes out of scope.
class ModuleBuffer {
 public:
  explicit ModuleBuffer(const AttLlvmApi& api) : api_(api) {}
  ~ModuleBuffer() { api_.release(&buffer); }
  ModuleBuffer(const ModuleBuffer&) = delete;
  ModuleBuffer& operator=(const ModuleBuffer&) = delete;

  std::string_view text() const { return {static_cast<const char*>(buffer.data), buffer.size}; }

  AttLlvmBuffer buffer{nullptr, 0};

 private:
  const AttLlvmApi& api_;
};

// The lowest PTX version that has what the family's instructions need, for the sake of older
// drivers: 7.8 knows sm_89 and sm_90, 8.0 sm_90a with wgmma and setmaxnreg.
enum class Needs { kNothingNew, kSends, kWideAtomics };
constexpr std::array kAllNeeds = {Needs::kNothingNew, Needs::kSends, Needs::kWideAtomics};
Needs needs_of(const std::string& source) {
  if (source.find(".exch.b128") != source.npos) return Needs::kWideAtomics;
  // Other plans' sources have the function, too (templates/ptx/cluster.cuh).
  return source.find("kInCluster = true") != source.npos ? Needs::kSends : Needs::kNothingNew;
}

std::string_view ptx_feature(Target target, Needs needs) {
  switch (target) {
    case Target::kSm80:
    case Target::kSm86:
    case Target::kSm89:
      return "+ptx78";
    case Target::kSm90a:
      return needs == Needs::kWideAtomics ? "+ptx83" : needs == Needs::kSends ? "+ptx81" : "+ptx80";
    default:
      return "+ptx87";
  }
}

// LLVM moves additions of constants behind minima and maxima where it may take for granted that
// they do not overflow; ptxas makes one instruction of both in the source's order. On sm90a, what
// the list scheduler makes of such code is slower (docs/lab/llvm.md).
bool wraps(LlvmOrder order, bool wgmma) { return order == LlvmOrder::kGiven || !wgmma; }

// Of `clang -cc1`. The driver is not used: it would look for toolkits and headers.
std::vector<std::string> arguments_for(Target target, bool wraps, Needs needs) {
  // NaN and infinity mean what IEEE says (masked scores rely on it); contraction to FMA is wanted.
  std::vector<std::string> arguments = {"-O3",
                                        "-std=c++17",
                                        "-ffp-contract=fast",
                                        "-vectorize-loops",
                                        "-vectorize-slp",
                                        "-fno-threadsafe-statics",
                                        "-Wno-pass-failed",
                                        "-disable-free",
                                        "-nostdsysteminc",
                                        "-nobuiltininc"};
  if (target == Target::kCpu) {
    // Plain x86-64: the source names the vector extension of its plan itself
    // (templates/cpu/vector.h), so an object does not depend on the machine it was compiled on.
    for (const char* argument :
         {"-triple", "x86_64-unknown-linux-gnu", "-target-cpu", "x86-64", "-emit-obj",
          "-mrelocation-model", "pic", "-pic-level", "2", "-mframe-pointer=none", "-x", "c++"}) {
      arguments.push_back(argument);
    }
    return arguments;
  }
  // Where a local's life ends before a return, Clang lets all returns of a function meet in one
  // block, and LLVM does not always take it apart again. ptxas then sees paths with and without
  // wgmma products in flight meet, and serialises them all (C7515).
  arguments.push_back("-disable-lifetime-markers");
  if (wraps) arguments.push_back("-fwrapv");
  for (const std::string& argument :
       {std::string("-triple"), std::string("nvptx64-nvidia-cuda"), std::string("-aux-triple"),
        std::string("x86_64-unknown-linux-gnu"), std::string("-target-cpu"),
        std::string(to_string(target)), std::string("-target-feature"),
        std::string(ptx_feature(target, needs)), std::string("-S"), std::string("-fcuda-is-device"),
        std::string("-fcuda-allow-variadic-functions"), std::string("-mframe-pointer=all"),
        std::string("-x"), std::string("cuda")}) {
    arguments.push_back(argument);
  }
  return arguments;
}

// What Clang's driver adds outside of debug builds. The object is the same without, so identity()
// does not tell it. PTX has the names, in labels.
constexpr std::array kSameObject = {"-disable-llvm-verifier", "-discard-value-names"};

// An object's string table holds names that end in a zero byte; one may be the tail of another.
bool has_entry(std::string_view image, const std::string& symbol, Target target) {
  if (target != Target::kCpu) return image.find(".entry " + symbol + "(") != image.npos;
  const std::string name = symbol + '\0';
  return image.find(name) != image.npos;
}

class LlvmCompiler final : public Compiler {
 public:
  // `assembler` may be null: PTX is then the image, and the driver that loads it assembles it.
  LlvmCompiler(const AttLlvmApi& api, LlvmOrder order, std::unique_ptr<PtxAssembler> assembler)
      : api_(api), order_(order), assembler_(std::move(assembler)), identity_(make_identity()) {}

  std::string identity() const override { return identity_; }

  bool supports(Target target) const override {
    if (target == Target::kCpu) return order_ == LlvmOrder::kGiven;
    return api_.nvptx_knows(std::string(to_string(target)).c_str()) != 0;
  }

  Result<CompiledKernel> compile(const std::string& source, const std::string& symbol,
                                 Target target) override {
    if (!supports(target)) {
      return Error{.kind = ErrorKind::kUnsupported,
                   .id = "llvm-target",
                   .message = fmt::format("{} does not know {}", identity(), to_string(target)),
                   .hint = "build Attune with a newer LLVM, or compile with NVRTC"};
    }
    const auto start = std::chrono::steady_clock::now();
    const bool wgmma = source.find("wgmma.mma_async") != source.npos;
    std::vector<std::string> arguments =
        arguments_for(target, wraps(order_, wgmma), needs_of(source));
    if (target == Target::kCpu) {
      arguments.insert(arguments.end(), kSameObject.begin(), kSameObject.end());
    }
    const std::string file = symbol + (target == Target::kCpu ? ".cpp" : ".cu");
    std::vector<const char*> argument_pointers;
    for (const std::string& argument : arguments) argument_pointers.push_back(argument.c_str());
    const AttLlvmCompileRequest request{.source = source.data(),
                                        .source_size = source.size(),
                                        .file_name = file.c_str(),
                                        .arguments = argument_pointers.data(),
                                        .argument_count = argument_pointers.size(),
                                        .listed = order_ == LlvmOrder::kListed};
    ModuleBuffer image(api_);
    ModuleBuffer log(api_);
    const bool done = api_.compile(&request, &image.buffer, &log.buffer) != 0;

    const CompileAttempt attempt{
        .compiler = identity(),
        .command = fmt::format("clang -cc1 {} {}", fmt::join(arguments, " "), file),
        .source = source};
    if (!done) return compile_failure(attempt, "errors in the source", log.text());
    const std::string_view bytes = image.text();
    if (!has_entry(bytes, symbol, target)) {
      return compile_failure(attempt, fmt::format("no entry function `{}`", symbol), log.text());
    }
    CompiledKernel kernel;
    kernel.log = std::string(log.text());
    kernel.image.assign(bytes.begin(), bytes.end());
    if (target != Target::kCpu) {
      kernel.image.push_back(0);  // the driver takes PTX as a C string
      if (assembler_) ATT_CHECK(assemble(attempt, bytes, symbol, target, kernel));
    }
    kernel.compile_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return kernel;
  }

 private:
  std::string make_identity() const {
    std::vector<std::vector<std::string>> arguments;
    for (const Target target : kTargets) {
      for (const bool wgmma : {false, true}) {
        for (const Needs needs : kAllNeeds) {
          arguments.push_back(arguments_for(target, wraps(order_, wgmma), needs));
        }
      }
    }
    const std::string clang =
        llvm_identity(api_, arguments, order_ == LlvmOrder::kListed ? "clang-list" : "clang");
    return assembler_ ? fmt::format("{}, {}", clang, assembler_->identity()) : clang;
  }

  // Replaces PTX by the cubin that the driver makes of it, where it makes one.
  Status assemble(const CompileAttempt& attempt, std::string_view ptx, const std::string& symbol,
                  Target target, CompiledKernel& kernel) const {
    auto assembled = assembler_->assemble(ptx, symbol, target);
    if (!assembled.ok()) {
      return compile_failure(attempt, assembled.error().message, assembled.error().detail);
    }
    if (!assembled->cubin.empty()) kernel.image = std::move(assembled->cubin);
    kernel.log += assembled->log;
    const PtxasReport report = parse_ptxas_log(assembled->log, symbol);
    if (!report.performance_loss.empty()) {
      return compile_failure(attempt, report.performance_loss, kernel.log);
    }
    kernel.registers = report.found ? report.registers : assembled->registers;
    kernel.stack_bytes = report.found ? report.stack_bytes : assembled->local_bytes;
    kernel.static_shared_bytes =
        report.found ? report.static_shared_bytes : assembled->static_shared_bytes;
    // Only the log tells spills from other local memory.
    kernel.spill_store_bytes = report.spill_store_bytes;
    kernel.spill_load_bytes = report.spill_load_bytes;
    return ok_status();
  }

  const AttLlvmApi& api_;
  const LlvmOrder order_;
  const std::unique_ptr<PtxAssembler> assembler_;
  const std::string identity_;
};

}  // namespace

Result<std::unique_ptr<Compiler>> open_llvm_compiler(LlvmOrder order) {
  ATT_TRY(const AttLlvmApi* api, open_llvm_module());
  auto assembler = PtxAssembler::open();
  return std::unique_ptr<Compiler>(std::make_unique<LlvmCompiler>(
      *api, order, assembler.ok() ? std::move(assembler).value() : nullptr));
}

}  // namespace attune

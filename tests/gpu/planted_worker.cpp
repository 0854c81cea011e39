#include "tests/gpu/planted_worker.hpp"

#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "tuner/isolation/worker.hpp"

namespace attune::gpu_test {
namespace {

constexpr const char* kVariable = "ATTUNE_TEST_PLANTED";  // "symbol behaviour" a line

std::string behaviour_of(const std::string& symbol) {
  const char* text = std::getenv(kVariable);
  std::istringstream lines(text == nullptr ? "" : text);
  for (std::string name, behaviour; lines >> name >> behaviour;) {
    if (name == symbol) return behaviour;
  }
  return "";
}

std::string planted_source(const std::string& symbol, const std::string& behaviour) {
  // Clang knows the attribute only.
  const std::string head =
      "#ifndef __CUDACC_RTC__\n#define __global__ __attribute__((global))\n#endif\n"
      "extern \"C\" __global__ void " +
      symbol + "() ";
  if (behaviour == "hang") return head + "{ for (;;) asm volatile(\"nanosleep.u32 1000;\"); }";
  if (behaviour == "fault") return head + "{ *reinterpret_cast<volatile int*>(16) = 1; }";
  if (behaviour == "miscompute") return head + "{}";
  return "this does not compile";
}

class PlantingCompiler final : public Compiler {
 public:
  explicit PlantingCompiler(std::unique_ptr<Compiler> real) : real_(std::move(real)) {}
  std::string identity() const override { return real_->identity(); }
  bool supports(Target target) const override { return real_->supports(target); }
  Result<CompiledKernel> compile(const std::string& source, const std::string& symbol,
                                 Target target) override {
    const std::string behaviour = behaviour_of(symbol);
    return real_->compile(behaviour.empty() ? source : planted_source(symbol, behaviour), symbol,
                          target);
  }

 private:
  const std::unique_ptr<Compiler> real_;
};

Result<std::unique_ptr<Compiler>> open_planting_compiler(const std::string& name) {
  ATT_TRY(auto real, open_named_compiler(name));
  return std::unique_ptr<Compiler>(std::make_unique<PlantingCompiler>(std::move(real)));
}

}  // namespace

void plant(const std::map<std::string, std::string>& by_symbol) {
  std::string text;
  for (const auto& [symbol, behaviour] : by_symbol) text += symbol + " " + behaviour + "\n";
  setenv(kVariable, text.c_str(), 1);
}

void run_planted_worker() {
  run_worker(STDIN_FILENO, STDOUT_FILENO,
             [] { return make_local_session(open_planting_compiler); });
}

}  // namespace attune::gpu_test

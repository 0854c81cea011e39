#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <thread>
#include <vector>

#include "runtime/jit/compiler.hpp"
#include "runtime/jit/llvm_library.hpp"

namespace attune {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;

std::string text_of(const CompiledKernel& kernel) {
  return {kernel.image.begin(), kernel.image.end()};
}

class LlvmCompiler : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = open_llvm_compiler();
    if (!opened.ok()) GTEST_SKIP() << opened.error().message;
    compiler_ = std::move(opened).value();
  }
  std::unique_ptr<Compiler> compiler_;
};

TEST_F(LlvmCompiler, MakesPtxForEveryArchitectureItKnows) {
  const std::string source = R"(
extern "C" __attribute__((global)) void twice(float* data) {
  unsigned lane;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(lane));
  data[lane] *= 2;
})";
  for (const Target target : {Target::kSm80, Target::kSm86, Target::kSm89, Target::kSm90a}) {
    ASSERT_TRUE(compiler_->supports(target)) << to_string(target);
    const auto kernel = compiler_->compile(source, "twice", target);
    ASSERT_TRUE(kernel.ok()) << render(kernel.error());
    EXPECT_THAT(text_of(*kernel), HasSubstr(".target " + std::string(to_string(target))));
    EXPECT_THAT(text_of(*kernel), HasSubstr(".visible .entry twice("));
    EXPECT_THAT(text_of(*kernel), HasSubstr("%tid.x"));
    EXPECT_GT(kernel->compile_seconds, 0);
  }
}

TEST_F(LlvmCompiler, ChoosesOnceByACompoundCondition) {
  const std::pair<const char*, const char*> cases[] = {
      {"a < 3 && b > 4", "setp.gt.and.s32"},  {"a < 3 || b > 4", "setp.gt.or.s32"},
      {"c < 3 && b != 4", "setp.ne.and.s32"}, {"a < 3 && unsigned(b) < 4", "setp.lt.and.u32"},
      {"c < 3 && c > 1", "and.pred"},
  };
  for (const auto& [condition, instruction] : cases) {
    const std::string source =
        "extern \"C\" __attribute__((global)) void choose(float* x, int a, int b, float c) {\n"
        "  x[0] = (" +
        std::string(condition) + ") ? x[1] : x[2];\n}";
    const auto kernel = compiler_->compile(source, "choose", Target::kSm80);
    ASSERT_TRUE(kernel.ok()) << render(kernel.error());
    const std::string ptx = text_of(*kernel);
    const std::size_t select = ptx.find("selp.");
    ASSERT_NE(select, ptx.npos) << ptx;
    EXPECT_EQ(ptx.find("selp.", select + 1), ptx.npos) << ptx;
    EXPECT_THAT(ptx, HasSubstr(instruction));
  }
}

std::string products_and_stores(bool wgmma) {
  return "extern \"C\" __attribute__((global)) void order(float* x, float a, float b) {\n" +
         std::string(wgmma ? "  asm volatile(\"// wgmma.mma_async\");\n" : "") +
         "  float first = a * 2, second = b * 3, both = first * second, scaled = first * 5;\n"
         "  x[0] = scaled;\n  x[1] = both;\n  x[2] = second;\n}";
}

TEST_F(LlvmCompiler, ComputesWhereAValueIsNeededBesideWgmmaOnly) {
  for (const bool wgmma : {false, true}) {
    const std::string source = products_and_stores(wgmma);
    const auto kernel = compiler_->compile(source, "order", Target::kSm90a);
    ASSERT_TRUE(kernel.ok()) << render(kernel.error());
    const std::string ptx = text_of(*kernel);
    EXPECT_EQ(ptx.find("st.global.f32") < ptx.rfind("mul."), wgmma) << ptx;
  }
}

// LLVM alone would place what is unlikely at the end.
TEST_F(LlvmCompiler, KeepsTheOrderOfBlocksBesideWgmmaOnly) {
  for (const bool wgmma : {false, true}) {
    const std::string source =
        "extern \"C\" __attribute__((global)) void order(int n) {\n" +
        std::string(wgmma ? "  asm volatile(\"// wgmma.mma_async\");\n" : "") +
        "  if (__builtin_expect(n == 3, 0)) asm volatile(\"// rare\");\n"
        "  asm volatile(\"// last\");\n}";
    const auto kernel = compiler_->compile(source, "order", Target::kSm90a);
    ASSERT_TRUE(kernel.ok()) << render(kernel.error());
    const std::string ptx = text_of(*kernel);
    EXPECT_EQ(ptx.find("// rare") < ptx.find("// last"), wgmma) << ptx;
  }
}

// One instruction does both. LLVM alone would add the constant last.
TEST_F(LlvmCompiler, AddsBeforeItClamps) {
  const auto kernel = compiler_->compile(R"(
extern "C" __attribute__((global)) void clamp(int* x) {
  int y = x[0] - x[1] + 1023;
  y = y < 2046 ? y : 2046;
  x[0] = y > 0 ? y : 0;
})",
                                         "clamp", Target::kSm80);
  ASSERT_TRUE(kernel.ok()) << render(kernel.error());
  const std::string ptx = text_of(*kernel);
  EXPECT_LT(ptx.find(", 1023;"), ptx.find("min.s32")) << ptx;
}

// The other order of instructions is a compiler of its own.
TEST_F(LlvmCompiler, ListsInstructionsInAnotherOrder) {
  const auto listing = open_named_compiler("llvm-list");
  ASSERT_TRUE(listing.ok()) << render(listing.error());
  EXPECT_THAT((*listing)->identity(), StartsWith("clang-list "));
  EXPECT_EQ(compiler_name(**listing), "llvm-list");
  EXPECT_FALSE((*listing)->supports(Target::kCpu));
  const auto tuned = open_compiler(Target::kSm90a, "clang-list");
  ASSERT_TRUE(tuned.ok()) << render(tuned.error());
  EXPECT_EQ((*tuned)->identity(), (*listing)->identity());
  for (const bool wgmma : {false, true}) {
    const std::string source = products_and_stores(wgmma);
    const auto given = compiler_->compile(source, "order", Target::kSm90a);
    const auto listed = (*listing)->compile(source, "order", Target::kSm90a);
    ASSERT_TRUE(given.ok() && listed.ok());
    EXPECT_NE(text_of(*given), text_of(*listed)) << wgmma;
  }
}

// What a loop does not change is a register each, all the while it runs.
TEST_F(LlvmCompiler, ComputesAddressesInTheLoopsThatUseThem) {
  for (const bool wgmma : {false, true}) {
    const std::string source =
        "extern \"C\" __attribute__((global)) void loop(int a, int n) {\n"
        "  for (int i = 0; i < n; ++i)\n"
        "    asm volatile(\"// uses %0\" :: \"r\"((a * a << 3) + 7));\n}\n" +
        std::string(
            wgmma ? "__attribute__((global)) void other() { asm volatile(\"// wgmma.mma_async\"); }"
                  : "");
    const auto kernel = compiler_->compile(source, "loop", Target::kSm90a);
    ASSERT_TRUE(kernel.ok()) << render(kernel.error());
    const std::string ptx = text_of(*kernel);
    const std::size_t loop = ptx.find("Inner Loop Header"), shift = ptx.find("shl.b32");
    ASSERT_NE(shift, ptx.npos) << ptx;
    EXPECT_EQ(loop < shift, !wgmma) << ptx;
  }
}

// Two values in a loop instead of one would spare nothing.
TEST_F(LlvmCompiler, RepeatsWhatTakesNoMoreValuesThanItSparesInALoop) {
  for (const bool has_a : {false, true}) {
    const std::string source =
        std::string(
            "extern \"C\" __attribute__((global)) void both(int a, int b, int n) {\n"
            "  for (int i = 0; i < n; ++i) {\n"
            "    asm volatile(\"// uses %0\" :: \"r\"(a ^ b));\n") +
        (has_a ? "    asm volatile(\"// uses a, %0\" :: \"r\"(a));\n" : "") + "  }\n}";
    const auto kernel = compiler_->compile(source, "both", Target::kSm80);
    ASSERT_TRUE(kernel.ok()) << render(kernel.error());
    const std::string ptx = text_of(*kernel);
    const std::size_t loop = ptx.find("Inner Loop Header"), both = ptx.find("xor.b32");
    ASSERT_NE(both, ptx.npos) << ptx;
    EXPECT_EQ(loop < both, has_a) << ptx;
  }
}

// A mask may ask for the same element again for each score of a tile, once loops are unrolled.
TEST_F(LlvmCompiler, LoadsOnceWhatALoopAsksForTwice) {
  const auto kernel = compiler_->compile(R"(
__attribute__((device)) inline int at(const int* x) {
  int value;
  asm("ld.global.nc.s32 %0, [%1];" : "=r"(value) : "l"(x));
  return value;
}
extern "C" __attribute__((global)) void loads(const int* x, int n) {
  for (int i = 0; i < n; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) asm volatile("// uses %0" ::"r"(at(x + i)));
  }
})",
                                         "loads", Target::kSm80);
  ASSERT_TRUE(kernel.ok()) << render(kernel.error());
  const std::string ptx = text_of(*kernel);
  EXPECT_EQ(ptx.find("ld.global.nc"), ptx.rfind("ld.global.nc")) << ptx;
}

TEST_F(LlvmCompiler, ComputesInALoopWhatBothPathsToItComputed) {
  const auto kernel = compiler_->compile(R"(
extern "C" __attribute__((global)) void choose(int a, int n) {
  if (n > 3) {
    if (n & 1) asm volatile("// odd");
    asm volatile("// first %0" ::"r"((a << 3) + 7));
  } else {
    if (n & 2) asm volatile("// even");
    asm volatile("// second %0" ::"r"((a << 3) + 7));
  }
  do {
    asm volatile("// in the loop %0" ::"r"((a << 3) + 7));
  } while (--n);
})",
                                         "choose", Target::kSm80);
  ASSERT_TRUE(kernel.ok()) << render(kernel.error());
  const std::string ptx = text_of(*kernel);
  const std::string loop = ptx.substr(ptx.find("Inner Loop Header"));
  EXPECT_LT(loop.find("shl.b32"), loop.find("// in the loop")) << ptx;
}

// ptxas knows a loop that is tested at its end by a conditional branch back.
TEST_F(LlvmCompiler, LoopsOfWgmmaGoBackUnderACondition) {
  const auto kernel = compiler_->compile(R"(
extern "C" __attribute__((global)) void loop(int n, int m) {
  int i = 0;
again:
  asm volatile("// wgmma.mma_async" : "+r"(i));
  if (i == m) goto early;
  if (i & m) asm volatile("// odd");
  asm volatile("// last" : "+r"(i));
  if (i == n) goto done;
  goto again;
early:
  asm volatile("// early");
done:
  asm volatile("// done");
})",
                                         "loop", Target::kSm90a);
  ASSERT_TRUE(kernel.ok()) << render(kernel.error());
  const std::string ptx = text_of(*kernel);
  const std::string end = ptx.substr(ptx.find("// last"));
  const std::size_t branch = end.find("@%p"), label = end.find('$');
  ASSERT_LT(branch, label) << ptx;
  const std::string target = end.substr(label, end.find(';', label) - label);
  const std::string block = ptx.substr(ptx.find("\n" + target + ":"));
  EXPECT_THAT(block.substr(0, block.find("// begin")), HasSubstr("Loop Header")) << ptx;
}

TEST_F(LlvmCompiler, MakesAnObjectForTheCpu) {
  const auto kernel = compiler_->compile("extern \"C\" void twice(float* data) { data[0] *= 2; }",
                                         "twice", Target::kCpu);
  ASSERT_TRUE(kernel.ok()) << render(kernel.error());
  EXPECT_EQ(text_of(*kernel).substr(0, 4),
            "\x7f"
            "ELF");
}

TEST_F(LlvmCompiler, AFailureShowsCommandLogAndNumberedSource) {
  const auto kernel =
      compiler_->compile("extern \"C\" void k() {\n  nonsense;\n}\n", "k", Target::kCpu);
  ASSERT_FALSE(kernel.ok());
  EXPECT_EQ(kernel.error().id, "compile-failed");
  EXPECT_EQ(exit_code(kernel.error().kind), 1);
  EXPECT_THAT(kernel.error().detail, HasSubstr("clang -cc1 -O3"));
  EXPECT_THAT(kernel.error().detail,
              HasSubstr("k.cpp:2:3: error: use of undeclared identifier 'nonsense'"));
  EXPECT_THAT(kernel.error().detail, HasSubstr("    2 |   nonsense;"));
}

TEST_F(LlvmCompiler, AMissingEntryFunctionIsAnError) {
  for (const Target target : {Target::kCpu, Target::kSm80}) {
    const auto kernel = compiler_->compile("int unrelated;", "other", target);
    ASSERT_FALSE(kernel.ok());
    EXPECT_THAT(kernel.error().message, HasSubstr("no entry function `other`"));
  }
}

TEST_F(LlvmCompiler, ReadsNoFile) {
  for (const char* include : {"#include </etc/hostname>\n", "#include <stdio.h>\n"}) {
    const auto kernel =
        compiler_->compile(std::string(include) + "extern \"C\" void k() {}", "k", Target::kCpu);
    ASSERT_FALSE(kernel.ok()) << include;
    EXPECT_THAT(kernel.error().detail, HasSubstr("file not found"));
  }
}

TEST_F(LlvmCompiler, WhatLlvmTakesForItsOwnErrorIsAnErrorOfTheCompile) {
  // No instruction of the target can do this: LLVM's answer is to end the process.
  const auto kernel =
      compiler_->compile("extern \"C\" void k(long double* x) { asm volatile(\"\" : \"+x\"(*x)); }",
                         "k", Target::kSm80);
  EXPECT_FALSE(kernel.ok());
  const auto next = compiler_->compile("extern \"C\" void k() {}", "k", Target::kCpu);
  EXPECT_TRUE(next.ok());
}

TEST_F(LlvmCompiler, CompilesOnManyThreadsAtOnce) {
  std::vector<std::string> failures(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < failures.size(); ++i) {
    threads.emplace_back([&, i] {
      const std::string symbol = "k" + std::to_string(i);
      const auto kernel = compiler_->compile("extern \"C\" int " + symbol + "() { return 1; }",
                                             symbol, Target::kCpu);
      if (!kernel.ok()) failures[i] = render(kernel.error());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(failures, testing::Each(""));
}

TEST_F(LlvmCompiler, NamesItselfAndItsTargets) {
  EXPECT_THAT(compiler_->identity(),
              MatchesRegex("clang [0-9.]+ \\([0-9a-f]{8}\\)(, driver [0-9.]+)?"));
  EXPECT_EQ(compiler_name(*compiler_), "llvm");
  EXPECT_TRUE(compiler_->supports(Target::kCpu));
}

// It is part of the build key: code in a cache is that of the very module and its arguments.
TEST(LlvmIdentity, ChangesWithTheVersionTheModuleAndItsArguments) {
  const auto identity = [](const char* version, const char* revision,
                           const std::vector<std::vector<std::string>>& arguments) {
    return llvm_identity({.version = version, .revision = revision}, arguments);
  };
  const std::string known = identity("19.1.7", "a", {{"-O3", "-S"}, {"-O2"}});
  EXPECT_EQ(known, identity("19.1.7", "a", {{"-O3", "-S"}, {"-O2"}}));
  EXPECT_THAT(known, StartsWith("clang 19.1.7 ("));
  const std::set<std::string> all = {known,
                                     identity("20.1.0", "a", {{"-O3", "-S"}, {"-O2"}}),
                                     identity("19.1.7", "b", {{"-O3", "-S"}, {"-O2"}}),
                                     identity("19.1.7", "a", {{"-O3", "-S"}, {"-O1"}}),
                                     identity("19.1.7", "a", {{"-O3"}, {"-S", "-O2"}}),
                                     identity("19.1.7", "a", {{"-O3 -S"}, {"-O2"}})};
  EXPECT_EQ(all.size(), 6u);
}

TEST_F(LlvmCompiler, AnUnknownTargetIsUnsupported) {
  for (const Target target : {Target::kSm100, Target::kSm120}) {
    if (compiler_->supports(target)) continue;
    const auto kernel = compiler_->compile("", "k", target);
    ASSERT_FALSE(kernel.ok());
    EXPECT_EQ(kernel.error().kind, ErrorKind::kUnsupported);
    EXPECT_THAT(kernel.error().message, HasSubstr(std::string(to_string(target))));
    EXPECT_THAT(kernel.error().hint, HasSubstr("NVRTC"));
  }
}

TEST_F(LlvmCompiler, LinksObjectsIntoTheProcessOfTheirOwnNames) {
  const auto module = open_llvm_module();
  ASSERT_TRUE(module.ok());
  const AttLlvmApi& api = **module;
  void* handles[2];
  int (*functions[2])();
  for (int i = 0; i < 2; ++i) {
    const auto kernel = compiler_->compile(
        "extern \"C\" int answer() { return " + std::to_string(i) + "; }", "answer", Target::kCpu);
    ASSERT_TRUE(kernel.ok());
    const char* symbol = "answer";
    void* address = nullptr;
    AttLlvmBuffer log{nullptr, 0};
    handles[i] = api.load(kernel->image.data(), kernel->image.size(), &symbol, &address, 1, &log);
    ASSERT_NE(handles[i], nullptr) << std::string(static_cast<const char*>(log.data), log.size);
    functions[i] = reinterpret_cast<int (*)()>(address);
  }
  EXPECT_EQ(functions[0](), 0);
  EXPECT_EQ(functions[1](), 1);
  for (void* handle : handles) api.unload(handle);
}

TEST_F(LlvmCompiler, DamagedObjectsAndForeignCallsAreRefused) {
  const auto module = open_llvm_module();
  ASSERT_TRUE(module.ok());
  const AttLlvmApi& api = **module;
  const auto caller = compiler_->compile(
      "extern \"C\" int system(const char*); extern \"C\" int k() { return system(\"true\"); }",
      "k", Target::kCpu);
  ASSERT_TRUE(caller.ok());
  const std::vector<std::uint8_t> noise(100, 0x5a);
  for (const std::vector<std::uint8_t>& object : {caller->image, noise, {}}) {
    const char* symbol = "k";
    void* address = nullptr;
    AttLlvmBuffer log{nullptr, 0};
    EXPECT_EQ(api.load(object.data(), object.size(), &symbol, &address, 1, &log), nullptr);
    EXPECT_GT(log.size, 0u);
    api.release(&log);
  }
}

// The environment decides where the module is looked for.
class LlvmModule : public testing::Test {
 protected:
  void TearDown() override { unsetenv("ATTUNE_LLVM_MODULE"); }
};

TEST_F(LlvmModule, MissingSaysWhatToInstall) {
  setenv("ATTUNE_LLVM_MODULE", "/nonexistent/libattune_llvm.so", 1);
  const auto opened = open_llvm_compiler();
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().id, "llvm-missing");
  EXPECT_EQ(exit_code(opened.error().kind), 3);
  EXPECT_THAT(opened.error().hint, HasSubstr("libclang-19-dev"));
  EXPECT_THAT(opened.error().detail, HasSubstr("/nonexistent/libattune_llvm.so"));
}

TEST_F(LlvmModule, AnotherLibraryIsRefused) {
  setenv("ATTUNE_LLVM_MODULE", "libm.so.6", 1);
  const auto opened = open_llvm_compiler();
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().id, "llvm-module-version");
  EXPECT_EQ(exit_code(opened.error().kind), 3);
}

}  // namespace
}  // namespace attune

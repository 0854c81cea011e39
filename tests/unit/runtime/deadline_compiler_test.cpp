// A compiler that does not come back costs its caller the deadline and nobody else anything.
#include "runtime/jit/deadline_compiler.hpp"

#include <gtest/gtest.h>

#include <future>
#include <new>
#include <thread>

#include "runtime/engine/dispatcher.hpp"
#include "tests/unit/runtime/fakes.hpp"

namespace attune::runtime_test {
namespace {

constexpr double kLong = 1e6;

class DeadlineCompilerTest : public EngineTest {
 protected:
  std::unique_ptr<Compiler> compiler(double seconds) const {
    return with_deadline(std::make_unique<FakeCompiler>(compiler_), seconds);
  }
  // Compiles wait until the returned promise is kept.
  std::shared_ptr<std::promise<void>> hold_compiles() {
    auto gate = std::make_shared<std::promise<void>>();
    compiler_->on_compile = [opened = gate->get_future().share()] { opened.wait(); };
    return gate;
  }
  static std::string id_of(const Result<CompiledKernel>& result) {
    return result.ok() ? "ok" : result.error().id;
  }
};

TEST_F(DeadlineCompilerTest, ItsCodeAndErrorsAreTheCompilers) {
  const auto made = compiler(kLong);
  EXPECT_EQ(made->identity(), "fake 1");
  EXPECT_EQ(made->compile("source", "name", Target::kSm80)->registers, 99);
  compiler_->broken = true;
  EXPECT_EQ(id_of(made->compile("source", "name", Target::kSm80)), "compile-failed");
  compiler_->on_compile = [] { throw std::bad_alloc(); };
  EXPECT_THROW((void)made->compile("source", "name", Target::kSm80), std::bad_alloc);
}

TEST_F(DeadlineCompilerTest, WhatIsLateIsGivenUpAndTooManyOfThoseAreNotAddedTo) {
  const auto gate = hold_compiles();
  const auto made = compiler(0);
  for (int i = 0; i < kMostGivenUp; ++i)
    EXPECT_EQ(id_of(made->compile("source", "name", Target::kSm80)), kCompileDeadline);
  EXPECT_EQ(id_of(made->compile("source", "name", Target::kSm80)), "compile-stuck");
  gate->set_value();
  std::string id = "compile-stuck";
  while (id == "compile-stuck") {  // until those threads end
    std::this_thread::yield();
    id = id_of(made->compile("source", "name", Target::kSm80));
  }
  EXPECT_TRUE(id == "ok" || id == kCompileDeadline) << id;
}

TEST_F(DeadlineCompilerTest, AThreadThatWasGivenUpOutlivesItsCompiler) {
  const auto gate = hold_compiles();
  EXPECT_EQ(id_of(compiler(0)->compile("source", "name", Target::kSm80)), kCompileDeadline);
  std::weak_ptr<CompilerState> state = compiler_;
  compiler_ = nullptr;
  EXPECT_FALSE(state.expired());
  gate->set_value();
  while (!state.expired()) std::this_thread::yield();
}

TEST_F(DeadlineCompilerTest, TooMuchSourceIsRefused) {
  const auto made = compiler(kLong);
  EXPECT_EQ(id_of(made->compile(std::string(kMostSourceBytes + 1, ' '), "name", Target::kSm80)),
            "source-too-large");
  EXPECT_EQ(compiler_->compiles, 0);
}

TEST_F(DeadlineCompilerTest, AnApplicationGetsAnErrorInsteadOfWaiting) {
  const auto gate = hold_compiles();
  {
    Dispatcher dispatcher(std::make_shared<Workshop>(std::make_unique<FakeDevice>(),
                                                     Overlay::open({.user_file = cache_file()}),
                                                     opener(compiler_), 0),
                          false);
    const auto entry = dispatcher.get(spec_, SpecId::from_hash(spec_hash(*spec_)), kShape);
    ASSERT_FALSE(entry.ok());
    EXPECT_EQ(entry.error().id, kCompileDeadline);
    EXPECT_EQ(dispatcher.workshop().counters().failed_compiles, 1u);  // no other plan was tried
  }
  gate->set_value();
}

}  // namespace
}  // namespace attune::runtime_test

// Loading what a cache file brings, with a compiler, with another one and with none.
#include "runtime/engine/workshop.hpp"

#include <gmock/gmock.h>

#include <fstream>

#include "tests/unit/runtime/fakes.hpp"

namespace attune::runtime_test {
namespace {

using testing::HasSubstr;

class WorkshopTest : public EngineTest {};

TEST_F(WorkshopTest, CachedCodeLoadsWhereThereIsNoCompiler) {
  ASSERT_TRUE(workshop(opener(compiler_))->load(*spec_, model_plan()).ok());
  const auto bare = workshop(no_compiler());
  const auto loaded = bare->load(*spec_, model_plan());
  EXPECT_TRUE(loaded.ok()) << render(loaded.error());
  EXPECT_EQ(bare->counters().from_cache, 1u);
  EXPECT_EQ(bare->counters().from_cache_without_compiler, 1u);
  EXPECT_EQ(compiler_->compiles, 1);
}

TEST_F(WorkshopTest, AShippedReadOnlyFileIsEnough) {
  ASSERT_TRUE(workshop(opener(compiler_))->load(*spec_, model_plan()).ok());
  const std::string shipped = (directory_ / "shipped.db").string();
  std::filesystem::rename(cache_file(), shipped);
  const auto loaded = workshop(no_compiler(), "fake", {shipped})->load(*spec_, model_plan());
  EXPECT_TRUE(loaded.ok()) << render(loaded.error());
}

TEST_F(WorkshopTest, AnotherCompilersCodeIsNotTakenWhereThereIsACompiler) {
  ASSERT_TRUE(workshop(opener(compiler_))->load(*spec_, model_plan()).ok());
  const auto newer = std::make_shared<CompilerState>();
  newer->version = "fake 2";
  ASSERT_TRUE(workshop(opener(newer))->load(*spec_, model_plan()).ok());
  EXPECT_EQ(newer->compiles, 1);
}

TEST_F(WorkshopTest, WithoutCompilerOtherPlansSourcesAndTargetsAreNotTaken) {
  const auto store = open_store(cache_file());
  ASSERT_TRUE(store.ok());
  FakeCompiler compiler(compiler_);
  const auto key = build_key(*spec_, model_plan(), compiler);
  ASSERT_TRUE(key.ok());
  const auto spoilt = [&](auto member) {
    BuildKey other = *key;
    other.*member = "other";
    EXPECT_TRUE((*store)->put_code(other, {.image = {1, 2, 3}}).ok());
  };
  spoilt(&BuildKey::spec_hash);
  spoilt(&BuildKey::plan);
  spoilt(&BuildKey::body_hash);
  spoilt(&BuildKey::target);
  const auto loaded = workshop(no_compiler())->load(*spec_, model_plan());
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().id, "nvrtc-missing");
  EXPECT_THAT(loaded.error().message, HasSubstr(to_string(model_plan())));
}

TEST_F(WorkshopTest, DamagedCodeGivesWayToAnotherCompilers) {
  // Two compilers' code of one plan; the file's copy of one of them no longer matches its hash.
  const auto newer = std::make_shared<CompilerState>();
  newer->version = "fake 2";
  {
    auto store = open_store(cache_file());
    ASSERT_TRUE(store.ok());
    FakeCompiler first(compiler_), second(newer);
    auto good = build(*spec_, model_plan(), first, store->get());
    ASSERT_TRUE(good.ok());
    const auto key = build_key(*spec_, model_plan(), second);
    ASSERT_TRUE(key.ok());
    ASSERT_TRUE((*store)->put_code(*key, {.image = {'b', 'a', 'd', ' ', 'o', 'n', 'e'}}).ok());
  }
  std::string bytes;
  {
    std::ifstream in(cache_file(), std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  const auto at = bytes.find("bad one");
  ASSERT_NE(at, bytes.npos);
  bytes[at] = 'B';
  std::ofstream(cache_file(), std::ios::binary) << bytes;
  const auto loaded = workshop(no_compiler())->load(*spec_, model_plan());
  EXPECT_TRUE(loaded.ok()) << render(loaded.error());
}

TEST_F(WorkshopTest, CodeIsMadeByTheCompilerThatWasMeasuredElseByTheTargetsOwn) {
  const auto other = std::make_shared<CompilerState>();
  other->version = "other 2";
  const auto both = workshop(opener_of({compiler_, other}));
  EXPECT_EQ(both->load(*spec_, model_plan(), "other")->compiler, "other 2");
  EXPECT_EQ(both->load(*spec_, model_plan())->compiler, "fake 1");
  // The other's code is in the file by now, and serves where the compiler does not.
  const auto without = workshop(opener_of({compiler_}));
  EXPECT_EQ(without->load(*spec_, model_plan(), "other")->compiler, "other 2");
  EXPECT_EQ(without->counters().from_cache_without_compiler, 1u);
  EXPECT_EQ(without->load(*spec_, other_plan(), "other")->compiler, "fake 1");
  EXPECT_EQ(other->compiles, 1);
  EXPECT_EQ(compiler_->compiles, 2);
}

TEST_F(WorkshopTest, CodeBuiltAheadIsKeptUntilItIsLoaded) {
  for (const bool is_waited_for : {true, false}) {
    const auto built = workshop(opener(compiler_));
    ASSERT_TRUE(built->build_ahead(*spec_, model_plan()).ok());
    EXPECT_EQ(built->built_ahead(), 1u);
    const auto loaded =
        is_waited_for ? built->load(*spec_, model_plan()) : built->load_ready(*spec_, model_plan());
    ASSERT_TRUE(loaded.ok());
    EXPECT_NE(loaded->kernel, nullptr);
    EXPECT_EQ(built->built_ahead(), 0u);
    ASSERT_TRUE(built->build_ahead(*spec_, model_plan()).ok());
    EXPECT_EQ(built->built_ahead(), 0u);
  }
  EXPECT_EQ(compiler_->compiles, 1);
}

TEST_F(WorkshopTest, CodeBuiltAheadIsReadyWithoutACacheFile) {
  Workshop built(std::make_unique<FakeDevice>(), Overlay::open({}), opener(compiler_));
  ASSERT_TRUE(built.build_ahead(*spec_, model_plan()).ok());
  const auto ready = built.load_ready(*spec_, model_plan());
  ASSERT_TRUE(ready.ok());
  EXPECT_NE(ready->kernel, nullptr);
  EXPECT_EQ(built.counters().compiles, 1u);
  EXPECT_EQ(built.counters().from_cache, 0u);
}

// Another process stores the code while this one compiles it, and the load takes the file's.
TEST_F(WorkshopTest, CodeBuiltAheadIsNotKeptWhereItIsLoadedMeanwhile) {
  const auto built = workshop(opener(compiler_));
  compiler_->on_compile = [&] {
    const auto other = std::make_shared<CompilerState>();
    ASSERT_TRUE(workshop(opener(other))->load(*spec_, model_plan()).ok());
    const auto ready = built->load_ready(*spec_, model_plan());
    ASSERT_TRUE(ready.ok());
    EXPECT_NE(ready->kernel, nullptr);
  };
  ASSERT_TRUE(built->build_ahead(*spec_, model_plan()).ok());
  EXPECT_EQ(built->built_ahead(), 0u);
}

// A load has taken the build, and compiles because it was damaged.
TEST_F(WorkshopTest, CodeThatIsBeingLoadedIsNotBuiltAheadAgain) {
  {
    auto store = open_store(cache_file());
    ASSERT_TRUE(store.ok());
    FakeCompiler same(compiler_);
    const auto key = build_key(*spec_, model_plan(), same);
    ASSERT_TRUE(key.ok());
    ASSERT_TRUE((*store)->put_code(*key, {.image = {'?'}}).ok());
  }
  const auto built = workshop(opener(compiler_));
  compiler_->on_compile = [&] { EXPECT_TRUE(built->build_ahead(*spec_, model_plan()).ok()); };
  ASSERT_TRUE(built->load(*spec_, model_plan()).ok());
  EXPECT_EQ(built->counters().from_cache, 1u);
  EXPECT_EQ(built->built_ahead(), 0u);
}

TEST_F(WorkshopTest, ReadyPlansAreThoseWithCodeHereOrInTheCache) {
  ASSERT_TRUE(workshop(opener(compiler_))->load(*spec_, other_plan(0)).ok());
  // Code of another device that shares the file.
  KernelPlan elsewhere = other_plan(0);
  elsewhere.target = Target::kSm90a;
  ASSERT_TRUE(workshop(opener(compiler_))->load(*spec_, elsewhere).ok());
  const auto second = workshop(opener(compiler_));
  ASSERT_TRUE(second->load(*spec_, other_plan(1)).ok());
  EXPECT_THAT(second->ready_plans(*spec_, Pass::kForward),
              testing::UnorderedElementsAre(other_plan(0), other_plan(1)));
  const auto ready = second->load_ready(*spec_, other_plan(0));
  ASSERT_TRUE(ready.ok());
  EXPECT_NE(ready->kernel, nullptr);
  const auto missing = second->load_ready(*spec_, other_plan(2));
  ASSERT_TRUE(missing.ok());
  EXPECT_EQ(missing->kernel, nullptr);
  EXPECT_EQ(compiler_->compiles, 3);
}

}  // namespace
}  // namespace attune::runtime_test

// What a plan look-up costs: the snapshot's hit and nearest bucket, alone and from 16 threads, next
// to the same question put to SQLite. Run it as it is; docs/performance.md has the numbers.
#include <SQLiteCpp/SQLiteCpp.h>
#include <benchmark/benchmark.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cache/overlay.hpp"

namespace attune {
namespace {

constexpr int kSpecs = 50, kShapesPerSpec = 40;
const std::string kDevice = "NVIDIA H200 / 132 SMs / 143771 MiB / driver 580.159";

std::string spec_name(int number) { return "spec-" + std::to_string(number); }
ProblemShape shape_of(int number) {
  return {.batch = 1 + number % 4,
          .heads = 32,
          .kv_heads = 8,
          .q_len = 128 << number % 8,
          .kv_len = 128 << number / 5};
}

// A cache file as a sweep of 50 specs by 40 shapes leaves it, and its snapshot.
class Fixture {
 public:
  Fixture() {
    std::string name = (std::filesystem::temp_directory_path() / "attune-bench-XXXXXX").string();
    directory_ = mkdtemp(name.data());
    {
      const auto store = open_store(file());
      // One measurement a problem through the store, so that the file is as it really is.
      for (int spec = 0; spec < kSpecs; ++spec) {
        for (int shape = 0; shape < kShapesPerSpec; ++shape) {
          (void)(*store)->record({.spec_hash = spec_name(spec),
                                  .device = kDevice,
                                  .shape = shape_of(shape),
                                  .protocol = "events-cold-l2-2"},
                                 {.plan = "sm80 forward sm_80 q128 k64 s2 w4 qreg frozen",
                                  .median_us = 100,
                                  .samples = 30,
                                  .conditions = "{}"});
        }
      }
    }
    overlay_ = Overlay::open({.user_file = file()});
    overlay_->refresh(kDevice);
  }
  ~Fixture() {
    overlay_.reset();
    std::filesystem::remove_all(directory_);
  }
  std::string file() const { return directory_ + "/attune.db"; }
  const Overlay& overlay() const { return *overlay_; }

 private:
  std::string directory_;
  std::unique_ptr<Overlay> overlay_;
};

const Fixture& fixture() {
  static const Fixture made;
  return made;
}

void look_up(benchmark::State& state, std::int64_t added_length) {
  const Overlay& overlay = fixture().overlay();
  std::vector<std::pair<SpecId, ProblemShape>> asked;
  for (int i = 0; i < 256; ++i) {
    ProblemShape shape = shape_of(i % kShapesPerSpec);
    shape.q_len += added_length;
    asked.emplace_back(SpecId::from_hash(spec_name(i % kSpecs)), shape);
  }
  std::size_t i = static_cast<std::size_t>(state.thread_index()) * 17;
  for (auto _ : state) {
    const auto& [spec, shape] = asked[++i % asked.size()];
    const auto view = overlay.snapshot();
    benchmark::DoNotOptimize(view->find(spec, Pass::kForward, shape).row->median_us);
  }
}

void BM_Hit(benchmark::State& state) { look_up(state, 0); }
void BM_NearestBucket(benchmark::State& state) { look_up(state, 3); }
BENCHMARK(BM_Hit)->Threads(1)->Threads(16)->UseRealTime();
BENCHMARK(BM_NearestBucket)->Threads(1)->Threads(16)->UseRealTime();

// The same hit by one prepared statement on an open connection: what a look-up would cost without
// the snapshot, at its best.
void BM_SqliteQuery(benchmark::State& state) {
  SQLite::Database database(fixture().file(), SQLite::OPEN_READONLY);
  SQLite::Statement query(
      database,
      "SELECT c.plan, min(m.median_us) FROM problem p JOIN measurement m ON m.problem = p.digest "
      "JOIN candidate c ON c.digest = m.candidate WHERE p.spec_hash = ? AND p.batch = ? AND "
      "p.heads = ? "
      "AND p.kv_heads = ? AND p.q_len = ? AND p.kv_len = ?");
  int i = 0;
  for (auto _ : state) {
    const ProblemShape shape = shape_of(++i % kShapesPerSpec);
    query.reset();
    query.bind(1, spec_name(i % kSpecs));
    query.bind(2, shape.batch);
    query.bind(3, shape.heads);
    query.bind(4, shape.kv_heads);
    query.bind(5, shape.q_len);
    query.bind(6, shape.kv_len);
    query.executeStep();
    benchmark::DoNotOptimize(query.getColumn(1).getDouble());
  }
}
BENCHMARK(BM_SqliteQuery);

// Everything from disk to a new snapshot; off the hot path.
void BM_Refresh(benchmark::State& state) {
  for (auto _ : state) {
    const auto overlay = Overlay::open({.user_file = fixture().file()});
    benchmark::DoNotOptimize(overlay->refresh(kDevice));
  }
}
BENCHMARK(BM_Refresh)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace attune

BENCHMARK_MAIN();

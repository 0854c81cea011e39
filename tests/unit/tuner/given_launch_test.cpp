// A host's launch: what is copied of it, who can read the copy, and what is measured and verified
// on it.
#include "tuner/measure/given_launch.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <numeric>

#include "runtime/reference/element_bits.hpp"
#include "tests/unit/cache/fixtures.hpp"
#include "tests/unit/tuner/fake_device.hpp"
#include "tuner/host/copy_launch.hpp"
#include "tuner/measure/local_executor.hpp"

namespace attune {
namespace {

using namespace tuner_testing;

AttentionSpec spec_of(const std::string& lines) {
  auto parsed = parse_spec("attune: 1\nname: given\ndtype: fp32\nhead_dim: 8\n" + lines, "");
  EXPECT_TRUE(parsed.ok()) << (parsed.ok() ? "" : render(parsed.error()));
  return *parsed;
}

Planted nothing(const KernelPlan&) { return {}; }

// Memory of a host in which every number is its own address.
std::vector<float> numbers(std::size_t count) {
  std::vector<float> all(count);
  std::iota(all.begin(), all.end(), 0.0f);
  return all;
}

TEST(CopyLaunch, BringsMatricesInOrderWhateverTheirStrides) {
  const AttentionSpec spec = spec_of("layout: bhsd\n");
  const ProblemShape shape{.batch = 2, .heads = 3, .kv_heads = 1, .q_len = 5, .kv_len = 2};
  FakeDevice device(nothing);
  const std::vector<float> memory = numbers(1000);
  att::LaunchParams params = params_of(spec, shape);
  params.q = &memory[100];
  params.q_stride = {-40, 8, 300};  // gaps, and the batch backwards
  params.k = &memory[0];
  params.k_stride = {0, 12, 0};  // both batch entries have one K
  params.v = &memory[500];
  params.v_stride = {50, -4, 0};
  const auto launch = copy_launch(device, spec, shape, Pass::kForward, params);
  ASSERT_TRUE(launch.ok()) << render(launch.error());
  const HostProblem problem = host_problem(spec, **launch);
  const auto at = [&](const std::vector<double>& all, std::int64_t heads, std::int64_t rows, int b,
                      int h, int i) {
    return all[static_cast<std::size_t>(((b * heads + h) * rows + i) * 8)];
  };
  for (int b = 0; b < 2; ++b) {
    for (int h = 0; h < 3; ++h) {
      for (int i = 0; i < 5; ++i)
        EXPECT_EQ(at(problem.q, 3, 5, b, h, i), 100 - 40 * b + 300 * h + 8 * i);
    }
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(at(problem.k, 1, 2, b, 0, i), 12 * i);
      EXPECT_EQ(at(problem.v, 1, 2, b, 0, i), 500 + 50 * b - 4 * i);
    }
  }
  EXPECT_EQ(problem.q[1] - problem.q[0], 1);
}

TEST(CopyLaunch, BringsDropoutsSeedFromTheDevice) {
  const ProblemShape shape{.batch = 1, .heads = 1, .kv_heads = 1, .q_len = 2, .kv_len = 2};
  FakeDevice device(nothing);
  const std::vector<float> memory = numbers(100);
  const std::array<unsigned long long, 2> state{7, 9};
  for (const char* seed : {"launch", "device"}) {
    const AttentionSpec spec = spec_of(std::string("dropout: {p: 0.5, seed: ") + seed + "}\n");
    att::LaunchParams params = params_of(spec, shape);
    params.q = params.k = params.v = memory.data();
    set_dropout(128, 7, 9, &params);
    if (spec.seed_on_device) set_dropout_state(state.data(), &params);
    const auto launch = copy_launch(device, spec, shape, Pass::kForward, params);
    ASSERT_TRUE(launch.ok()) << render(launch.error());
    EXPECT_EQ((*launch)->facts().dropout_seed, 7u) << seed;
    EXPECT_EQ((*launch)->facts().dropout_offset, 9u) << seed;
  }
}

TEST(CopyLaunch, RefusesOffsetsThatAnOracleWouldTripOver) {
  const AttentionSpec spec = spec_of("layout: thd\n");
  const ProblemShape shape{.batch = 2, .heads = 1, .kv_heads = 1, .q_len = 6, .kv_len = 6};
  FakeDevice device(nothing);
  const std::vector<float> memory = numbers(100);
  const std::array<int, 3> good{0, 2, 6}, descending{0, 4, 3}, beyond{0, 2, 7};
  const std::array<int, 2> used{2, 4}, too_many{3, 4};
  att::LaunchParams params = params_of(spec, shape);
  params.q = params.k = params.v = memory.data();
  const auto copied = [&](const int* cu_q, const int* used_kv) {
    params.sequences = {.cu_q = cu_q, .cu_kv = good.data(), .used_q = nullptr, .used_kv = used_kv};
    const auto launch = copy_launch(device, spec, shape, Pass::kForward, params);
    return launch.ok() ? "" : launch.error().message;
  };
  EXPECT_EQ(copied(good.data(), used.data()), "");
  EXPECT_EQ(copied(descending.data(), nullptr),
            "`cu_q` descends: sequence 1 begins at 4 and ends at 3");
  EXPECT_EQ(copied(beyond.data(), nullptr),
            "`cu_q` leads out of the tensors: sequence 1 ends at 7, and shape.q_len is 6");
  EXPECT_EQ(copied(good.data(), too_many.data()), "`used_kv` of sequence 0 is 3, not in 0 to 2");
}

LaunchFacts facts_of(const ProblemShape& shape) { return {.shape = shape, .softmax_scale = 0.5f}; }

TEST(GivenLaunch, OthersReadItAndCannotWriteIt) {
  const AttentionSpec spec = spec_of(
      "tensors:\n  doc: {dtype: int32, dims: [batch, kv_len]}\nmask: doc[b, q_idx] == doc[b, "
      "kv_idx]\n");
  const ProblemShape shape{.batch = 1, .heads = 1, .kv_heads = 1, .q_len = 3, .kv_len = 3};
  auto made = GivenLaunch::make(spec, facts_of(shape));
  ASSERT_TRUE(made.ok()) << render(made.error());
  const std::array<std::int32_t, 3> documents{4, 4, 9};
  const auto room = (*made)->room(LaunchPart::kTensor, 0);
  ASSERT_EQ(room.size(), sizeof documents);
  std::memcpy(room.data(), documents.data(), sizeof documents);
  const std::string path = (*made)->publish();

  const auto opened = GivenLaunch::open(spec, path);
  ASSERT_TRUE(opened.ok()) << render(opened.error());
  EXPECT_EQ((*opened)->facts().shape, shape);
  EXPECT_EQ((*opened)->facts().softmax_scale, 0.5f);
  AttentionSpec described = spec;
  give_tensors(**opened, described);
  EXPECT_EQ(described.samples[0].given->values, (std::vector<double>{4, 4, 9}));

  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd >= 0) {
    const char zero = 0;
    EXPECT_EQ(pwrite(fd, &zero, 1, 0), -1) << "a worker could change what others measure on";
    EXPECT_NE(ftruncate(fd, 0), 0);
    close(fd);
  }
  EXPECT_EQ(GivenLaunch::open(spec_of(""), path).error().id, "given-launch");
}

// A problem of its own store, launch and fakes.
struct Bench {
  explicit Bench(PlantedBehaviour behaviour, Pass pass = Pass::kForward)
      : device(std::move(behaviour)), store(std::move(*open_store(directory.file()))) {
    LaunchFacts facts = facts_of(shape);
    facts.has_d_o = pass == Pass::kBackward;
    launch = *GivenLaunch::make(spec, facts);
    const HostProblem drawn = random_problem(spec, shape, 5);
    const auto put = [&](LaunchPart part, const std::vector<double>& values) {
      const auto bytes = encode(spec.dtype, values);
      std::memcpy(launch->room(part).data(), bytes.data(), bytes.size());
    };
    put(LaunchPart::kQ, drawn.q);
    put(LaunchPart::kK, drawn.k);
    put(LaunchPart::kV, drawn.v);
    if (facts.has_d_o) put(LaunchPart::kDO, drawn.q);
    const float mark = kMark;
    std::memcpy(launch->room(LaunchPart::kQ).data(), &mark, sizeof mark);
  }
  Status verified(Pass pass = Pass::kForward) {
    LocalExecutor executor(spec, shape, device, std::array<Compiler*, 1>{&compiler}, store.get(), 3,
                           pass, launch.get());
    const KernelPlan plan = plans_by_cost(spec, shape, device.facts(), pass)->front();
    EXPECT_TRUE(executor.compile(plan).ok());
    return executor.verify(plan);
  }

  static constexpr float kMark = 7;
  cache_testing::TemporaryDirectory directory;
  FakeDevice device;
  FakeCompiler compiler;
  std::unique_ptr<Store> store;
  AttentionSpec spec = spec_of("softmax_scale: 0.5\n");
  const ProblemShape shape{.batch = 1, .heads = 2, .kv_heads = 1, .q_len = 5, .kv_len = 9};
  std::unique_ptr<GivenLaunch> launch;
};

TEST(GivenLaunch, CandidatesAreVerifiedOnItToo) {
  Bench right(nothing);
  EXPECT_TRUE(right.verified().ok());
  Bench wrong([](const KernelPlan&) { return Planted{.wrong_where_q_begins = Bench::kMark}; });
  const Status status = wrong.verified();
  ASSERT_FALSE(status.ok()) << "wrong on the host's numbers alone";
  EXPECT_EQ(rejection_reason(status.error()), "doubtful");
}

TEST(GivenLaunch, BackwardCandidatesAreVerifiedBesideIt) {
  EXPECT_TRUE(Bench(nothing, Pass::kBackward).verified(Pass::kBackward).ok());
  Bench wrong([](const KernelPlan& plan) { return Planted{.wrong = plan.pass == Pass::kBackward}; },
              Pass::kBackward);
  EXPECT_EQ(rejection_reason(wrong.verified(Pass::kBackward).error()), "miscompute");
}

TEST(GivenLaunch, IsWhatIsTimed) {
  Bench bench(nothing);
  const auto problems =
      make_problems(Pass::kForward, {bench.spec, bench.shape, bench.device, bench.compiler,
                                     bench.store.get(), 3, bench.launch.get()});
  const auto timed = problems->timed();
  ASSERT_TRUE(timed.ok()) << render(timed.error());
  EXPECT_EQ(*static_cast<const float*>((*timed)->input()), Bench::kMark);
  EXPECT_NE((*timed)->input(), bench.launch->bytes(LaunchPart::kQ).data()) << "of its own memory";
}

}  // namespace
}  // namespace attune

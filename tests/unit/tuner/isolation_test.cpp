#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>

#include "generator/support/hash.hpp"
#include "tests/unit/cache/fixtures.hpp"
#include "tests/unit/tuner/fake_executor.hpp"
#include "tests/unit/tuner/planted.hpp"
#include "tuner/isolation/isolated_executor.hpp"
#include "tuner/isolation/worker.hpp"
#include "tuner/isolation/workers_cache.hpp"

namespace attune {
namespace {

using namespace tuner_testing;
using ::testing::HasSubstr;

// Long enough for a healthy reply on a busy machine; a candidate that hangs costs it.
constexpr std::chrono::milliseconds kDeadline{3000};

IsolationOptions options(const std::string& worker = FAKE_WORKER) {
  return {.worker_command = {worker}, .compile_deadline = kDeadline, .run_deadline = kDeadline};
}

WorkerProblem problem() {
  return {.spec_yaml = "attune: 1",
          .spec_file = "x.yaml",
          .shape = {2, 8, 4, 128, 256},
          .device = "cuda:0",
          .compilers = {"nvrtc", "llvm"},
          .cache = "x.db",
          .seed = 0x8000000000000001};
}

Result<std::string> digest(const Candidate& candidate) {
  return hash128_hex(to_string(candidate.plan));
}

TEST(Isolation, EveryKindOfCulpritCostsOnlyItself) {
  cache_testing::TemporaryDirectory directory;
  const auto store = std::move(*open_store(directory.file()));
  IsolatedExecutor executor(options());
  executor.open(problem(), digest);
  SearchProblem space{.key = cache_testing::measurement_key()};
  for (int tile_q = 16; tile_q <= 224; tile_q += 16)
    space.plans.push_back(sm80_plan(tile_q, 64, 2, 4));
  double seconds = 0;
  const auto result = search(
      space, executor, *store, {.compile_threads = 2}, [&] { return ++seconds; },
      [](const TuneProgress&) { return true; });
  ASSERT_TRUE(result.ok()) << render(result.error());
  EXPECT_EQ(result->plan, sm80_plan(112, 64, 2, 4)) << "the fastest of those that work";
  EXPECT_EQ(result->rejected, 8);
  EXPECT_EQ(result->measured, 6);
  EXPECT_EQ(executor.restarts(), 4) << "hang, both crashes and fault";

  std::map<std::string, Rejection> by_plan;
  const auto rejections = store->rejections(space.key).value();
  for (const Rejection& r : rejections) by_plan[planted(*parse_plan(r.plan))] = r;
  EXPECT_EQ(by_plan["compile-error"].reason, "compile");
  EXPECT_EQ(by_plan["compile-crash"].reason, "compile");
  EXPECT_THAT(by_plan["compile-crash"].detail, HasSubstr("assertion failed: planted"));
  EXPECT_EQ(by_plan["compile-hang"].reason, "compile");
  EXPECT_THAT(by_plan["compile-hang"].detail, HasSubstr("no answer within 3.0 s"));
  EXPECT_EQ(by_plan["late-crash"].reason, "fault");
  EXPECT_EQ(by_plan["hang"].reason, "hang");
  EXPECT_EQ(by_plan["crash"].reason, "fault");
  EXPECT_THAT(by_plan["crash"].detail, HasSubstr("signal 11"));
  EXPECT_EQ(by_plan["fault"].reason, "fault");
  EXPECT_EQ(by_plan["miscompute"].reason, "miscompute");
  const auto measurements = store->measurements(space.key).value();
  EXPECT_EQ(measurements.front().conditions, R"({"sm_mhz": 1980})");
}

TEST(Isolation, WorkersServeManyProblems) {
  IsolatedExecutor executor(options());
  const KernelPlan plan = sm80_plan(112, 64, 2, 4);
  for (int i = 0; i < 3; ++i) {
    executor.open(problem(), digest);
    EXPECT_EQ(executor.conditions(), "{}") << "nobody is there to ask";
    ASSERT_TRUE(executor.prepare().ok());
    EXPECT_EQ(executor.conditions(), R"({"sm_mhz": 1980})");
    ASSERT_TRUE(executor.compile(plan).ok());
    ASSERT_TRUE(executor.verify(plan).ok());
    EXPECT_DOUBLE_EQ(*executor.time_us(plan), 112);
    executor.release(plan);
  }
  EXPECT_EQ(executor.restarts(), 0);
}

// No time at all is granted beside what is expected.
TEST(Isolation, ALaunchMayTakeWhatIsExpectedOfIt) {
  IsolationOptions impatient = options();
  impatient.run_deadline = std::chrono::milliseconds(0);
  IsolatedExecutor executor(impatient);
  const KernelPlan plan = sm80_plan(112, 64, 2, 4);
  constexpr double kHourUs = 3.6e9;
  executor.open(problem(), digest, [&](const Candidate& candidate) {
    EXPECT_EQ(candidate.plan, plan);
    return kHourUs;
  });
  EXPECT_TRUE(executor.verify(plan).ok());
  EXPECT_TRUE(executor.time_us(plan).ok());
  EXPECT_EQ(executor.restarts(), 0);
}

TEST(LaunchDeadline, FollowsTheExpectedTime) {
  using std::chrono::hours;
  using std::chrono::seconds;
  LaunchDeadline deadline(seconds(20));
  EXPECT_EQ(deadline.of(0, 1), seconds(20)) << "nothing is known";
  EXPECT_EQ(deadline.of(50, 1), seconds(20)) << "half a millisecond is nothing";
  EXPECT_EQ(deadline.of(30e6, 1), seconds(320));
  EXPECT_EQ(deadline.of(30e6, 4), seconds(1220));
  EXPECT_LT(deadline.of(1e18, 4), hours(1000)) << "what poll() takes";
}

TEST(LaunchDeadline, FollowsTheLongestLaunchThatWasSeen) {
  LaunchDeadline deadline(std::chrono::seconds(20));
  deadline.note(60e6);
  deadline.note(1e3);
  EXPECT_EQ(deadline.of(1e6, 1), std::chrono::seconds(620));
}

TEST(Isolation, AMissingDeviceIsNoCandidatesFault) {
  IsolatedExecutor executor(options());
  WorkerProblem without = problem();
  without.device = "cuda:none";
  executor.open(without, digest);
  EXPECT_TRUE(executor.compile(sm80_plan(112, 64, 2, 4)).ok()) << "compiling needs no device";
  const Status status = executor.verify(sm80_plan(112, 64, 2, 4));
  EXPECT_EQ(status.error().id, "gpu-missing");
  EXPECT_EQ(status.error().kind, ErrorKind::kUnavailable);
}

TEST(Isolation, AProgramThatIsNoWorkerIsNoCandidatesFault) {
  IsolatedExecutor absent(options("/nonexistent/worker"));
  absent.open(problem(), digest);
  EXPECT_EQ(absent.compile(sm80_plan(112, 64, 2, 4)).error().id, "worker-start");
  IsolatedExecutor other(options("/bin/true"));
  other.open(problem(), digest);
  EXPECT_EQ(other.compile(sm80_plan(112, 64, 2, 4)).error().id, "worker-died");
}

TEST(ChildProcess, IsToldApartFromItsDeath) {
  auto child = ChildProcess::start({"/bin/cat"});
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(*child->ask("hello", kDeadline), "hello");
  kill(child->pid(), SIGKILL);
  EXPECT_THAT(child->ask("hello", kDeadline).error().message, HasSubstr("signal 9"));
  EXPECT_FALSE(child->running());
}

TEST(WorkersCache, IsTheCallersWhereThatKeepsKernels) {
  cache_testing::TemporaryDirectory directory;
  const auto store = std::move(*open_store(directory.file()));
  EXPECT_EQ(WorkersCache(*store).path(), directory.file());
}

TEST(WorkersCache, IsOnesOwnWhereOthersMayWriteTheCallers) {
  cache_testing::TemporaryDirectory directory;
  ASSERT_EQ(chmod(directory.file("").c_str(), 0777), 0);
  const auto store = std::move(*open_store(directory.file()));
  std::string folder;
  {
    const WorkersCache cache(*store);
    EXPECT_NE(cache.path(), directory.file());
    folder = std::filesystem::path(cache.path()).parent_path().string();
    const auto shared = std::move(*open_store(cache.path()));
    const BuildKey key = cache_testing::build_key(0);
    ASSERT_TRUE(shared->put_code(key, cache_testing::code(0)).ok());
    EXPECT_TRUE(shared->find_code(key)->has_value());
  }
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST(Protocol, RoundTrips) {
  WorkerRequest request{.problem = problem()};
  request.problem.spec_yaml = "a\nb: \"c\"\t\\";
  const auto back = decode_request(encode(request));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->problem.spec_yaml, request.problem.spec_yaml);
  EXPECT_EQ(back->problem.shape, request.problem.shape);
  EXPECT_EQ(back->problem.seed, request.problem.seed);
  EXPECT_EQ(back->problem.compilers, request.problem.compilers);
  EXPECT_EQ(back->problem.pass, Pass::kForward);
  EXPECT_EQ(back->problem.sequences, SequenceWords{});
  request.problem.sequences = {
      .lengths = "uniform(low=0.3, high=1)", .page_size = 64, .shared_prefix = 7};
  EXPECT_EQ(decode_request(encode(request))->problem.sequences, request.problem.sequences);
  request.problem.pass = Pass::kBackward;
  EXPECT_EQ(decode_request(encode(request))->problem.pass, Pass::kBackward);
  const auto compile = decode_request(
      encode({.operation = WorkerRequest::Operation::kCompile, .plan = "p", .compiler = 1}));
  EXPECT_EQ(compile->compiler, 1);
  const auto error =
      decode_reply(encode(Result<WorkerReply>(candidate_error("hang", "bytes \xff\xfe", "log"))));
  EXPECT_EQ(error.error().id, "candidate-hang");
  EXPECT_EQ(error.error().detail, "log");
  const auto reply = decode_reply(encode(Result<WorkerReply>(WorkerReply{.time_us = 12.5})));
  EXPECT_DOUBLE_EQ(reply->time_us, 12.5);
}

TEST(Worker, TakesWhatIsSaidOfSequences) {
  cache_testing::TemporaryDirectory directory;
  WorkerRequest request{
      .problem = {.spec_yaml = "attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\nlayout: thd\n",
                  .shape = {2, 8, 4, 128, 256},
                  .cache = directory.file()}};
  const auto session = make_local_session();
  request.problem.sequences.lengths = "equal";
  EXPECT_TRUE(session->handle(request).ok());
  request.problem.sequences.lengths = "any";
  const auto refused = session->handle(request);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().id, "lengths-unknown");
}

TEST(Protocol, GarbageIsAnError) {
  for (const char* line :
       {"", "{", "[]", "null", "{\"op\": 3}", "{\"op\": \"dance\"}", "{\"op\": \"time\"}",
        "{\"error\": {\"kind\": 99}}", "{\"op\": \"open\", \"spec\": \"\", \"shape\": \"?\"}"}) {
    EXPECT_FALSE(decode_request(line).ok()) << line;
    EXPECT_FALSE(decode_reply(line).ok()) << line;
  }
}

}  // namespace
}  // namespace attune

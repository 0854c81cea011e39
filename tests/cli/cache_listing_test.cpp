// What `cache ls` and `cache show` tell of a file that another machine filled.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/store.hpp"
#include "runtime/specs/spec_file.hpp"
#include "tests/cli/process.hpp"

namespace attune::cli_test {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kMine =
    "attune: 1\nname: my_window\ndtype: bf16\nhead_dim: 64\n"
    "mask: causal and q_pos - kv_idx < 77\n";

MeasurementKey key_of(const AttentionSpec& spec) {
  return {.spec_hash = spec_hash(spec),
          .device = "NVIDIA H200 / 132 SMs / 143771 MiB / driver 580.159",
          .shape = {.q_len = 2048, .kv_len = 2048},
          .protocol = "events-cold-l2-2"};
}

// One candidate of a spec, rejected with `detail`.
std::string with_rejection(const std::string& name, const AttentionSpec& spec,
                           const std::string& detail) {
  const std::string path = scratch_directory() + "/" + name;
  auto store = open_store(path).value();
  EXPECT_TRUE(store
                  ->reject(key_of(spec), {.plan = "sm80 forward sm_90a q128 k256 s2 w4",
                                          .build_digest = "d",
                                          .reason = "miscompute",
                                          .detail = detail})
                  .ok());
  return path;
}

TEST(CacheList, NamesTheLibrarysSpecsAndThoseOfTheCommandLine) {
  const AttentionSpec mine = parse_spec(kMine, "").value();
  const std::string cache = with_rejection("names.db", mine, "off");
  const std::string hash = spec_hash(mine).substr(0, 8);
  const Outcome unnamed = attune({"cache", "ls", "--cache", cache});
  EXPECT_THAT(unnamed.out, HasSubstr(hash));
  EXPECT_THAT(unnamed.err, HasSubstr("`attune cache ls SPEC...` names it"));
  const Outcome named = attune({"cache", "ls", scratch_file("mine.yaml", kMine), "--cache", cache});
  EXPECT_THAT(named.out, HasSubstr("my_window"));
  EXPECT_THAT(named.out, Not(HasSubstr(hash)));
  EXPECT_THAT(named.err, Not(HasSubstr("names it")));
}

TEST(CacheShow, SaysWhyACandidateWasRejected) {
  const AttentionSpec causal = load_spec("causal").value();
  const std::string cache =
      with_rejection("reasons.db", causal, "o row 3: 0.5, should be 0.25\nat q_len=2048\n");
  const Outcome outcome = attune({"cache", "show", "causal", "--cache", cache});
  EXPECT_THAT(outcome.out, HasSubstr("rejected (miscompute): sm80 forward sm_90a q128 k256 s2 w4\n"
                                     "  o row 3: 0.5, should be 0.25\n"
                                     "  at q_len=2048\n"));
}

TEST(CacheShow, CutsALongLogShort) {
  std::string log;
  for (int line = 0; line < 100; ++line) log += "line " + std::to_string(line) + "\n";
  const std::string cache = with_rejection("log.db", load_spec("causal").value(), log);
  const Outcome outcome = attune({"cache", "show", "causal", "--cache", cache});
  EXPECT_THAT(outcome.out, HasSubstr("  line 3\n  ... (--json shows all)\n"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("line 4")));
}

}  // namespace
}  // namespace attune::cli_test

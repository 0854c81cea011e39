// Every fault that tests/gpu plants has its place in the templates as they are, and what it makes
// of them compiles (for a mask of each family).
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "generator/emit/emit.hpp"
#include "runtime/support/parallel.hpp"
#include "tests/gpu/counter_faults.hpp"
#include "tests/gpu/gradient_faults.hpp"
#include "tests/gpu/head_dim_faults.hpp"
#include "tests/gpu/key_piece_faults.hpp"
#include "tests/gpu/lost_tile_faults.hpp"
#include "tests/gpu/magnitude_faults.hpp"
#include "tests/gpu/mask_edge_faults.hpp"
#include "tests/gpu/page_row_faults.hpp"
#include "tests/gpu/planted_faults.hpp"
#include "tests/gpu/raised_reference_faults.hpp"
#include "tests/gpu/shared_reciprocal_faults.hpp"
#include "tests/verification/mla.hpp"
#include "tests/verification/packed_backward_checks.hpp"

namespace attune {
namespace {

// What has to compile. Faults that leave each other's places alone do so in one source: a kernel
// takes seconds.
struct Job {
  KernelPlan plan;
  std::string faults, source, symbol, wrong;
};
void add_job(const planted::Fault& fault, const GeneratedKernel& kernel, const KernelPlan& plan,
             std::vector<Job>* jobs) {
  for (Job& job : *jobs) {
    if (job.symbol != kernel.symbol) continue;
    auto both = planted::with_fault(job.source, fault);
    if (!both.ok()) continue;
    job.source = *std::move(both);
    job.faults += "; " + fault.name;
    return;
  }
  const auto wrong = planted::with_fault(kernel.source, fault);
  EXPECT_TRUE(wrong.ok()) << fault.name << ": " << render(wrong.error());
  if (wrong.ok()) jobs->push_back({plan, fault.name, *wrong, kernel.symbol, {}});
}

void expect_to_compile(std::vector<Job> jobs, Compiler& compiler) {
  parallel_for(static_cast<std::int64_t>(jobs.size()), [&](std::int64_t i) {
    Job& job = jobs[static_cast<std::size_t>(i)];
    const auto code = compiler.compile(job.source, job.symbol, job.plan.target);
    if (!code.ok()) job.wrong = code.error().message + "\n" + code.error().detail.substr(0, 2000);
  });
  for (const Job& job : jobs) {
    EXPECT_EQ(job.wrong, "") << to_string(job.plan) << " with " << job.faults;
  }
}

TEST(PlantedSource, Compiles) {
  auto compiler = open_compiler(Target::kSm90a);
  if (!compiler.ok()) GTEST_SKIP() << compiler.error().message;
  const DeviceFacts facts = device_facts(Target::kSm90a);
  std::vector<Job> jobs;
  for (const planted::Problem& problem : planted::problems(4, 131072)) {
    if (problem.length != "8192") continue;
    const auto spec =
        parse_spec("attune: 1\nname: t\ndtype: bf16\nhead_dim: 128\n" + problem.yaml, "t.yaml");
    ASSERT_TRUE(spec.ok()) << render(spec.error());
    for (const Family family : {Family::kSm80, Family::kSm90a, Family::kDecode}) {
      const std::vector<KernelPlan> plans = legal_plans(*spec, family, facts);
      if (plans.empty()) continue;  // no dropout in the decode family
      const KernelPlan plan = *std::ranges::min_element(
          plans, {}, [&](const KernelPlan& p) { return cost_us(*spec, p, problem.shape, facts); });
      for (const planted::GpuFault& fault :
           planted::gpu_faults(family, planted::site_of(problem, *spec))) {
        const auto kernel = emit(*spec, plan);
        ASSERT_TRUE(kernel.ok()) << render(kernel.error());
        const auto edited = planted::with_fault(kernel->source, fault.fault);
        EXPECT_TRUE(edited.ok()) << fault.fault.name << ": " << render(edited.error());
        if (problem.mask != (family == Family::kDecode ? "causal" : "window")) continue;
        // A small tile's kernel says as much, and compiles sooner.
        const auto small = emit(*spec, plans.front());
        ASSERT_TRUE(small.ok()) << render(small.error());
        add_job(fault.fault, *small, plans.front(), &jobs);
      }
    }
  }
  expect_to_compile(std::move(jobs), **compiler);
}

// Whether the source of a plan has a place for each.
void expect_places_in(const AttentionSpec& spec, const KernelPlan& plan,
                      const std::vector<planted::Fault>& faults) {
  const auto kernel = emit(spec, plan);
  ASSERT_TRUE(kernel.ok()) << render(kernel.error());
  for (const planted::Fault& fault : faults) {
    const auto edited = planted::with_fault(kernel->source, fault);
    EXPECT_TRUE(edited.ok()) << to_string(plan) << ", " << fault.name << ": "
                             << render(edited.error());
  }
}

void expect_places_in(const std::string& yaml, const std::string& text,
                      const std::vector<planted::Fault>& faults) {
  const auto spec = parse_spec(yaml, "t");
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  const auto plan = parse_plan(text);
  ASSERT_TRUE(plan.ok()) << render(plan.error());
  expect_places_in(*spec, *plan, faults);
}

TEST(PlantedSource, OfPackedGradientsHasItsPlaces) {
  const auto spec =
      parse_spec(std::string("attune: 1\nname: t\ndtype: bf16\n") + packed::kLearningSpecs[0], "t");
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  const auto families = families_for(*spec, Target::kSm90a, Pass::kBackward);
  ASSERT_TRUE(families.ok()) << render(families.error());
  EXPECT_EQ(*families, (std::vector<Family>{Family::kSm90a, Family::kSm90aOrdered, Family::kSm80}));
  for (const Family family : *families) {
    const auto plans = legal_plans(*spec, family, device_facts(Target::kSm90a), Pass::kBackward);
    ASSERT_FALSE(plans.empty());
    expect_places_in(*spec, plans.front(), planted::packed_gradient_faults(family));
  }
}

TEST(PlantedSource, OfKeyPiecesHasItsPlaces) {
  expect_places_in("attune: 1\nname: t\ndtype: bf16\nhead_dim: 128\n",
                   "sm90a forward sm_90a w2 k128 s2 b2 qreg c1 single g1 frozen tma p4",
                   planted::key_piece_faults());
}

TEST(PlantedSource, OfRaisedReferencesHasItsPlaces) {
  std::vector<planted::Fault> faults = planted::raised_reference_faults();
  faults.push_back(planted::kUnscaledPiece);
  expect_places_in("attune: 1\nname: t\ndtype: bf16\nhead_dim: 128\n",
                   "sm90a forward sm_90a w2 k64 s4 b1 qreg c1 persistent g1 frozen tma", faults);
}

TEST(PlantedSource, OfPackedPiecesHasItsPlaces) {
  expect_places_in("attune: 1\nname: t\ndtype: bf16\nhead_dim: 128\nlayout: thd\n",
                   "sm90a forward sm_90a w2 k128 s2 b2 c1 longest g16 frozen tma p16",
                   {planted::kept_counters(), planted::skipped_items()});
}

TEST(PlantedSource, OfRowsFromPagesHasItsPlaces) {
  expect_places_in("attune: 1\nname: t\ndtype: bf16\nhead_dim: 128\nlayout: paged\nmask: causal\n",
                   "sm90a forward sm_90a w2 k128 s2 b2 qreg c1 longest g16 frozen tma rows",
                   planted::page_row_faults());
}

TEST(PlantedSource, OfTheMlaFamilyHasItsPlaces) {
  const auto spec = parse_spec(
      std::string("attune: 1\nname: t\ndtype: bf16\nv_in_k: true\n") + mla::kFaultySpec, "t");
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  for (const auto& [text, faults] : mla::faulty_plans()) {
    const auto plan = parse_plan(std::string("mla forward sm_90a ") + text);
    ASSERT_TRUE(plan.ok()) << render(plan.error());
    EXPECT_TRUE(check_plan(*spec, *plan, device_facts(Target::kSm90a)).ok());
    expect_places_in(*spec, *plan, faults);
  }
}

TEST(PlantedSource, OfTheMlaFamilysStretchesHasItsPlaces) {
  const auto spec =
      parse_spec(std::string("attune: 1\nname: t\ndtype: bf16\nv_in_k: true\nlayout: thd\n") +
                     mla::kSequenceSpecs[0],
                 "t");
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  const auto plan = parse_plan("mla forward sm_90a q64 k64 s2 w8 p16 stretches");
  ASSERT_TRUE(plan.ok()) << render(plan.error());
  std::vector<planted::Fault> faults = mla::stretch_faults();
  for (const planted::Fault& fault : mla::part_faults()) faults.push_back(fault);
  expect_places_in(*spec, *plan, faults);
}

TEST(PlantedSource, OfSharedReciprocalsHasItsPlaces) {
  const auto spec = parse_spec(
      "attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\nmask: causal\n"
      "score: 30 * tanh(score / 30)\n",
      "t");
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    for (const Family family : {Family::kSm80, Family::kSm90a}) {
      const auto plans = legal_plans(*spec, family, device_facts(Target::kSm90a), pass);
      ASSERT_FALSE(plans.empty());
      std::vector<planted::Fault> faults = {planted::kExchangedShares};
      if (pass == Pass::kForward) faults.push_back(planted::kDeadWithAScore);
      expect_places_in(*spec, plans.front(), faults);
    }
  }
}

TEST(PlantedSource, OfLostTilesHasItsPlace) {
  const auto spec = parse_spec(
      std::string("attune: 1\nname: t\ndtype: bf16\nhead_dim: 128\n") + planted::kRisingScore, "t");
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  const auto plan = parse_plan("sm80 forward sm_80 q128 k64 s2 w4 c32 u1 frozen");
  ASSERT_TRUE(plan.ok()) << render(plan.error());
  expect_places_in(*spec, *plan, {planted::kLostForGood});
}

TEST(PlantedSource, OfMagnitudesHasItsPlaces) {
  const auto spec = parse_spec(
      "attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\nmask: causal\n"
      "score: min(score, -1e12 * (1 + q_idx % 2))\n",
      "t");
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  for (const planted::FaultOfFamily& planted : planted::magnitude_faults()) {
    const auto plans =
        legal_plans(*spec, planted.family, device_facts(Target::kSm90a), Pass::kForward);
    ASSERT_FALSE(plans.empty());
    expect_places_in(*spec, plans.front(), {planted.fault});
  }
}

TEST(PlantedSource, OfMaskEdgesHasItsPlaces) {
  for (const planted::EdgeSpec& edges : planted::kEdgeSpecs) {
    const auto spec = parse_spec("attune: 1\n" + planted::yaml_of(edges), "t");
    ASSERT_TRUE(spec.ok()) << render(spec.error());
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      const auto families = families_for(*spec, Target::kSm90a, pass);
      ASSERT_TRUE(families.ok()) << render(families.error());
      for (const Family family : *families) {
        const auto plans = legal_plans(*spec, family, device_facts(Target::kSm90a), pass);
        if (plans.empty()) continue;
        expect_places_in(*spec, plans.front(), planted::edge_faults(pass));
      }
    }
  }
}

// Whether the first of a spec's plans of the sm90a family that `is_meant` has a place for each.
void expect_places(const std::string& lines, Pass pass, const std::vector<planted::Fault>& faults,
                   bool (*is_meant)(const KernelPlan&)) {
  SCOPED_TRACE(lines);
  const auto spec = parse_spec("attune: 1\nname: t\ndtype: bf16\n" + lines, "t");
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  const auto plans = legal_plans(*spec, Family::kSm90a, device_facts(Target::kSm90a), pass);
  const auto plan = std::ranges::find_if(plans, is_meant);
  ASSERT_NE(plan, plans.end());
  expect_places_in(*spec, *plan, faults);
}

TEST(PlantedSource, OfHeadDimsHasItsPlaces) {
  expect_places("head_dim: 24\n", Pass::kForward, {planted::columns_of_the_next_head()},
                [](const KernelPlan& plan) { return !std::get<Sm90aPlan>(plan.tile).tma_store; });
  expect_places("head_dim: 40\n", Pass::kBackward,
                {planted::last_block_not_added(), planted::last_block_not_zeroed()},
                [](const KernelPlan& plan) { return tile_shape(plan).q == 64; });
  expect_places("head_dim: 72\n", Pass::kBackward, {planted::last_warp_adds_nothing()},
                [](const KernelPlan& plan) { return tile_shape(plan).q == 80; });
}

TEST(PlantedSource, OfCountersHasItsPlaces) {
  const auto takes_items = [](const KernelPlan& plan) {
    return std::get<Sm90aBackwardPlan>(plan.tile).takes_items;
  };
  const auto any = [](const KernelPlan&) { return true; };
  expect_places("head_dim: 64\n", Pass::kBackward, planted::counter_faults(), takes_items);
  expect_places("head_dim: 128\nmask: causal\n", Pass::kBackward, planted::passing_faults(), any);
  std::vector<planted::Fault> faults = planted::apart_faults();
  faults.push_back(planted::early_tile_fault());
  std::ranges::copy(planted::skipped_tile_faults(), std::back_inserter(faults));
  expect_places("head_dim: 128\nmask: causal\n", Pass::kBackward, faults, any);
}

TEST(PlantedSource, OfTheBackwardPassCompiles) {
  auto compiler = open_compiler(Target::kSm90a);
  if (!compiler.ok()) GTEST_SKIP() << compiler.error().message;
  std::vector<Job> jobs;
  const auto add = [&](const AttentionSpec& spec, const KernelPlan& plan) {
    const auto kernel = emit(spec, plan);
    ASSERT_TRUE(kernel.ok()) << render(kernel.error());
    for (const planted::Fault& fault : planted::gradient_faults(plan))
      add_job(fault, *kernel, plan, &jobs);
  };
  const auto wide =
      parse_spec("attune: 1\nname: t\ndtype: bf16\nhead_dim: 128\nmask: causal\n", "t.yaml");
  ASSERT_TRUE(wide.ok()) << render(wide.error());
  for (const Family family : {Family::kSm80, Family::kSm90a, Family::kSm90aOrdered}) {
    const auto plans = legal_plans(*wide, family, device_facts(Target::kSm90a), Pass::kBackward);
    ASSERT_FALSE(plans.empty());
    add(*wide, plans.front());
  }
  const auto wider =
      parse_spec("attune: 1\nname: t\ndtype: bf16\nhead_dim: 192\nmask: causal\n", "t.yaml");
  ASSERT_TRUE(wider.ok()) << render(wider.error());
  const auto wider_plans =
      legal_plans(*wider, Family::kSm90aWide, device_facts(Target::kSm90a), Pass::kBackward);
  ASSERT_FALSE(wider_plans.empty());
  add(*wider, wider_plans.front());
  for (const std::string accuracy : {"fast", "relaxed"}) {
    const auto narrow = parse_spec(
        "attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\naccuracy: " + accuracy + "\n", "t.yaml");
    ASSERT_TRUE(narrow.ok()) << render(narrow.error());
    const auto plans =
        legal_plans(*narrow, Family::kSm90a, device_facts(Target::kSm90a), Pass::kBackward);
    const auto with_long_tiles = std::ranges::find_if(
        plans, [](const KernelPlan& plan) { return tile_shape(plan).q == 128; });
    ASSERT_NE(with_long_tiles, plans.end());
    add(*narrow, *with_long_tiles);
  }
  expect_to_compile(std::move(jobs), **compiler);
}

}  // namespace
}  // namespace attune

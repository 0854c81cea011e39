#include "tuner/search/search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "generator/plan/distance.hpp"
#include "runtime/support/processors.hpp"
#include "tuner/search/compile_ahead.hpp"
#include "tuner/search/ledger.hpp"
#include "tuner/search/race.hpp"
#include "tuner/search/seeds.hpp"

namespace attune {
namespace {

// The search goes on around so many of the best, in waves of at most so many candidates, until a
// wave gains less than this share. docs/lab/search.md, "The constants", has the measurements that
// chose these.
constexpr std::size_t kParents = 3;
constexpr std::size_t kWave = 16;
constexpr double kLeastGain = 0.005;
// Of a small space, whose exhaustive search is short too, it asks for no more than such a share, or
// one wave, while nothing is faster than the model's first guess by more than this.
constexpr std::size_t kShare = 16;
constexpr double kGuessHolds = 0.01;
// An exhaustive search knows what it will ask for, so that no core need wait for a wave's last
// compile.
constexpr std::size_t kExhaustiveWave = 64;
// The best so many are raced once more against each other at the end, in so many times as many
// rounds, as every compiler builds them: they were measured at different times, and compilers
// differ by less than plans. The cache tells a final's times by their rounds.
constexpr std::size_t kFinalists = 6;
constexpr int kFinalRounds = 3;
// ... two at least, and all that are within this factor of the best: more than medians of one
// candidate differ between times.
constexpr double kFinalWithin = 1.05;

struct Known {
  Candidate candidate;
  std::string text;  // of the plan
  CompiledFacts facts;
  double median_us = 0;
  int measurements = 0;
};

class Search {
 public:
  Search(const SearchProblem& problem, Executor& executor, Store& store, const TuneOptions& options,
         const Clock& clock, const TuneObserver& observer)
      : problem_(problem),
        executor_(executor),
        ledger_(store, problem.key),
        options_(options),
        clock_(clock),
        observer_(observer),
        began_(clock()),
        compiler_(executor,
                  options.compile_threads > 0 ? options.compile_threads : usable_processors()) {}

  Result<TuneResult> run() {
    ledger_.read(options_.force);
    std::vector<KernelPlan> wave = first_wave();
    while (!wave.empty() && budget() > 0 && !result_.stopped) {
      const double before_us = best_median_us();
      ATT_CHECK(run_wave(wave));
      const bool gained = is_gain(best_median_us(), before_us);
      wave = options_.exhaustive ? cheapest_unasked()
             : gained            ? neighbours()
                                 : std::vector<KernelPlan>();
    }
    if (!result_.stopped) ATT_CHECK(run_final());
    return finish();
  }

 private:
  // Contenders before seeds, each once.
  std::vector<KernelPlan> first_wave() const {
    std::vector<KernelPlan> wave;
    for (const KernelPlan& plan : options_.contenders) {
      if (std::ranges::find(problem_.plans, plan) != problem_.plans.end()) wave.push_back(plan);
    }
    for (const KernelPlan& seed :
         search_seeds(problem_.plans, std::min(kSearchSeeds, bound() / 2))) {
      if (std::ranges::find(wave, seed) == wave.end()) wave.push_back(seed);
    }
    return wave;
  }

  // What it allows itself where the options do not say, while the model's first guess holds.
  std::size_t bound() const {
    const bool is_told = options_.exhaustive || options_.max_candidates > 0;
    return is_told ? SIZE_MAX : search_bound(problem_.plans.size());
  }
  Candidate first_guess() const { return problem_.plans.front(); }
  // Whether nothing is known to be faster than the model's first guess by more than it may.
  bool first_guess_holds() const {
    const auto order = ranking();
    if (order.empty()) return true;
    const auto guess = known_.find(first_guess());
    return guess != known_.end() &&
           order.front()->median_us >= guess->second.median_us * (1 - kGuessHolds);
  }
  std::size_t budget() const {
    const std::size_t most = options_.max_candidates > 0
                                 ? static_cast<std::size_t>(options_.max_candidates)
                             : first_guess_holds() ? bound()
                                                   : SIZE_MAX;
    return most - std::min(most, asked_.size());
  }

  static bool is_gain(double median_us, double before_us) {
    return median_us < before_us * (1 - kLeastGain);
  }

  // Candidates in order of their first median.
  std::vector<const Known*> ranking() const {
    std::vector<const Known*> order;
    for (const auto& [candidate, known] : known_) order.push_back(&known);
    std::ranges::sort(order, {}, [](const Known* k) {
      return std::tie(k->median_us, k->text, k->candidate.compiler);
    });
    return order;
  }

  double best_median_us() const {
    const auto order = ranking();
    return order.empty() ? INFINITY : order.front()->median_us;
  }

  // Unasked plans that differ in one part from one of the best; cheapest first. What is left of a
  // small space's bound goes to the very best.
  std::vector<KernelPlan> neighbours() const {
    const std::size_t most = budget() < kWave ? 1 : kParents;
    std::vector<KernelPlan> parents;
    for (const Known* known : ranking()) {
      if (parents.size() < most) parents.push_back(known->candidate.plan);
    }
    return neighbours_of(parents);
  }
  std::vector<KernelPlan> neighbours_of(std::span<const KernelPlan> parents) const {
    std::vector<KernelPlan> wave;
    for (const KernelPlan& plan : problem_.plans) {
      if (wave.size() == kWave) break;
      const auto near = [&](const KernelPlan& parent) { return plan_distance(plan, parent) == 1; };
      if (!asked_.contains(plan) && std::ranges::any_of(parents, near)) wave.push_back(plan);
    }
    return wave;
  }

  std::vector<KernelPlan> cheapest_unasked() const {
    std::vector<KernelPlan> wave;
    for (const KernelPlan& plan : problem_.plans) {
      if (wave.size() < kExhaustiveWave && !asked_.contains(plan)) wave.push_back(plan);
    }
    return wave;
  }

  // What will probably be asked for after the first wave: the model's first guess is mostly near
  // the best.
  std::vector<KernelPlan> likely_next() const {
    if (options_.exhaustive) return cheapest_unasked();
    return known_.empty() ? neighbours_of(std::span(problem_.plans).first(1))
                          : std::vector<KernelPlan>();
  }

  // Keeps the compiler busy with `likely` when it is done with `wanted`.
  void compile(std::vector<Candidate> wanted, std::vector<KernelPlan> likely) {
    if (!problem_.compile_while_measuring) likely.clear();
    std::erase_if(likely, [&](const KernelPlan& plan) {
      const Result<std::string> digest = executor_.build_digest(plan);
      return !digest.ok() || ledger_.is_rejected(*digest) || ledger_.find(*digest) != nullptr;
    });
    likely.resize(std::min(likely.size(), budget()));
    wanted.insert(wanted.end(), likely.begin(), likely.end());
    compiler_.submit(wanted);
  }

  Status run_wave(std::vector<KernelPlan> wave) {
    if (wave.size() > budget()) wave.resize(budget());
    std::vector<Candidate> fresh;
    for (const KernelPlan& plan : wave) {
      asked_.insert(plan);
      ATT_TRY(const bool done, is_done(plan));
      if (!done) fresh.push_back(plan);
    }
    if (!report(TuneState::kCompiling) || fresh.empty()) return ok_status();
    compile(fresh, likely_next());
    std::vector<Contestant> field;
    ATT_CHECK(make_ready(std::move(fresh), field));
    return result_.stopped ? ok_status() : race_newcomers(std::move(field));
  }

  // Verifies what is being compiled; those that stand join the field.
  Status make_ready(std::vector<Candidate> fresh, std::vector<Contestant>& field) {
    if (!fresh.empty()) ATT_CHECK(executor_.prepare());
    while (!fresh.empty()) {
      auto [candidate, compiled] = compiler_.take_any(fresh);
      std::erase(fresh, candidate);
      ATT_TRY(const bool stands, admit(candidate, compiled));
      if (stands) {
        ready_.insert(candidate);
        field.push_back({.candidate = candidate, .facts = *compiled});
      }
      if (!report(TuneState::kVerifying)) return ok_status();
    }
    return ok_status();
  }

  // True when earlier runs settled the candidate.
  Result<bool> is_done(const Candidate& candidate) {
    const Result<std::string> digest = executor_.build_digest(candidate);
    if (!digest.ok()) {
      if (rejection_reason(digest.error()).empty()) return digest.error();
      ++result_.rejected;
      return true;
    }
    if (ledger_.is_rejected(*digest)) {
      ++result_.rejected;
      return true;
    }
    const Ledger::Entry* const stored = ledger_.find(*digest);
    if (stored == nullptr) return false;
    const auto& [m, count] = *stored;
    known_.insert_or_assign(candidate, Known{.candidate = candidate,
                                             .text = m.plan,
                                             .facts = {m.build_digest, m.compiler, m.threads,
                                                       m.registers, m.shared_bytes, 0},
                                             .median_us = m.median_us,
                                             .measurements = count});
    ++result_.from_cache;
    return true;
  }

  // True when the candidate compiled and computes what it should.
  Result<bool> admit(const Candidate& candidate, const Result<CompiledFacts>& compiled) {
    if (!compiled.ok()) return condemn(candidate, "", compiled.error());
    if (Status status = executor_.verify(candidate); !status.ok()) {
      return condemn(candidate, compiled->build_digest, status.error());
    }
    return true;
  }

  // False when the error is the candidate's, which is noted; else the error.
  Result<bool> condemn(const Candidate& candidate, std::string build_digest, const Error& error) {
    const std::string reason = rejection_reason(error);
    if (reason.empty()) return error;
    if (build_digest.empty()) {
      if (auto digest = executor_.build_digest(candidate); digest.ok()) build_digest = *digest;
    }
    ledger_.reject({.plan = to_string(candidate.plan),
                    .build_digest = build_digest,
                    .reason = reason,
                    .detail = error.message + "\n" + error.detail});
    known_.erase(candidate);
    ready_.erase(candidate);
    executor_.release(candidate);
    ++result_.rejected;
    return false;
  }

  Status race_newcomers(std::vector<Contestant> field) {
    if (field.empty()) return ok_status();
    // The best so far runs along, so that newcomers are cut against it under the same conditions.
    const auto order = ranking();
    if (!order.empty() && ready_.contains(order.front()->candidate)) {
      const Known& best = *order.front();
      field.push_back({.candidate = best.candidate,
                       .facts = best.facts,
                       .is_new = false,
                       .known_us = best.median_us});
    }
    RaceOptions options = race_options();
    options.leads = [this, before_us = best_median_us()](const Contestant& c) {
      // Without a gain there is no next wave; and an exhaustive search's is being compiled.
      if (!options_.exhaustive && is_gain(spread_of(c.samples_us).median, before_us))
        compile({}, neighbours_of(std::span(&c.candidate.plan, 1)));
    };
    ATT_CHECK(race(std::move(field), executor_, options));
    release_all_but_the_best();
    return ok_status();
  }

  RaceOptions race_options() {
    return {.noise_fraction = options_.noise_fraction,
            .rounds_factor = 1,
            .to_the_end = options_.to_the_end,
            .finished = [this](const Contestant& c) { note(c); },
            .failed =
                [this](const Contestant& c, const Error& error) {
                  // Counted when it was measured; now it counts as rejected.
                  if (known_.contains(c.candidate))
                    --(is_from_store(c) ? result_.from_cache : result_.measured);
                  (void)condemn(c.candidate, c.facts.build_digest, error);
                },
            .go_on = [this] { return report(TuneState::kMeasuring); }};
  }

  bool is_from_store(const Contestant& c) const {
    return ledger_.find(c.facts.build_digest) != nullptr;
  }

  void note(const Contestant& c) {
    const Spread spread = spread_of(c.samples_us);
    ledger_.record({.plan = to_string(c.candidate.plan),
                    .build_digest = c.facts.build_digest,
                    .compiler = c.facts.compiler,
                    .median_us = spread.median,
                    .spread_us = spread.interquartile(),
                    .samples = static_cast<int>(c.samples_us.size()),
                    .threads = c.facts.threads,
                    .registers = c.facts.registers,
                    .shared_bytes = c.facts.shared_bytes,
                    .conditions = executor_.conditions()});
    auto [at, is_new] = known_.try_emplace(
        c.candidate, Known{c.candidate, to_string(c.candidate.plan), c.facts, spread.median, 0});
    ++at->second.measurements;
    if (is_new) ++result_.measured;
  }

  void release_all_but_the_best() {
    const auto order = ranking();
    std::set<Candidate> keep{first_guess()};
    for (std::size_t i = 0; i < std::min(kFinalists, order.size()); ++i)
      keep.insert(order[i]->candidate);
    std::erase_if(ready_, [&](const Candidate& candidate) {
      if (keep.contains(candidate)) return false;
      executor_.release(candidate);
      return true;
    });
  }

  // The best ones, as every compiler builds them, against each other, unless an earlier run did
  // that.
  Status run_final() {
    std::vector<Candidate> finalists;
    bool has_been = true;
    for (const Known* known : ranking()) {
      if (finalists.size() == kFinalists) break;
      if (finalists.size() > 1 && !options_.to_the_end &&
          known->median_us > known_.at(finalists.front()).median_us * kFinalWithin)
        break;
      finalists.push_back(known->candidate);
      has_been = has_been && known->measurements > 1;
    }
    // What takes the first guess's place was raced against it to the end.
    const auto guess = finalists.empty() ? known_.end() : known_.find(first_guess());
    if (guess != known_.end()) {
      if (std::ranges::count(finalists, guess->first) == 0) finalists.push_back(guess->first);
      has_been = has_been && guess->second.measurements > 1;
    }
    std::vector<Candidate> rebuilt;
    for (const Candidate& finalist : finalists) {
      for (int compiler = 1; compiler < problem_.compilers; ++compiler) {
        const Candidate other(finalist.plan, compiler);
        asked_.insert(other);
        ATT_TRY(const bool done, is_done(other));
        if (!done || known_.contains(other)) rebuilt.push_back(other);
        has_been = has_been && done;
      }
    }
    finalists.insert(finalists.end(), rebuilt.begin(), rebuilt.end());
    if (finalists.size() < 2 || has_been) return ok_status();
    std::vector<Contestant> field;
    std::vector<Candidate> fresh;
    for (const Candidate& finalist : finalists) {
      if (ready_.contains(finalist)) {
        field.push_back({.candidate = finalist, .facts = known_.at(finalist).facts});
      } else {  // another compiler's, or measured by an earlier run
        fresh.push_back(finalist);
      }
    }
    compile(fresh, {});
    ATT_CHECK(make_ready(std::move(fresh), field));
    RaceOptions options = race_options();
    options.rounds_factor = kFinalRounds;
    options.finished = [this](const Contestant& c) {
      note(c);
      final_us_[c.candidate] = spread_of(c.samples_us).median;
    };
    return result_.stopped ? ok_status() : race(std::move(field), executor_, options);
  }

  // The fastest, of the final where there was one.
  const Known* best() const {
    const auto time_of = [&](const Known* known) {
      const auto at = final_us_.find(known->candidate);
      return at != final_us_.end() ? at->second : final_us_.empty() ? known->median_us : INFINITY;
    };
    const auto order = ranking();
    const auto fastest = std::ranges::min_element(order, {}, time_of);
    return fastest == order.end() ? nullptr : *fastest;
  }

  // False, from then on, when the observer wants no more.
  bool report(TuneState state) {
    TuneProgress progress{.state = state};
    progress.done = result_.measured + result_.rejected + result_.from_cache;
    progress.total = static_cast<int>(asked_.size());
    if (const auto order = ranking(); !order.empty()) {
      progress.best_plan = order.front()->text;
      progress.best_compiler = order.front()->facts.compiler;
      progress.best_us = order.front()->median_us;
    }
    const int worked = result_.measured + result_.rejected;
    if (worked > 0)
      progress.eta_seconds = (clock_() - began_) / worked * (progress.total - progress.done);
    if (!observer_(progress)) result_.stopped = true;
    return !result_.stopped;
  }

  Result<TuneResult> finish() {
    result_.not_stored = ledger_.write_the_rest();
    result_.candidates = static_cast<int>(asked_.size());
    result_.seconds = clock_() - began_;
    const Known* chosen = best();
    if (chosen == nullptr && result_.stopped)
      return Error{.id = "tune-stopped", .message = "stopped before a candidate was measured"};
    if (chosen == nullptr) {
      return Error{
          .id = "tune-no-plan",
          .message = fmt::format("none of {} candidates could be measured", result_.candidates),
          .hint = "`attune cache show` lists why each was rejected"};
    }
    result_.plan = chosen->candidate.plan;
    result_.compiler = chosen->facts.compiler;
    result_.median_us = chosen->median_us;
    // The cache's own answer, which knows all measurements, is what will be launched.
    if (const auto winner = ledger_.winner()) {
      const auto plan = parse_plan(winner->plan);
      if (winner->measured_shape == problem_.key.shape && plan.ok()) {
        result_.plan = *plan;
        result_.compiler = winner->compiler;
        result_.median_us = winner->median_us;
      }
    }
    if (!result_.stopped) report(TuneState::kDone);
    return result_;
  }

  const SearchProblem& problem_;
  Executor& executor_;
  Ledger ledger_;
  const TuneOptions& options_;
  const Clock& clock_;
  const TuneObserver& observer_;
  const double began_;
  std::set<Candidate> asked_;
  std::map<Candidate, Known> known_;
  std::map<Candidate, double> final_us_;
  std::set<Candidate> ready_;  // compiled, verified and not released
  TuneResult result_;
  CompileAhead compiler_;
};

}  // namespace

std::size_t search_bound(std::size_t plans) { return std::max(kWave, plans / kShare); }

Result<TuneResult> search(const SearchProblem& problem, Executor& executor, Store& store,
                          const TuneOptions& options, const Clock& clock,
                          const TuneObserver& observer) {
  return Search(problem, executor, store, options, clock, observer).run();
}

}  // namespace attune

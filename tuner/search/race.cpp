#include "tuner/search/race.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

namespace attune {
namespace {

// Shares of the full sample count after which the field is cut: 2, 5, 12 and 30 rounds of short
// kernels.
constexpr std::array<double, 4> kRungs{2.0 / 30, 5.0 / 30, 12.0 / 30, 1.0};
constexpr int kFullSamples = 30;
constexpr int kLeastSamples = 5;
constexpr double kBudgetUs = 1e6;
// A first look at so much more than the best's time needs no second one.
constexpr double kHopeless = 1.5;

struct Standing {
  std::size_t index;
  Spread spread;
};

bool clearly_slower(const Spread& candidate, const Spread& best, double noise_fraction) {
  return candidate.lower_quartile > best.upper_quartile &&
         candidate.median > best.median * (1 + noise_fraction);
}

// The field of one race; everybody in it has as many samples.
class Race {
 public:
  Race(std::vector<Contestant> field, Executor& executor, const RaceOptions& options)
      : field_(std::move(field)), executor_(executor), options_(options) {}

  Status run() {
    for (const double rung : kRungs) {
      while (!field_.empty() && rounds_ < wanted_rounds(rung)) {
        ATT_CHECK(run_round());
        if (!options_.go_on()) return ok_status();
      }
      if (!field_.empty()) cut(rung);
    }
    return ok_status();
  }

 private:
  int wanted_rounds(double rung) const {
    if (rounds_ == 0) return 1;
    double best_us = INFINITY;
    for (const Contestant& c : field_) best_us = std::min(best_us, spread_of(c.samples_us).median);
    return std::max(1, static_cast<int>(std::lround(rung * full_sample_count(best_us) *
                                                    options_.rounds_factor)));
  }

  // One sample of each, starting with another one each round, so that none always follows the same.
  Status run_round() {
    std::vector<std::size_t> failed;
    for (std::size_t i = 0; i < field_.size(); ++i) {
      const std::size_t index = (i + static_cast<std::size_t>(rounds_)) % field_.size();
      const Result<double> time = executor_.time_us(field_[index].candidate);
      if (time.ok()) {
        field_[index].samples_us.push_back(*time);
      } else if (!rejection_reason(time.error()).empty()) {
        options_.failed(field_[index], time.error());
        failed.push_back(index);
      } else {
        return time.error();
      }
    }
    ++rounds_;
    remove(failed);
    return ok_status();
  }

  // What the GPU takes now of what it took when the incumbent was new. Once that has failed, what
  // it said last: those who finish later are compared with those who have been told as of then.
  double drift() {
    for (const Contestant& c : field_) {
      if (!c.is_new && c.known_us > 0) {
        drift_ = spread_of(c.samples_us).median / c.known_us;
        break;
      }
    }
    return drift_;
  }
  Contestant as_before(Contestant contestant) {
    const double now = drift();
    for (double& us : contestant.samples_us) us /= now;
    return contestant;
  }

  void cut(double rung) {
    std::vector<Standing> standings;
    for (std::size_t i = 0; i < field_.size(); ++i)
      standings.push_back({i, spread_of(field_[i].samples_us)});
    std::ranges::sort(standings, {},
                      [](const Standing& s) { return std::pair(s.spread.median, s.index); });
    const Spread& best = standings.front().spread;
    const Contestant& leader = field_[standings.front().index];
    if (options_.leads && leader.candidate != leader_) {
      leader_ = leader.candidate;
      options_.leads(as_before(leader));
    }
    std::vector<std::size_t> leaving;
    for (std::size_t place = 0; place < standings.size(); ++place) {
      const Standing& s = standings[place];
      // Two samples say little: the first cut takes only the hopeless.
      const bool first_cut = rung == kRungs.front();
      const bool in_noise = s.spread.median <= best.median * (1 + options_.noise_fraction);
      const bool slower_half = place >= (standings.size() + 1) / 2;
      const bool out = s.spread.lower_quartile > best.median * kHopeless ||
                       (!first_cut && (clearly_slower(s.spread, best, options_.noise_fraction) ||
                                       (slower_half && !in_noise)));
      const bool may_leave = field_[s.index].is_new && !options_.to_the_end;
      if (rung == kRungs.back() || (out && may_leave)) leaving.push_back(s.index);
    }
    for (const std::size_t index : leaving) {
      if (field_[index].is_new) options_.finished(as_before(field_[index]));
    }
    remove(leaving);
  }

  void remove(std::vector<std::size_t> indices) {
    std::ranges::sort(indices, std::greater());
    for (const std::size_t index : indices)
      field_.erase(field_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  std::vector<Contestant> field_;
  Executor& executor_;
  const RaceOptions& options_;
  int rounds_ = 0;
  double drift_ = 1;  // as of the last cut that an incumbent was in
  std::optional<Candidate> leader_;
};

}  // namespace

int full_sample_count(double median_us) {
  return std::clamp(static_cast<int>(kBudgetUs / std::max(median_us, 1.0)), kLeastSamples,
                    kFullSamples);
}

Status race(std::vector<Contestant> contestants, Executor& executor, const RaceOptions& options) {
  return Race(std::move(contestants), executor, options).run();
}

}  // namespace attune

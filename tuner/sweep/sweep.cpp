#include "tuner/sweep/sweep.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "cache/maintenance.hpp"
#include "runtime/support/json.hpp"
#include "tuner/sweep/files.hpp"
#include "tuner/sweep/shard_lock.hpp"

namespace attune {
namespace {

std::string encode(const SweepEntry& e) {
  const Json json{{"problem", e.digest},        {"error", e.error},       {"plan", e.plan},
                  {"median_us", e.median_us},   {"measured", e.measured}, {"rejected", e.rejected},
                  {"from_cache", e.from_cache}, {"seconds", e.seconds}};
  return json.dump();
}

// Said before a problem's first measurement: the measurements of one that did not end are in the
// file beside this journal.
std::string encode_begun(const std::string& digest) { return Json{{"begun", digest}}.dump(); }

std::set<std::string> begun_in(const std::string& journal) {
  std::set<std::string> begun;
  std::ifstream file(journal);
  for (std::string line; std::getline(file, line);) {
    const auto json = Json::parse(line);
    if (std::string digest; json && json->read("begun", digest)) begun.insert(digest);
  }
  return begun;
}

// nullopt for what is no problem's end, and for a line that a kill cut short.
std::optional<SweepEntry> decode(const std::string& line) {
  const auto json = Json::parse(line);
  SweepEntry e;
  const bool whole = json && json->read("problem", e.digest) && json->read("error", e.error) &&
                     json->read("plan", e.plan) && json->read("median_us", e.median_us) &&
                     json->read("measured", e.measured) && json->read("rejected", e.rejected) &&
                     json->read("from_cache", e.from_cache) && json->read("seconds", e.seconds);
  return whole ? std::optional(std::move(e)) : std::nullopt;
}

class Sweep {
 public:
  Sweep(const Manifest& manifest, const SweepOptions& options, const SweepTuner& tuner,
        const SweepObserver& observer)
      : manifest_(manifest), options_(options), tuner_(tuner), observer_(observer) {}

  Result<SweepOutcome> run() {
    share_out();
    {
      std::vector<std::jthread> threads;
      for (int device = 1; device < options_.devices; ++device) {
        threads.emplace_back([this, device] { work(device); });
      }
      work(0);
    }
    if (failure_) return *failure_;
    return outcome_;
  }

 private:
  // What is left; of it, what a device was at when an earlier run ended is that device's own.
  void share_out() {
    own_.resize(static_cast<std::size_t>(options_.devices));
    std::vector<std::set<std::string>> begun;
    for (int device = 0; device < options_.devices; ++device)
      begun.push_back(begun_in(sweep_files::journal(options_.directory, options_.shard, device)));
    const auto entries = sweep_entries(options_.directory);
    for (const std::size_t index : problems_of(manifest_, options_.shard)) {
      const std::string digest = manifest_.problems[index].digest();
      const auto at = entries.find(digest);
      if (at != entries.end() && (at->second.error.empty() || !options_.retry)) {
        ++outcome_.before;
        continue;
      }
      ++left_;
      const auto owner = std::ranges::find_if(begun, [&](const std::set<std::string>& of_device) {
        return of_device.contains(digest);
      });
      if (owner == begun.end()) {
        anybodys_.push_back(index);
      } else {
        own_[static_cast<std::size_t>(owner - begun.begin())].push_back(index);
      }
    }
  }

  void work(int device) {
    auto store =
        open_writable_store(sweep_files::results(options_.directory, options_.shard, device));
    if (!store.ok()) return fail(store.error());
    const auto tune = [&](std::size_t index) {
      if (stopping_) return false;
      const Status status = tune_one(manifest_.problems[index], device, **store);
      if (!status.ok()) fail(status.error());
      return status.ok() && !stopping_;
    };
    for (const std::size_t index : own_[static_cast<std::size_t>(device)]) {
      if (!tune(index)) return;
    }
    for (std::size_t next = next_++; next < anybodys_.size(); next = next_++) {
      if (!tune(anybodys_[next])) return;
    }
  }

  Status tune_one(const SweepProblem& problem, int device, Store& store) {
    const std::string journal = sweep_files::journal(options_.directory, options_.shard, device);
    ATT_CHECK(sweep_files::append_line(journal, encode_begun(problem.digest())));
    const auto result = tuner_(problem, device, store, [&](const TuneProgress& tuning) {
      return report(problem, device, tuning);
    });
    // Stopped in the middle: what was measured is in the file, and the next run goes on from there.
    if (stopping_ && (!result.ok() || result->stopped)) return ok_status();
    // What is not in the file is not done.
    if (result.ok() && result->not_stored) return *result->not_stored;
    SweepEntry entry{.digest = problem.digest()};
    if (result.ok()) {
      entry.plan = to_string(result->plan);
      entry.median_us = result->median_us;
      entry.measured = result->measured;
      entry.rejected = result->rejected;
      entry.from_cache = result->from_cache;
      entry.seconds = result->seconds;
    } else {
      entry.error = fmt::format("{} [{}]", result.error().message, result.error().id);
    }
    ATT_CHECK(sweep_files::append_line(journal, encode(entry)));
    {
      const std::lock_guard lock(mutex_);
      ++(entry.error.empty() ? outcome_.tuned : outcome_.failed);
    }
    report(problem, device,
           {.state = TuneState::kDone, .best_plan = entry.plan, .best_us = entry.median_us});
    return ok_status();
  }

  bool report(const SweepProblem& problem, int device, const TuneProgress& tuning) {
    const std::lock_guard lock(mutex_);
    const int done_now = outcome_.tuned + outcome_.failed;
    SweepProgress progress{.done = outcome_.before + done_now,
                           .failed = outcome_.failed,
                           .total = outcome_.before + left_,
                           .device = device,
                           .problem = &problem,
                           .tuning = tuning};
    if (done_now > 0) {
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - began_;
      progress.eta_seconds = elapsed.count() / done_now * (progress.total - progress.done);
    }
    if (!stopping_ && !observer_(progress)) {
      stopping_ = true;
      outcome_.stopped = true;
    }
    return !stopping_;
  }

  void fail(const Error& error) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = error;
    stopping_ = true;
  }

  const Manifest& manifest_;
  const SweepOptions& options_;
  const SweepTuner& tuner_;
  const SweepObserver& observer_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  int left_ = 0;                               // problems that earlier runs did not end
  std::vector<std::vector<std::size_t>> own_;  // of them, those that one device goes on with
  std::vector<std::size_t> anybodys_;
  std::atomic<std::size_t> next_{0};  // of `anybodys_`
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;  // guards what follows, and calls of the observer
  SweepOutcome outcome_;
  std::optional<Error> failure_;
};

}  // namespace

Result<SweepOutcome> run_sweep(const Manifest& manifest, const SweepOptions& options,
                               const SweepTuner& tuner, const SweepObserver& observer) {
  ATT_TRY(const ShardLock lock, ShardLock::acquire(options.directory, options.shard));
  return Sweep(manifest, options, tuner, observer).run();
}

std::map<std::string, SweepEntry> sweep_entries(const std::string& directory) {
  std::map<std::string, SweepEntry> entries;
  for (const std::string& path : sweep_files::all_journals(directory)) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      const auto entry = decode(line);
      if (!entry) continue;
      const auto at = entries.find(entry->digest);
      if (at == entries.end() || !at->second.error.empty()) entries[entry->digest] = *entry;
    }
  }
  return entries;
}

Result<int> merge_sweep(const std::string& directory, const std::string& target) {
  int gained = 0;
  for (const std::string& path : sweep_files::all_results(directory)) {
    ATT_TRY(const cache::Merged merged, cache::merge(path, target));
    gained += merged.rows;
  }
  return gained;
}

}  // namespace attune

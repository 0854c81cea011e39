#include "tuner/search/ledger.hpp"

namespace attune {

void Ledger::read(bool force) {
  if (auto rejections = store_.rejections(key_); rejections.ok()) {
    for (const Rejection& r : *rejections) rejected_.insert(r.build_digest);
  }
  auto measurements = store_.measurements(key_);
  if (force || !measurements.ok()) return;
  for (const Measurement& m : *measurements) {
    const auto at = measured_.try_emplace(m.build_digest, m).first;
    ++at->second.count;
  }
}

const Ledger::Entry* Ledger::find(const std::string& build_digest) const {
  const auto at = measured_.find(build_digest);
  return at == measured_.end() ? nullptr : &at->second;
}

void Ledger::record(const Measurement& measurement) {
  if (!store_.record(key_, measurement).ok()) unstored_.push_back(measurement);
}

void Ledger::reject(const Rejection& rejection) {
  if (!store_.reject(key_, rejection).ok()) unstored_rejections_.push_back(rejection);
}

std::optional<Error> Ledger::write_the_rest() {
  for (const Measurement& measurement : unstored_) {
    // Each try may wait for seconds.
    if (Status kept = store_.record(key_, measurement); !kept.ok()) return kept.error();
  }
  for (const Rejection& rejection : unstored_rejections_) {
    if (Status kept = store_.reject(key_, rejection); !kept.ok()) return kept.error();
  }
  return std::nullopt;
}

std::optional<Winner> Ledger::winner() const {
  auto known = store_.winner(key_);
  return known.ok() ? *std::move(known) : std::nullopt;
}

}  // namespace attune

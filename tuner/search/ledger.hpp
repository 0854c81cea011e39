// What a search's store knows of its candidates, and what is still to be written there.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cache/store.hpp"

namespace attune {

// What earlier runs left, by build.
class Ledger {
 public:
  Ledger(Store& store, const MeasurementKey& key) : store_(store), key_(key) {}

  // `force`: what was measured counts as unknown; what was rejected is so still.
  void read(bool force);

  struct Entry {
    Measurement first;  // ranks the candidate: so a repeated search asks for the same candidates
    int count = 0;
  };
  bool is_rejected(const std::string& build_digest) const {
    return rejected_.contains(build_digest);
  }
  const Entry* find(const std::string& build_digest) const;  // null: not measured

  // At once, or in write_the_rest() what the store does not take. find() and is_rejected() tell of
  // earlier runs alone.
  void record(const Measurement& measurement);
  void reject(const Rejection& rejection);
  // Once more what the store did not take: another process may have held it for long. The error of
  // the first that it does not take now either; those behind are not tried.
  std::optional<Error> write_the_rest();
  std::optional<Winner> winner() const;

 private:
  Store& store_;
  const MeasurementKey& key_;
  std::set<std::string> rejected_;
  std::map<std::string, Entry> measured_;
  std::vector<Measurement> unstored_;
  std::vector<Rejection> unstored_rejections_;
};

}  // namespace attune

// The user's cache file over read-only ones that a vendor or an administrator ships, as one Store,
// and the snapshot of them all.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cache/snapshot.hpp"
#include "cache/store.hpp"

namespace attune {

struct OverlayOptions {
  std::string user_file;                  // empty: none; nothing is remembered then
  std::vector<std::string> system_files;  // first one first
  StoreOptions store;                     // of the user's file; system files are opened read-only
};
// User file from default_store_path(), system files from $ATTUNE_SYSTEM_CACHE, separated by colons.
OverlayOptions default_overlay();

// One file of the overlay, and why it does not answer when it does not.
struct LayerStatus {
  std::string path;
  bool read_only = false;
  bool usable = false;
  std::string problem_id;  // an Error's id and message; empty when usable
  std::string problem;
  int problems_known = 0;  // rows in the current snapshot
  StoreHealth health;
};

// Reads ask the user's file, then each system file; writes go to the user's file. Thread-safe.
class Overlay : public Store {
 public:
  // Never fails: a file that cannot be used is a warning and a LayerStatus.
  static std::unique_ptr<Overlay> open(const OverlayOptions& options);

  // The winners for the hardware of the device last given to refresh(); empty before.
  // SnapshotRow::layer indexes layers().
  virtual SnapshotCell::View snapshot() const noexcept = 0;
  // Reads files that changed since, for `device`, and puts the new snapshot in place; a file that
  // could not be used is tried again once it is another. Off the hot path: it runs SQL. True when
  // anything changed.
  virtual bool refresh(const std::string& device) = 0;
  virtual std::vector<LayerStatus> layers() const = 0;
};

}  // namespace attune

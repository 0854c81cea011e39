#include "cache/overlay.hpp"

#include <sys/stat.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <optional>
#include <tuple>

#include "cache/warning.hpp"
#include "cache/winner.hpp"

namespace attune {
namespace {

// Changes whenever a file's content may have.
struct Stamp {
  std::uint64_t inode = 0, size = 0;
  std::int64_t seconds = 0, nanoseconds = 0;
  bool operator==(const Stamp&) const = default;
};

Stamp stamp_of(const std::string& path) {
  struct stat info{};
  if (stat(path.c_str(), &info) != 0) return {};
  return {info.st_ino, static_cast<std::uint64_t>(info.st_size), info.st_mtim.tv_sec,
          info.st_mtim.tv_nsec};
}

struct Layer {
  Layer(const std::string& path, const StoreOptions& options) : path(path), options(options) {}

  const std::string path;
  const StoreOptions options;
  std::atomic<Store*> store = nullptr;  // null: see problem; set once
  std::unique_ptr<Store> owner;
  std::string problem_id, problem;
  Stamp refused;  // the file that could not be used
  // What the snapshot was made from.
  std::optional<Stamp> stamp;
  std::vector<ProblemWinner> winners;
};

class FileOverlay final : public Overlay {
 public:
  explicit FileOverlay(const OverlayOptions& options) {
    if (!options.user_file.empty()) add(options.user_file, options.store);
    has_user_file_ = !layers_.empty();
    for (const std::string& file : options.system_files) {
      StoreOptions read_only = options.store;
      read_only.read_only = true;
      add(file, read_only);
    }
  }

  const std::string& path() const override {
    return has_user_file_ ? layers_.front().path : no_path_;
  }
  StoreHealth health() const override {
    const Store* user = user_store();
    return user != nullptr ? user->health() : StoreHealth{};
  }

  Result<std::optional<CodeRecord>> find_code(const BuildKey& key) const override {
    return first_answer<CodeRecord>([&](const Store& store) { return store.find_code(key); });
  }
  Result<std::vector<BuildKey>> stored_builds(const std::string& spec_hash) const override {
    return all_answers<BuildKey>(
        [&](const Store& store) { return store.stored_builds(spec_hash); });
  }
  Status put_code(const BuildKey& key, const CodeRecord& code) override {
    return on_user([&](Store& store) { return store.put_code(key, code); });
  }
  Result<bool> pin_code(const BuildKey& key, bool pinned) override {
    return on_user([&](Store& store) { return store.pin_code(key, pinned); });
  }
  Status record(const MeasurementKey& key, const Measurement& measurement) override {
    return on_user([&](Store& store) { return store.record(key, measurement); });
  }
  Status reject(const MeasurementKey& key, const Rejection& rejection) override {
    return on_user([&](Store& store) { return store.reject(key, rejection); });
  }
  Result<std::vector<Measurement>> measurements(const MeasurementKey& key) const override {
    return all_answers<Measurement>([&](const Store& store) { return store.measurements(key); });
  }
  Result<std::vector<Rejection>> rejections(const MeasurementKey& key) const override {
    return all_answers<Rejection>([&](const Store& store) { return store.rejections(key); });
  }
  Result<std::optional<Winner>> winner(const MeasurementKey& key) const override {
    std::optional<Winner> best;
    double best_distance = 0;
    for (const Layer& layer : layers_) {
      const Store* store = layer.store;
      if (store == nullptr) continue;
      const auto answer = store->winner(key);
      if (!answer.ok() || !answer->has_value()) continue;
      const double distance = cache::bucket_distance((*answer)->measured_shape, key.shape);
      if (best && distance >= best_distance) continue;
      best = **answer;
      best_distance = distance;
    }
    return best;
  }
  Result<std::vector<ProblemWinner>> winners(const std::string& device) const override {
    return all_answers<ProblemWinner>([&](const Store& store) { return store.winners(device); });
  }
  Result<bool> take_lease(const std::string& name, double seconds) override {
    return on_user([&](Store& store) { return store.take_lease(name, seconds); });
  }
  Status give_lease(const std::string& name) override {
    return on_user([&](Store& store) { return store.give_lease(name); });
  }

  SnapshotCell::View snapshot() const noexcept override { return cell_.view(); }

  bool refresh(const std::string& device) override {
    const std::lock_guard lock(mutex_);
    bool changed = device != device_;
    if (changed) {
      for (Layer& layer : layers_) layer.stamp.reset();
    }
    device_ = device;
    std::vector<std::vector<ProblemWinner>> winners;
    for (Layer& layer : layers_) {
      // Taken before reading: what is written meanwhile is seen next time.
      const Stamp stamp = stamp_of(layer.path);
      Store* store = layer.store;
      // Missing or locked when it was asked for, and another file or other content now.
      if (store == nullptr && layer.refused != stamp) store = open(layer);
      if (store != nullptr && layer.stamp != stamp) {
        if (auto read = store->winners(device); read.ok()) {
          layer.winners = std::move(*read);
          layer.stamp = stamp;
          changed = true;
        }
      }
      winners.push_back(layer.winners);
    }
    if (changed) cell_.replace(std::make_unique<Snapshot>(winners));
    return changed;
  }

  std::vector<LayerStatus> layers() const override {
    const std::lock_guard lock(mutex_);
    std::vector<LayerStatus> result;
    const auto view = cell_.view();
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const Layer& layer = layers_[i];
      const Store* store = layer.store;
      LayerStatus status{.path = layer.path,
                         .read_only = layer.options.read_only,
                         .usable = store != nullptr,
                         .problem_id = layer.problem_id,
                         .problem = layer.problem};
      if (store != nullptr) status.health = store->health();
      for (const SnapshotRow& row : view->rows())
        status.problems_known += row.layer == static_cast<int>(i);
      result.push_back(std::move(status));
    }
    return result;
  }

 private:
  void add(const std::string& path, const StoreOptions& options) {
    Layer& layer = layers_.emplace_back(path, options);
    if (open(layer) != nullptr) return;
    cache::give_warning(options, {.id = layer.problem_id, .message = layer.problem});
  }

  static Store* open(Layer& layer) {
    layer.refused = stamp_of(layer.path);
    auto store = open_store(layer.path, layer.options);
    layer.problem_id = store.ok() ? "" : store.error().id;
    layer.problem = store.ok() ? "" : store.error().message;
    if (!store.ok()) return nullptr;
    layer.owner = std::move(*store);
    return layer.store = layer.owner.get();
  }

  Store* user_store() const { return has_user_file_ ? layers_.front().store.load() : nullptr; }

  template <typename F>
  auto on_user(F f) -> decltype(f(std::declval<Store&>())) {
    if (Store* store = user_store()) return f(*store);
    const std::lock_guard lock(mutex_);
    return Error{.id = "cache-none",
                 .message = has_user_file_ ? layers_.front().problem : "no cache file to write to"};
  }
  // A layer that fails has warned or counted; the next one may know.
  template <typename T, typename F>
  Result<std::optional<T>> first_answer(F f) const {
    for (const Layer& layer : layers_) {
      const Store* store = layer.store;
      if (store == nullptr) continue;
      if (auto answer = f(*store); answer.ok() && answer->has_value()) return answer;
    }
    return std::optional<T>();
  }
  template <typename T, typename F>
  Result<std::vector<T>> all_answers(F f) const {
    std::vector<T> all;
    for (const Layer& layer : layers_) {
      const Store* store = layer.store;
      if (store == nullptr) continue;
      if (auto answer = f(*store); answer.ok()) {
        all.insert(all.end(), std::make_move_iterator(answer->begin()),
                   std::make_move_iterator(answer->end()));
      }
    }
    return all;
  }

  const std::string no_path_;
  bool has_user_file_ = false;
  std::deque<Layer> layers_;  // none comes or goes after construction
  SnapshotCell cell_;
  mutable std::mutex mutex_;  // of refresh(), and of what layers say of themselves
  std::string device_;
};

}  // namespace

OverlayOptions default_overlay() {
  OverlayOptions options{.user_file = default_store_path()};
  const char* list = std::getenv("ATTUNE_SYSTEM_CACHE");
  std::string_view rest = list == nullptr ? "" : list;
  while (!rest.empty()) {
    const std::string_view file = rest.substr(0, rest.find(':'));
    if (!file.empty()) options.system_files.emplace_back(file);
    rest.remove_prefix(std::min(rest.size(), file.size() + 1));
  }
  return options;
}

std::unique_ptr<Overlay> Overlay::open(const OverlayOptions& options) {
  return std::make_unique<FileOverlay>(options);
}

}  // namespace attune

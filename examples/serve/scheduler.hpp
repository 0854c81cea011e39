// Decides what each step does: who is admitted, who brings which tokens, who has to go.
#pragma once

#include <deque>
#include <vector>

#include "batch.hpp"
#include "cache.hpp"
#include "drafter.hpp"
#include "model.hpp"
#include "request.hpp"

namespace serve {

struct Limits {
  std::size_t sequences = 8;  // that run at once
  std::size_t rows = 64;      // tokens of a step
  std::size_t chunk = 16;     // tokens of a sequence in a step, but for drafts
  std::size_t drafted = 8;    // nodes of a tree
  std::size_t depth = 4;      // of a tree
};

// A running request's part of a step: rows first_row to first_row + rows, of which the last ones
// are the draft's nodes.
struct Part {
  Request* request;
  std::size_t first_row, rows;
  Draft draft;
};

struct Step {
  std::vector<Part> parts;
  Batch batch;
};

struct Counters {
  std::size_t preemptions = 0;
  std::size_t rows = 0, prefills = 0, decodes = 0, trees = 0;  // parts of each kind
  std::size_t mixed = 0;                                       // steps with all three kinds
  std::size_t drafted = 0, accepted = 0;
};

class Scheduler {
 public:
  // Throws Error where a request would not fit into the cache even alone.
  Scheduler(std::vector<Request> requests, std::size_t vocabulary, const Limits& limits,
            const CacheShape& cache);

  const Capacity& capacity() const { return capacity_; }
  const PageAllocator& pages() const { return pages_; }
  const Counters& counters() const { return counters_; }
  std::size_t running() const { return running_.size(); }
  std::size_t waiting() const { return waiting_.size(); }
  bool is_done() const { return running_.empty() && waiting_.empty(); }

  // The next step. It has no parts while nothing has arrived.
  Step plan();
  // What the model chose for each row of `step`: appends tokens, keeps the accepted part of each
  // tree and returns the rows of the cache that have to be moved for it. Requests that are done
  // give their pages back and are in finished() until the next call.
  std::vector<Move> apply(const Step& step, const std::vector<Choice>& chosen);
  const std::vector<const Request*>& finished() const { return finished_; }

 private:
  bool make_room(std::size_t running, std::size_t rows);
  void preempt_last();
  Draft draft(Request& request, std::size_t rows_left);
  void bring(Request& request, std::size_t rows, Draft draft, Step& step);
  void fill_tables(Step& step) const;
  std::vector<std::size_t> accept(const Part& part, const std::vector<Choice>& chosen);
  std::int32_t slot(const Request& request, std::size_t index) const;

  std::vector<Request> requests_;
  Limits limits_;
  CacheShape cache_;
  Capacity capacity_;
  PageAllocator pages_;
  Drafter drafter_;
  std::deque<Request*> waiting_;   // by arrival; who was preempted comes first
  std::vector<Request*> running_;  // by admission: the last is the first to go
  std::vector<const Request*> finished_;
  std::size_t step_ = 0, preempted_before_ = 0;
  Counters counters_;
};

}  // namespace serve

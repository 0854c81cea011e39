#include "scheduler.hpp"

#include <algorithm>
#include <utility>

namespace serve {

Scheduler::Scheduler(std::vector<Request> requests, std::size_t vocabulary, const Limits& limits,
                     const CacheShape& cache)
    : requests_(std::move(requests)),
      limits_(limits),
      cache_(cache),
      capacity_{limits.sequences, limits.rows, 0, 0},
      pages_(cache.pages),
      drafter_(vocabulary) {
  std::size_t longest = 0;
  for (Request& request : requests_) {
    longest = std::max(longest, request.last_length());
    waiting_.push_back(&request);
  }
  if (cache.pages_for(longest) > cache.pages) {
    throw Error(Exit::kBadInput, "the longest request takes " +
                                     std::to_string(cache.pages_for(longest)) + " pages of " +
                                     std::to_string(cache.page_size) + ", there are " +
                                     std::to_string(cache.pages));
  }
  capacity_.keys = longest + limits.drafted;
  capacity_.pages_per_sequence = cache.pages_for(capacity_.keys);
}

std::int32_t Scheduler::slot(const Request& request, std::size_t index) const {
  const auto page = static_cast<std::size_t>(request.pages[index / cache_.page_size]);
  return static_cast<std::int32_t>(page * cache_.page_size + index % cache_.page_size);
}

// It starts again when there is room: what it has generated is then read like a prompt.
void Scheduler::preempt_last() {
  Request& request = *running_.back();
  running_.pop_back();
  pages_.shrink(request.pages, 0);
  request.cached = 0;
  waiting_.push_front(&request);
  ++counters_.preemptions;
}

// Pages for `rows` more rows of running_[index], taken from those that were admitted last. False:
// it was the last itself.
bool Scheduler::make_room(std::size_t index, std::size_t rows) {
  Request& request = *running_[index];
  while (!pages_.grow(request.pages, cache_.pages_for(request.cached + rows))) {
    preempt_last();
    if (index == running_.size()) return false;
  }
  return true;
}

Step Scheduler::plan() {
  ++step_;
  std::size_t left = limits_.rows;
  const auto rows_of = [&](const Request& request) {
    return std::min({request.missing(), limits_.chunk, left});
  };
  std::vector<std::size_t> rows;  // of each running request
  for (std::size_t i = 0; i < running_.size(); ++i) {
    const std::size_t wanted = rows_of(*running_[i]);
    if (!make_room(i, wanted)) break;
    rows.push_back(wanted);
    left -= wanted;
  }
  // Who had to go comes back no sooner than in a step in which nobody has to.
  const bool is_full =
      std::exchange(preempted_before_, counters_.preemptions) < counters_.preemptions;
  while (!is_full && !waiting_.empty() && waiting_.front()->arrival <= step_ && left > 0 &&
         running_.size() < limits_.sequences) {
    Request& request = *waiting_.front();
    const std::size_t wanted = rows_of(request);
    if (!pages_.grow(request.pages, cache_.pages_for(wanted))) break;
    waiting_.pop_front();
    running_.push_back(&request);
    rows.push_back(wanted);
    left -= wanted;
  }
  Step step;
  for (std::size_t i = 0; i < running_.size(); ++i) {
    if (rows[i] == 0) continue;
    Draft draft = this->draft(*running_[i], left);
    left -= draft.nodes.size();
    bring(*running_[i], rows[i], std::move(draft), step);
  }
  fill_tables(step);
  return step;
}

// For a request that lacks one token alone: a tree behind it, of what rows and pages are left when
// everybody has theirs. Nobody has to go for a guess.
Draft Scheduler::draft(Request& request, std::size_t rows_left) {
  if (!request.speculates || request.missing() != 1) return {};
  // Of what is accepted the model adds one more token.
  const std::size_t depth = request.last_length() - request.tokens.size() - 1;
  Draft draft = drafter_.draft(request.tokens.back(), std::min(limits_.drafted, rows_left),
                               std::min(limits_.depth, depth));
  const std::size_t keys = request.tokens.size() + draft.nodes.size();
  if (!pages_.grow(request.pages, cache_.pages_for(keys))) return {};
  return draft;
}

// The next `rows` tokens that the cache lacks, and the draft behind them.
void Scheduler::bring(Request& request, std::size_t rows, Draft draft, Step& step) {
  Batch& batch = step.batch;
  const std::size_t first = batch.rows();
  batch.sees.resize((first + rows + draft.nodes.size()) * kSeenColumns);
  const auto sees = [&](std::size_t row) { return &batch.sees[(first + row) * kSeenColumns]; };
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t index = request.cached + row;
    batch.tokens.push_back(request.tokens[index]);
    batch.positions.push_back(static_cast<std::int32_t>(index));
    std::fill_n(sees(row), row + 1, std::uint8_t{1});
  }
  // A node sees what its parent sees, and itself. Siblings stand at one position, in slots of their
  // own.
  for (std::size_t node = 0; node < draft.nodes.size(); ++node) {
    const Draft::Node& drafted = draft.nodes[node];
    const std::size_t parent = static_cast<std::size_t>(drafted.parent + 1), row = node + 1;
    batch.tokens.push_back(drafted.token);
    batch.positions.push_back(static_cast<std::int32_t>(request.cached + drafted.depth));
    std::copy_n(sees(parent), kSeenColumns, sees(row));
    sees(row)[row] = 1;
  }
  ++(!draft.nodes.empty() ? counters_.trees : rows == 1 ? counters_.decodes : counters_.prefills);
  counters_.drafted += draft.nodes.size();
  step.parts.push_back({&request, first, batch.rows() - first, std::move(draft)});
}

void Scheduler::fill_tables(Step& step) const {
  Batch& batch = step.batch;
  batch.page_table.assign(capacity_.sequences * capacity_.pages_per_sequence, -1);
  batch.cu_q.push_back(0);
  for (const Part& part : step.parts) {
    const std::size_t sequence = batch.used_kv.size();
    std::copy(part.request->pages.begin(), part.request->pages.end(),
              batch.page_table.begin() +
                  static_cast<std::ptrdiff_t>(sequence * capacity_.pages_per_sequence));
    batch.cu_q.push_back(static_cast<std::int32_t>(part.first_row + part.rows));
    batch.used_kv.push_back(static_cast<std::int32_t>(part.request->cached + part.rows));
  }
  batch.cu_q.resize(capacity_.sequences + 1, batch.cu_q.back());
  batch.used_kv.resize(capacity_.sequences, 0);
}

// The path of the tree that the model would have gone itself, as rows of the part. Appends its
// tokens, and the one that follows it.
std::vector<std::size_t> Scheduler::accept(const Part& part, const std::vector<Choice>& chosen) {
  Request& request = *part.request;
  const std::size_t before = part.rows - part.draft.nodes.size();  // rows that are no draft
  std::vector<std::size_t> path;
  std::size_t row = before - 1;
  for (;;) {
    const Choice& choice = chosen[part.first_row + row];
    drafter_.learn(request.tokens.back(), choice.token);
    request.tokens.push_back(choice.token);
    request.logits.push_back(choice.logit);
    const int parent = static_cast<int>(row) - static_cast<int>(before);
    const int node = part.draft.child(parent, choice.token);
    if (node < 0) return path;
    row = before + static_cast<std::size_t>(node);
    path.push_back(row);
  }
}

std::vector<Move> Scheduler::apply(const Step& step, const std::vector<Choice>& chosen) {
  finished_.clear();
  std::vector<Move> moves;
  bool has[3] = {};
  for (const Part& part : step.parts) {
    Request& request = *part.request;
    const std::size_t first = request.cached;
    const std::size_t before = part.rows - part.draft.nodes.size();
    request.cached += before;
    counters_.rows += part.rows;
    has[!part.draft.nodes.empty() ? 2 : before == 1 ? 1 : 0] = true;
    if (request.missing() > 0) continue;  // the prompt goes on
    for (const std::size_t row : accept(part, chosen)) {
      const auto from = static_cast<std::size_t>(slot(request, first + row));
      const auto to = static_cast<std::size_t>(slot(request, request.cached++));
      if (from != to) moves.push_back({from, to});
      ++counters_.accepted;
    }
    const bool is_done = request.is_done();
    pages_.shrink(request.pages, is_done ? 0 : cache_.pages_for(request.cached));
    if (!is_done) continue;
    finished_.push_back(&request);
    running_.erase(std::find(running_.begin(), running_.end(), &request));
  }
  counters_.mixed += has[0] && has[1] && has[2] ? 1 : 0;
  return moves;
}

}  // namespace serve

#include "tests/emulator/machine.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace emu {
namespace {

constexpr std::size_t kStackBytes = 256 << 10;
constexpr u64 kStackEnd = 0x600DC0DE600DC0DEull;  // in a stack's last word
constexpr int kPollRounds = 5000;                 // that nothing but polling may go on for

struct ThreadEnd {};

// A thread's stack, which the machine keeps.
struct LentStack {
  std::byte* base;
  boost::context::stack_context allocate() const {
    boost::context::stack_context stack;
    stack.size = kStackBytes;
    stack.sp = base + kStackBytes;
    return stack;
  }
  void deallocate(boost::context::stack_context&) const {}
};

std::map<u64, std::size_t>& memory() {
  static auto& blocks = *new std::map<u64, std::size_t>;  // freed from at the process' end
  return blocks;
}
std::size_t used = 0;
int generation = 1, generation_seen = 0;  // of `memory`, and of what was found in it last

}  // namespace

void remember_memory(void* address, std::size_t bytes) {
  memory()[reinterpret_cast<u64>(address)] = bytes;
  used += bytes;
}
std::size_t forget_memory(void* address) {
  const auto found = memory().find(reinterpret_cast<u64>(address));
  if (found == memory().end()) return 0;
  const std::size_t bytes = found->second;
  memory().erase(found);
  used -= bytes;
  ++generation;
  return bytes;
}
std::size_t used_bytes() { return used; }

Machine machine;

void Machine::read_order() {
  const char* chosen = std::getenv("ATTUNE_EMULATOR_ORDER");
  const std::string order = chosen == nullptr ? "early" : chosen;
  order_ = order == "early" ? Order::kEarly : order == "late" ? Order::kLate : Order::kRandom;
  if (order_ == Order::kRandom) random_.seed(static_cast<unsigned>(std::atoi(order.c_str())) + 1);
}

bool Machine::is_late() {
  return order_ == Order::kLate || (order_ == Order::kRandom && random_() % 2 != 0);
}

void Machine::run(const Launch& launch) {
  read_order();
  launch_ = &launch;
  next_block_ = 0;
  fault_.clear();
  const u32 together = order_ == Order::kRandom ? 4 : 1;
  for (int polls = 0; next_block_ < launch.blocks() || !running_.empty();) {
    while (running_.size() < together && next_block_ < launch.blocks()) start_cluster();
    const bool went_on = run_round() || do_postponed();
    if (!fault_.empty()) {
      drop_all();
      throw Fault(fault_);
    }
    if (went_on) {
      polls = 0;
    } else if (next_block_ < launch.blocks()) {
      start_cluster();
    } else if (++polls > kPollRounds) {
      report_deadlock();
    }
  }
}

std::byte* Machine::take_stacks(std::size_t bytes) {
  if (bytes != stacks_bytes_) {
    for (std::byte* each : free_stacks_) munmap(each, stacks_bytes_);
    free_stacks_.clear();
    stacks_bytes_ = bytes;
  }
  if (!free_stacks_.empty()) {
    std::byte* const found = free_stacks_.back();
    free_stacks_.pop_back();
    return found;
  }
  void* const made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) throw Fault("no memory for stacks");
  return static_cast<std::byte*>(made);
}

void Machine::start_cluster() {
  auto running = std::make_unique<Running>();
  const u32 size = launch_->cluster;
  const std::size_t shared_bytes = std::size_t{size} * kSharedBytes;
  running->shared.reset(static_cast<unsigned char*>(std::aligned_alloc(1024, shared_bytes)));
  std::memset(running->shared.get(), 0xFF, shared_bytes);  // NaN in every type
  running->stacks = take_stacks(std::size_t{size} * launch_->threads * kStackBytes);
  running->cluster.threads = static_cast<int>(size * launch_->threads);
  for (u32 rank = 0; rank < size; ++rank) {
    auto cta = std::make_unique<Cta>();
    cta->block = next_block_++;
    cta->rank = rank;
    cta->cluster = &running->cluster;
    cta->live = static_cast<int>(launch_->threads);
    cta->shared = running->shared.get() + std::size_t{rank} * kSharedBytes;
    cta->shared_end = kDynamicOffset + launch_->shared_bytes;
    cta->warps.resize((launch_->threads + kLanes - 1) / kLanes);
    cta->groups.resize((launch_->threads + kGroupThreads - 1) / kGroupThreads);
    for (Warpgroup& group : cta->groups) group.is_late = is_late();
    running->cluster.ctas.push_back(cta.get());
    for (u32 i = 0; i < launch_->threads; ++i) {
      auto thread = std::make_unique<Thread>();
      thread->cta = cta.get();
      thread->index = static_cast<int>(i);
      ++cta->warps[i / kLanes].live;
      start_thread(*thread,
                   running->stacks + (std::size_t{rank} * launch_->threads + i) * kStackBytes);
      cta->threads.push_back(std::move(thread));
    }
    running->ctas.push_back(std::move(cta));
  }
  running_.push_back(std::move(running));
}

void Machine::start_thread(Thread& thread, std::byte* stack) {
  u64& last = *reinterpret_cast<u64*>(stack);
  last = kStackEnd;
  thread.copy_groups.emplace_back();
  thread.store_groups.emplace_back();
  thread.product_groups.emplace_back();
  thread.fiber = boost::context::fiber(
      std::allocator_arg, LentStack{stack}, [this, &thread, &last](boost::context::fiber&&) {
        try {
          try {
            launch_->kernel->run();
          } catch (const ThreadEnd&) {
          }
          Warp& own = warp();
          if (own.meeting.arrived > 0) throw Fault("a lane ended where others wait for it");
          if (thread.store_groups.size() > 1 || !thread.store_groups.front().empty()) {
            throw Fault("a thread ended before its stores had read their shared memory");
          }
          if (last != kStackEnd) throw Fault("a thread needs more stack than the emulator has");
          --own.live;
          --cta().live;
        } catch (const Fault& found) {
          note_fault(thread, found);
        }
        thread.is_done = true;
        return std::move(scheduler_);
      });
}

void Machine::note_fault(const Thread& thread, const Fault& found) {
  if (!fault_.empty()) return;
  fault_ = "block " + std::to_string(thread.cta->block) + ", thread " +
           std::to_string(thread.index) + ": " + found.what();
}

bool Machine::may_run(const Thread& thread) const {
  return !thread.is_done && thread.awaits.holds();
}

void Machine::enter(Thread& thread, boost::context::fiber* self) {
  thread.awaits = {};
  thread.has_polled = false;
  current_ = &thread;
  std::move(thread.fiber).resume_with([self](boost::context::fiber&& left) {
    *self = std::move(left);
    return boost::context::fiber();
  });
}

// Of the same warp, next to the one that runs: those who meet at an instruction need no scheduler.
Thread* Machine::lane_that_may_run() const {
  const auto& threads = current_->cta->threads;
  const auto index = static_cast<std::size_t>(current_->index);
  const std::size_t warp = index / kLanes * kLanes;
  for (std::size_t i = 1; i < kLanes; ++i) {
    const std::size_t other = warp + (index + i) % kLanes;
    if (other < threads.size() && may_run(*threads[other])) return threads[other].get();
  }
  return nullptr;
}

// Lets others run.
void Machine::leave() {
  Thread& self = *current_;
  Thread* const other = self.awaits.word == nullptr ? nullptr : lane_that_may_run();
  if (other != nullptr) {
    went_on_ = true;
    enter(*other, &self.fiber);
    return;
  }
  std::move(scheduler_).resume_with([&self](boost::context::fiber&& left) {
    self.fiber = std::move(left);
    return boost::context::fiber();
  });
}

void Machine::run_warp(Cta& cta, std::size_t warp) {
  if (!cta.warps[warp].awaits.holds()) return;
  const std::size_t begin = warp * kLanes;
  const std::size_t end = std::min(begin + kLanes, cta.threads.size());
  bool is_common = true;
  for (std::size_t i = begin; i < end && fault_.empty(); ++i) {
    Thread& thread = *cta.threads[i];
    if (may_run(thread)) {
      enter(thread, &scheduler_);
      went_on_ |= !current_->has_polled;
    }
  }
  for (std::size_t i = begin; i < end; ++i) {
    is_common &= cta.threads[i]->awaits == cta.threads[begin]->awaits;
  }
  cta.warps[warp].awaits = is_common ? cta.threads[begin]->awaits : Condition();
}

// Whether anybody came further.
bool Machine::run_round() {
  went_on_ = false;
  for (std::size_t at = 0; at < running_.size();) {
    int live = 0;
    for (const auto& cta : running_[at]->ctas) {
      const std::size_t warps = cta->warps.size();
      const std::size_t first = order_ == Order::kRandom ? random_() % warps : 0;
      for (std::size_t w = 0; w < warps && fault_.empty(); ++w) {
        if (order_ == Order::kRandom && random_() % 4 == 0) continue;
        run_warp(*cta, (first + w) % warps);
      }
      live += cta->live;
    }
    if (!fault_.empty()) return true;
    if (live == 0) {
      end_cluster(at);
      went_on_ = true;
    } else {
      ++at;
    }
  }
  if (!went_on_ && order_ == Order::kRandom) {  // who was left out might have come further
    for (const auto& running : running_) {
      for (const auto& cta : running->ctas) {
        for (const auto& thread : cta->threads) went_on_ |= may_run(*thread) && !thread->has_polled;
      }
    }
  }
  return went_on_;
}

void Machine::end_cluster(std::size_t at) {
  while (do_postponed()) {
  }
  free_stacks_.push_back(running_[at]->stacks);
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(at));
}

bool Machine::do_postponed() {
  if (postponed_.empty()) return false;
  if (order_ == Order::kRandom) {
    std::swap(postponed_.front(), postponed_[random_() % postponed_.size()]);
  }
  const std::function<void()> work = std::move(postponed_.front());
  postponed_.pop_front();
  work();
  return true;
}

void Machine::drop_all() {
  postponed_.clear();
  for (const auto& running : running_) {
    for (const auto& cta : running->ctas) cta->threads.clear();  // unwinds what still runs
    free_stacks_.push_back(running->stacks);
  }
  running_.clear();
}

void Machine::report_deadlock() {
  std::string waiting;
  int count = 0;
  for (const auto& running : running_) {
    for (const auto& cta : running->ctas) {
      for (std::size_t i = 0; i < cta->threads.size(); i += kLanes) {
        const Thread& thread = *cta->threads[i];
        if (thread.is_done || ++count > 40) continue;
        waiting +=
            "\n  block " + std::to_string(cta->block) + ", warp " + std::to_string(i / kLanes);
        const auto* const word = reinterpret_cast<const unsigned char*>(thread.awaits.word);
        if (word == nullptr) {
          waiting += " polls";
        } else if (word >= cta->shared && word < cta->shared + kSharedBytes) {
          waiting += " waits for the mbarrier at " + std::to_string(word - cta->shared) +
                     ", parity " + std::to_string(thread.awaits.value);
        } else {
          waiting += " waits for other threads";
        }
      }
    }
  }
  drop_all();
  throw Fault("all threads wait:" + waiting);
}

void Machine::as(Thread& thread, const std::function<void()>& work) {
  Thread* const ran = current_;
  current_ = &thread;
  try {
    work();
  } catch (const Fault& found) {
    note_fault(thread, found);
  }
  current_ = ran;
}

void Machine::wait(const u32* word, u32 bits, u32 value) {
  Thread& thread = *current_;
  while ((*word & bits) == value) {
    thread.awaits = {word, bits, value};
    leave();
  }
}

void Machine::poll() {
  Thread& thread = *current_;
  thread.has_polled = true;
  leave();
}

void Machine::report_parted(const Meeting& meeting, const char* what) {
  throw Fault(std::string("threads of one instruction have parted: ") + meeting.what + " and " +
              what);
}

u32 thread_index() { return static_cast<u32>(machine.current().index); }
u32 block_size() { return machine.launch().threads; }
Index block_index() {
  const Index& grid = machine.launch().grid;
  const u32 block = machine.cta().block;
  return {block % grid.x, block / grid.x % grid.y, block / grid.x / grid.y};
}
Index block_counts() { return machine.launch().grid; }
u32 cluster_rank() { return machine.cta().rank; }
void fault(const char* what) { throw Fault(what); }
void end_thread() { throw ThreadEnd(); }
void let_others_run() { machine.poll(); }

void* global_memory(u64 address, u32 bytes) {
  static u64 begin = 0, end = 0;  // of the block that was asked for last
  if (address % bytes != 0) throw Fault("a global address is not aligned");
  if (generation_seen == generation && address >= begin && address + bytes <= end) {
    return reinterpret_cast<void*>(address);
  }
  auto after = memory().upper_bound(address);
  if (after == memory().begin() || address + bytes > (--after)->first + after->second) {
    throw Fault("a global address is nobody's");
  }
  begin = after->first;
  end = begin + after->second;
  generation_seen = generation;
  return reinterpret_cast<void*>(address);
}

void* shared_memory(u32 address, u32 bytes) {
  const Cluster& cluster = *machine.cta().cluster;
  const u32 rank = address >> kRankShift, offset = address & kOffsetBits;
  if (rank >= cluster.ctas.size()) throw Fault("a shared address of no CTA of the cluster");
  const Cta& cta = *cluster.ctas[rank];
  if (offset % bytes != 0) throw Fault("a shared address is not aligned");
  if (offset < kDynamicOffset || offset + bytes > cta.shared_end) {
    throw Fault("a shared address outside of the CTA's memory: " + std::to_string(offset) + " of " +
                std::to_string(cta.shared_end));
  }
  return cta.shared + offset;
}

u32 shared_address(const void* pointer) {
  const Cta& cta = machine.cta();
  const auto offset = static_cast<const unsigned char*>(pointer) - cta.shared;
  if (offset < 0 || offset > kSharedBytes) throw Fault("not an address of shared memory");
  return cta.rank << kRankShift | static_cast<u32>(offset);
}

unsigned char* dynamic_shared() { return machine.cta().shared + kDynamicOffset; }

void* static_shared(int number, u64 bytes, u64 alignment) {
  Cta& cta = machine.cta();
  const auto [found, is_new] = cta.statics.try_emplace(number, 0);
  if (is_new) {
    const u32 align = static_cast<u32>(std::max<u64>(alignment, 16));
    found->second = (cta.shared_end + align - 1) / align * align;
    cta.shared_end = found->second + static_cast<u32>(bytes);
    if (cta.shared_end > kSharedBytes) throw Fault("too much shared memory");
  }
  return cta.shared + found->second;
}

}  // namespace emu

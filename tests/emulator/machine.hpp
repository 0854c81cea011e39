// A GPU on one thread of the CPU. Each of a kernel's threads is a fiber, which runs until it has to
// wait for others. CTAs start in the order of their numbers, a few at a time, more when those wait.
//
// Asynchronous work (TMA, cp.async, wgmma) may be done when it is asked for, or at the last moment,
// when somebody waits for it: a kernel that reads too soon sees what was there before, one that
// writes too soon spoils what has not been read. ATTUNE_EMULATOR_ORDER: `early`, `late`, or a
// number, the seed of coins that are thrown for each piece of work and for who runs next.
#pragma once

#include <array>
#include <boost/context/fiber.hpp>
#include <cstddef>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/emulator/machine_calls.hpp"

namespace emu {

constexpr u32 kDynamicOffset = 1024;     // where dynamic shared memory begins
constexpr u32 kSharedBytes = 256 << 10;  // what a product's descriptor can name
constexpr int kLanes = 32;
constexpr int kGroupThreads = 128;

struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Threads that come together at an instruction.
struct Meeting {
  const char* what = nullptr;  // one literal an instruction
  int arrived = 0;
  u32 generation = 0;
};

struct Cta;

// That these bits of a word differ from a value. Without a word: none, it holds.
struct Condition {
  const u32* word = nullptr;
  u32 bits = 0, value = 0;
  bool holds() const { return word == nullptr || (*word & bits) != value; }
  bool operator==(const Condition&) const = default;
};

struct Thread {
  Cta* cta = nullptr;
  int index = 0;
  bool is_done = false;
  bool has_polled = false;  // it ran, and came no further
  Condition awaits;
  u32 cluster_generation = 0;  // in which it arrived at the cluster's barrier
  boost::context::fiber fiber;
  using Work = std::function<void()>;
  std::deque<std::vector<Work>> copy_groups, store_groups;  // the last one is not committed
  std::deque<std::vector<GroupProduct>> product_groups;     // the same
  int lane() const { return index % kLanes; }
};

struct Warp {
  int live = 0;
  Condition awaits;  // of all its threads; without a word they differ
  Meeting meeting;
  std::array<std::array<u32, 10>, kLanes> words;  // what each lane brings, and takes away
};

struct Warpgroup {
  Meeting meeting;
  bool is_late = false;  // its products
};

struct NamedBarrier {
  u32 arrived = 0;
  u32 generation = 0;
  bool any = false, was_any = false;
};

struct Cluster {
  std::vector<Cta*> ctas;
  int threads = 0;
  u32 arrived = 0, generation = 0;
};

struct Cta {
  u32 block = 0;  // of all, x first
  u32 rank = 0;
  Cluster* cluster = nullptr;
  int live = 0;
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Warp> warps;
  std::vector<Warpgroup> groups;
  std::array<NamedBarrier, 16> barriers;
  unsigned char* shared = nullptr;  // kSharedBytes
  u32 shared_end = 0;
  std::map<int, u32> statics;
};

struct Launch {
  Index grid;
  u32 threads, shared_bytes, cluster;
  const BoundKernel* kernel;
  // Of what the driver takes it is less than 2^32.
  u32 blocks() const { return grid.x * grid.y * grid.z; }
};

class Machine {
 public:
  // Runs a grid to its end. Throws Fault.
  void run(const Launch& launch);

  Thread& current() { return *current_; }
  Cta& cta() { return *current_->cta; }
  Warp& warp() { return cta().warps[static_cast<std::size_t>(current_->index / kLanes)]; }
  Warpgroup& group() {
    return cta().groups[static_cast<std::size_t>(current_->index / kGroupThreads)];
  }
  const Launch& launch() const { return *launch_; }

  // Lets others run until (*word & bits) != value.
  void wait(const u32* word, u32 bits, u32 value);
  void poll();
  // Comes together with `count` threads at an instruction; the last one calls `all_here`.
  template <typename Work>
  void meet(Meeting& meeting, int count, const char* what, const Work& all_here) {
    if (meeting.arrived == 0) meeting.what = what;
    if (meeting.what != what) report_parted(meeting, what);
    if (++meeting.arrived < count) return wait(&meeting.generation, ~0u, meeting.generation);
    all_here();
    meeting.arrived = 0;
    ++meeting.generation;
  }

  bool is_late();  // this piece of work
  // Does a thread's work, whoever runs.
  void as(Thread& thread, const std::function<void()>& work);
  void postpone(std::function<void()> work) { postponed_.push_back(std::move(work)); }

 private:
  void read_order();
  void start_cluster();
  void start_thread(Thread& thread, std::byte* stack);
  void end_cluster(std::size_t at);
  bool run_round();
  void run_warp(Cta& cta, std::size_t warp);
  bool may_run(const Thread& thread) const;
  // Goes on with a thread; what runs until then is kept in `self`.
  void enter(Thread& thread, boost::context::fiber* self);
  Thread* lane_that_may_run() const;
  void leave();
  bool do_postponed();  // one piece of it
  void note_fault(const Thread& thread, const Fault& found);
  void drop_all();
  [[noreturn]] void report_deadlock();
  [[noreturn]] static void report_parted(const Meeting& meeting, const char* what);

  struct Running {
    Cluster cluster;
    std::vector<std::unique_ptr<Cta>> ctas;
    std::unique_ptr<unsigned char, decltype(&std::free)> shared{nullptr, std::free};
    std::byte* stacks = nullptr;
  };
  std::byte* take_stacks(std::size_t bytes);

  enum class Order { kEarly, kLate, kRandom } order_ = Order::kEarly;
  std::minstd_rand random_;
  const Launch* launch_ = nullptr;
  Thread* current_ = nullptr;
  boost::context::fiber scheduler_;
  bool went_on_ = false;
  u32 next_block_ = 0;
  std::vector<std::unique_ptr<Running>> running_;
  std::vector<std::byte*> free_stacks_;
  std::size_t stacks_bytes_ = 0;
  std::deque<std::function<void()>> postponed_;
  std::string fault_;
};

extern Machine machine;

// Tells an mbarrier of bytes that are there.
void mbarrier_complete(u32 barrier, u32 bytes);

// Device memory: what the driver has given out. Forgetting tells its bytes, or 0.
void remember_memory(void* address, std::size_t bytes);
std::size_t forget_memory(void* address);
std::size_t used_bytes();

}  // namespace emu

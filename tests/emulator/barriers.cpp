// mbarriers, a CTA's barriers, a cluster's.
#include "tests/emulator/machine.hpp"

namespace emu {
namespace {

// An mbarrier's 8 bytes.
struct Word {
  u32 state;  // bit 0: the phase; then arrivals a phase, 15 bits; those to come, 15; bit 31: it is
              // one
  int bytes;  // that are to come
  u32 arrivals() const { return state >> 1 & 0x7FFF; }
  u32 pending() const { return state >> 16 & 0x7FFF; }
  void set(u32 phase, u32 count, u32 pending) {
    state = 1u << 31 | pending << 16 | count << 1 | phase;
  }
};

Word& word_at(u32 barrier) {
  Word& word = *static_cast<Word*>(shared_memory(barrier, sizeof(Word)));
  if (word.state >> 31 == 0 || word.arrivals() == 0x7FFF) throw Fault("not an mbarrier");
  return word;
}

void end_phase_if_complete(Word& word) {
  if (word.pending() > 0 || word.bytes != 0) return;
  word.set(1 - (word.state & 1), word.arrivals(), word.arrivals());
}

}  // namespace

void mbarrier_init(u32 barrier, u32 arrivals) {
  Word& word = *static_cast<Word*>(shared_memory(barrier, sizeof(Word)));
  word.set(0, arrivals, arrivals);
  word.bytes = 0;
}

void mbarrier_arrive(u32 barrier, u32 expected_bytes) {
  Word& word = word_at(barrier);
  if (word.pending() == 0) throw Fault("more arrivals at an mbarrier than it was made for");
  word.bytes += static_cast<int>(expected_bytes);
  word.set(word.state & 1, word.arrivals(), word.pending() - 1);
  end_phase_if_complete(word);
}

void mbarrier_complete(u32 barrier, u32 bytes) {
  Word& word = word_at(barrier);
  word.bytes -= static_cast<int>(bytes);
  end_phase_if_complete(word);
}

bool mbarrier_try_wait(u32 barrier, u32 parity) {
  if (parity > 1) throw Fault("a parity of " + std::to_string(parity));
  const Word& word = word_at(barrier);
  if ((word.state & 1) != parity) return true;
  machine.wait(&word.state, 1, parity);
  return true;
}

namespace {

void arrive_at(u32 number, u32 threads, bool value, bool waits) {
  if (number >= 16 || threads % kLanes != 0) throw Fault("a barrier of no CTA");
  NamedBarrier& barrier = machine.cta().barriers[number];
  barrier.any |= value;
  if (++barrier.arrived < threads) {
    if (waits) machine.wait(&barrier.generation, ~0u, barrier.generation);
    return;
  }
  barrier.arrived = 0;
  barrier.was_any = barrier.any;
  barrier.any = false;
  ++barrier.generation;
}

}  // namespace

void barrier_arrive(u32 number, u32 threads, bool waits) {
  arrive_at(number, threads, false, waits);
}

bool barrier_any(u32 number, u32 threads, bool value) {
  arrive_at(number, threads, value, true);
  return machine.cta().barriers[number].was_any;
}

bool sync_threads(bool value) { return barrier_any(0, machine.launch().threads, value); }

void cluster_arrive() {
  Cluster& cluster = *machine.cta().cluster;
  Thread& thread = machine.current();
  thread.cluster_generation = cluster.generation;
  if (++cluster.arrived < static_cast<u32>(cluster.threads)) return;
  cluster.arrived = 0;
  ++cluster.generation;
}

void cluster_wait() {
  const Cluster& cluster = *machine.cta().cluster;
  machine.wait(&cluster.generation, ~0u, machine.current().cluster_generation);
}

}  // namespace emu

// The numbers of one launch of a host's, in memory that a worker can open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "generator/spec/spec.hpp"
#include "generator/support/result.hpp"
#include "runtime/reference/oracle.hpp"
#include "runtime/support/problem_layout.hpp"
#include "templates/params.h"

namespace attune {

// What of a launch is no array. Plain: it is written as it lies, for a process of the same build.
struct LaunchFacts {
  ProblemShape shape;
  PageSizes pages;  // of paged keys
  att::ScalarValue scalars[att::kMaxScalars] = {};
  float softmax_scale = 0;
  unsigned drop_below = 0;  // of 256, as dropout_drop_below() gives it
  std::uint64_t dropout_seed = 0, dropout_offset = 0;
  bool has_used_q = false, has_used_kv = false;  // of packed sequences
  bool has_d_o = false, has_d_lse = false;       // of the backward pass
};

// kTensor is of a slot.
enum class LaunchPart : std::uint8_t {
  kQ,
  kK,
  kV,
  kDO,
  kDLse,
  kCuQ,
  kCuKv,
  kUsedQ,
  kUsedKv,
  kPageTable,
  kTensor
};

// q, k, v and d_o lie contiguous in the spec's layout and dtype ([pages, page_size, kv_heads, dim]
// of paged keys), auxiliary tensors row-major in theirs, d_lse [batch, heads, q_len] in fp32, the
// rest as int32. Thread-safe once nobody writes to it.
class GivenLaunch {
 public:
  // Memory for the arrays that `facts` call for, to be filled before path() is told to anybody.
  // "memory-short" where the machine has no room.
  static Result<std::unique_ptr<GivenLaunch>> make(const AttentionSpec& spec,
                                                   const LaunchFacts& facts);
  // What another process made for the same spec. "given-launch" where it is not that.
  static Result<std::unique_ptr<GivenLaunch>> open(const AttentionSpec& spec,
                                                   const std::string& path);
  ~GivenLaunch();
  GivenLaunch(const GivenLaunch&) = delete;
  GivenLaunch& operator=(const GivenLaunch&) = delete;

  const LaunchFacts& facts() const { return *reinterpret_cast<const LaunchFacts*>(memory_); }
  // Empty where the launch has none.
  std::span<const std::byte> bytes(LaunchPart part, std::size_t slot = 0) const;
  // The same, to be filled. Precondition: of make().
  std::span<std::byte> room(LaunchPart part, std::size_t slot = 0);
  // Where processes of the same user find it for as long as this object is there. Of make(). From
  // now on nobody writes to it: the system sees to that as far as it can.
  std::string publish();

 private:
  GivenLaunch(int fd, std::byte* memory, std::size_t size)
      : fd_(fd), memory_(memory), size_(size) {}
  struct Place {
    std::size_t begin = 0, size = 0;
  };
  static std::vector<Place> places(const AttentionSpec& spec, const LaunchFacts& facts);

  int fd_;  // -1: of open()
  std::byte* memory_;
  std::size_t size_;
  std::vector<Place> places_;
};

// Widened, for an oracle. Eight bytes an element.
HostProblem host_problem(const AttentionSpec& spec, const GivenLaunch& launch);
HostSequences host_sequences(const GivenLaunch& launch);
HostPages host_pages(const GivenLaunch& launch);

// Makes the launch's tensors the samples of `spec`'s; those of more than 2^24 elements are left as
// they are described.
void give_tensors(const GivenLaunch& launch, AttentionSpec& spec);

}  // namespace attune

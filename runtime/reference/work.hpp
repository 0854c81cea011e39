// How much a problem asks for, and how fast a device could at best do it: what TFLOP/s, GB/s and
// the share of the roofline are counted from.
#pragma once

#include <vector>

#include "generator/expr/evaluator.hpp"
#include "generator/plan/plan.hpp"
#include "runtime/reference/oracle.hpp"

namespace attune {

// The values behind a problem's scalars and tensors, by slot.
struct ProblemValues {
  std::vector<double> scalars;
  std::vector<expr::TensorValues> tensors;
  HostSequences sequences = {};  // of a packed problem
};

struct Work {
  double live_share = 1;  // of all (query, key) pairs
  double flops = 0;       // of the pass' matrix products over the live pairs
  double bytes = 0;       // every input read once, every output written once
};

// The forward pass. Counts live pairs exactly for up to `max_pairs` of them, else on rows spread
// evenly over the sequence, batch and heads: 2^22 pairs take about a tenth of a second.
Work forward_work(const AttentionSpec& spec, const ProblemShape& shape, const ProblemValues& values,
                  double max_pairs = 1 << 22);

// The backward pass: 2.5 times the forward's operations, as five products are to two, whatever
// products a kernel repeats. Its inputs are the forward's, O, LSE and dO.
Work backward_work(const AttentionSpec& spec, const ProblemShape& shape,
                   const ProblemValues& values, double max_pairs = 1 << 22);
Work work_of(Pass pass, const AttentionSpec& spec, const ProblemShape& shape,
             const ProblemValues& values);

// The time below which no kernel can be: matrix peak or memory, whichever binds.
double roofline_us(const Work& work, const DeviceFacts& device);

// The device as products of the spec's dtype find it: of fp32 on a GPU its rate is that of tf32's,
// half of two-byte elements', shared among the three products that make one.
DeviceFacts facts_of_dtype(const AttentionSpec& spec, const DeviceFacts& device);

}  // namespace attune

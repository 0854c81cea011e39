// The oracle of gradients on a GPU: rows of dQ, dK and dV of problems too large for the CPU's, a
// warp a row, with what each element may be off by. templates/tile/row_gradients.h has the
// arithmetic. Mask, score, its derivative and sink are the generated functions that kernels use.
//
// att_gradients_deltas comes first. What is learned is summed up by att_gradients_queries, over the
// rows of dQ that it makes, and by att_gradients_sinks. att_gradients_judge holds what a kernel
// left in d_q, d_k and d_v against the answer.
#include "templates/kernels/backward_head.cuh"
#include "templates/tile/reference_warp.cuh"
#include "templates/tile/row_gradients.h"

namespace att {

// Calls f(params, row, lane) for the row of this warp, if there are so many.
template <typename F>
ATT_FN void for_gradient_row(const GradientReferenceParams& params, long long count, const F& f) {
  const long long row =
      static_cast<long long>(block_index()) * kReferenceWarps + thread_index() / 32;
  if (row < count) f(params, row, thread_index() % 32);
}

}  // namespace att

ATT_KERNEL att_gradients_deltas(ATT_GRID_CONSTANT att::GradientReferenceParams params) {
  const att::LaunchParams& p = params.launch;
  att::for_gradient_row(params, static_cast<long long>(p.batch) * p.heads * p.q_len,
                        [](const att::GradientReferenceParams& own, long long row, int lane) {
                          att::reference_delta(own, row, lane);
                        });
}

ATT_KERNEL att_gradients_sinks(ATT_GRID_CONSTANT att::GradientReferenceParams params) {
  const att::LaunchParams& p = params.launch;
  att::for_gradient_row(params, static_cast<long long>(p.batch) * p.heads,
                        [](const att::GradientReferenceParams& own, long long row, int lane) {
                          att::reference_sink(own, row, lane);
                        });
}

ATT_KERNEL att_gradients_queries(ATT_GRID_CONSTANT att::GradientReferenceParams params) {
  att::for_gradient_row(params, params.query_count,
                        [](const att::GradientReferenceParams& own, long long row, int lane) {
                          att::reference_query(own, row, lane);
                        });
}

ATT_KERNEL att_gradients_keys(ATT_GRID_CONSTANT att::GradientReferenceParams params) {
  att::for_gradient_row(params, params.key_count,
                        [](const att::GradientReferenceParams& own, long long row, int lane) {
                          att::reference_key(own, row, lane);
                        });
}

ATT_KERNEL att_gradients_judge(ATT_GRID_CONSTANT att::GradientReferenceParams params) {
  att::for_gradient_row(params, params.query_count + params.key_count,
                        [](const att::GradientReferenceParams& own, long long row, int lane) {
                          att::reference_judge(own, row, lane);
                        });
}

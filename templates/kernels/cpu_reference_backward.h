// The oracle of gradients in the form that a GPU gets, on CPU cores: a call is a row. The CPU's own
// judge is runtime/reference/backward.hpp; this lets the text be tested against it where there is
// no GPU.
#include "templates/cpu/reference_core.h"
#include "templates/kernels/backward_head.cuh"
#include "templates/tile/row_gradients.h"

extern "C" void att_gradients_deltas(const att::GradientReferenceParams* params, int row) {
  att::reference_delta(*params, row, 0);
}
extern "C" void att_gradients_sinks(const att::GradientReferenceParams* params, int head) {
  att::reference_sink(*params, head, 0);
}
extern "C" void att_gradients_queries(const att::GradientReferenceParams* params, int row) {
  att::reference_query(*params, row, 0);
}
extern "C" void att_gradients_keys(const att::GradientReferenceParams* params, int row) {
  att::reference_key(*params, row, 0);
}
extern "C" void att_gradients_judge(const att::GradientReferenceParams* params, int row) {
  att::reference_judge(*params, row, 0);
}

// A host that was compiled against the header of version 0.1 and runs against today's library.
#include <gtest/gtest.h>

#include <attune/attune.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "tests/unit/runtime/abi_layout.hpp"

#ifdef ATT_VERSION_MAJOR
#error "this is not the header of version 0.1"
#endif

namespace {

constexpr att_shape kShape = {1, 2, 1, 3, 5};
constexpr const char* kSpec =
    "attune: 1\nname: x\ndtype: fp32\nhead_dim: 8\nscalars: {from: int}\n"
    "tensors: {doc: {dtype: int32, dims: [batch, kv_len]}}\n"
    "mask: doc[b, kv_idx] == 1 and kv_idx >= from\n";

TEST(OldHeader, EveryFieldAndValueIsWhereItWas) {
  const std::vector<AbiEntry> before = old_abi_layout(), now = abi_layout();
  ASSERT_EQ(before.size(), now.size());
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(now[i].offset, before[i].offset) << before[i].name;
    EXPECT_EQ(now[i].bytes, before[i].bytes) << before[i].name;
  }
}

struct alignas(64) Values {
  float q[48] = {}, k[64] = {}, v[64] = {}, o[48] = {}, lse[16] = {};
};

TEST(OldHeader, ACppHostRuns) {
  attune::RuntimeOptions options;
  options.device = "cpu";
  options.use_cache = false;
  auto runtime = attune::Runtime::create(options);
  ASSERT_TRUE(runtime) << runtime.error().message;
  const auto spec = attune::Spec::from_yaml(kSpec);
  ASSERT_TRUE(spec) << spec.error().message;
  const attune::SpecInfo info = spec->info();
  EXPECT_EQ(info.struct_size, sizeof(att_spec_info));
  EXPECT_EQ(info.dtype, ATT_FP32);
  EXPECT_EQ(info.head_dim_v, 8);
  EXPECT_EQ(info.scalar_count, 1);
  EXPECT_EQ(info.tensor_count, 1);
  const auto kernel = runtime->kernel(*spec, kShape);
  if (!kernel && kernel.error().code == ATT_UNAVAILABLE) GTEST_SKIP() << kernel.error().message;
  ASSERT_TRUE(kernel) << kernel.error().message;

  const auto values = std::make_unique<Values>();
  for (int i = 0; i < 40; ++i) values->v[i] = static_cast<float>(i / 8);
  const std::int32_t documents[5] = {1, 1, 0, 1, 0};
  const void* tensors[] = {documents};
  att_scalar from;
  from.i = 1;
  std::vector<Values> workspace(kernel->workspace_bytes(kShape) / sizeof(Values) + 1);
  attune::ForwardArgs args;
  args.shape = kShape;
  args.q = values->q;
  args.k = values->k;
  args.v = values->v;
  args.o = values->o;
  args.lse = values->lse;
  args.workspace = workspace.data();
  args.scalars = &from;
  args.tensors = tensors;
  const attune::Status status = kernel->forward(args);
  ASSERT_TRUE(status) << status.error().message;
  for (const float value : values->o) EXPECT_FLOAT_EQ(value, 2.0f);  // of rows 1 and 3
  EXPECT_NEAR(values->lse[0], std::log(2.0), 1e-6);
  args.tensors = nullptr;
  const attune::Status refused = kernel->forward(args);
  EXPECT_EQ(refused.error().code, ATT_BAD_INPUT);
}

TEST(OldHeader, NothingIsWrittenBeyondWhatItKnows) {
  att_spec* spec = nullptr;
  ASSERT_EQ(att_spec_from_yaml(kSpec, &spec), ATT_OK) << att_last_error();
  struct {
    att_spec_info info;
    unsigned char beyond[64];
  } room;
  std::memset(&room, 0xAB, sizeof room);
  room.info.struct_size = sizeof room.info;
  EXPECT_EQ(att_spec_describe(spec, &room.info), ATT_OK) << att_last_error();
  EXPECT_EQ(room.info.dropout_at_launch, 0);
  for (const unsigned char byte : room.beyond) EXPECT_EQ(byte, 0xAB);
  att_spec_destroy(spec);
}

}  // namespace

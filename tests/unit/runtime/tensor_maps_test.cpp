#include "runtime/device/tensor_maps.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

namespace attune {
namespace {

// What the fake driver was asked to encode.
struct Encoded {
  int type, swizzle;
  void* address;
  std::array<std::uint64_t, 4> dims;
  std::array<std::uint64_t, 3> strides;
  std::array<std::uint32_t, 4> box;
} encoded;

CudaApi fake_driver() {
  CudaApi api{};
  api.tensor_map_encode_tiled = [](void*, int type, std::uint32_t rank, void* address,
                                   const std::uint64_t* dims, const std::uint64_t* strides,
                                   const std::uint32_t* box, const std::uint32_t*, int, int swizzle,
                                   int, int) -> CUresult {
    EXPECT_EQ(rank, 4u);
    encoded = {type, swizzle, address, {}, {}, {}};
    std::copy_n(dims, 4, encoded.dims.begin());
    std::copy_n(strides, 3, encoded.strides.begin());
    std::copy_n(box, 4, encoded.box.begin());
    return 0;
  };
  return api;
}

class TensorMaps : public testing::Test {
 protected:
  TensorMaps() {
    spec_.head_dim_qk = 192;
    spec_.head_dim_v = 128;
    p_.q = p_.k = p_.v = p_.o = reinterpret_cast<void*>(0x1000);
    p_.batch = 2;
    p_.heads = 8;
    p_.kv_heads = 4;
    p_.q_len = 100;
    p_.kv_len = 300;
    p_.q_stride = {100 * 8 * 192, 8 * 192, 192};
    p_.k_stride = {300 * 4 * 192, 4 * 192, 192};
    p_.v_stride = {300 * 4 * 128, 4 * 128, 128};
    p_.o_stride = {100 * 8 * 128, 8 * 128, 128};
  }
  AttentionSpec spec_;
  att::LaunchParams p_{};
};

using Tensor = TensorMapRecipe::Tensor;
constexpr TensorMapRecipe kForwardMaps[] = {{.tensor = Tensor::kQuery},
                                            {.tensor = Tensor::kKey},
                                            {.tensor = Tensor::kValue},
                                            {.tensor = Tensor::kOutput}};

TEST_F(TensorMaps, DescribeTheCallersTensor) {
  const CudaApi api = fake_driver();
  TensorMap map;
  const TensorMapRecipe recipe{.tensor = TensorMapRecipe::Tensor::kKey,
                               .box_columns = 64,
                               .box_rows = 176,
                               .swizzle_bytes = 128};
  ASSERT_TRUE(encode_tensor_map(api, spec_, recipe, p_, &map).ok());
  EXPECT_EQ(encoded.type, 9);  // CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
  EXPECT_EQ(encoded.swizzle, 3);
  EXPECT_EQ(encoded.address, p_.k);
  EXPECT_EQ(encoded.dims, (std::array<std::uint64_t, 4>{192, 300, 4, 2}));
  EXPECT_EQ(encoded.strides,
            (std::array<std::uint64_t, 3>{4 * 192 * 2, 192 * 2, 300 * 4 * 192 * 2}));
  EXPECT_EQ(encoded.box, (std::array<std::uint32_t, 4>{64, 176, 1, 1}));
}

TEST_F(TensorMaps, ADimOfOneTakesAnyStride) {
  p_.batch = 1;
  p_.k_stride.batch = 0;
  const CudaApi api = fake_driver();
  TensorMap map;
  EXPECT_TRUE(tensor_maps_possible(spec_, kForwardMaps, p_));
  ASSERT_TRUE(
      encode_tensor_map(api, spec_, {.tensor = TensorMapRecipe::Tensor::kKey}, p_, &map).ok());
  EXPECT_EQ(encoded.strides[2] % 16, 0u);
  EXPECT_GT(encoded.strides[2], 0u);
}

TEST_F(TensorMaps, StridesThatTheTensorUnitCannotWalkAreSeen) {
  EXPECT_TRUE(tensor_maps_possible(spec_, kForwardMaps, p_));
  const auto impossible = [&](auto spoil) {
    att::LaunchParams p = p_;
    spoil(p);
    return !tensor_maps_possible(spec_, kForwardMaps, p);
  };
  EXPECT_TRUE(impossible([](auto& p) { p.k_stride.batch = 0; }));
  EXPECT_TRUE(impossible([](auto& p) { p.q_stride.seq = -p.q_stride.seq; }));
  EXPECT_TRUE(impossible([](auto& p) { p.v_stride.head = 132; }));
  EXPECT_TRUE(impossible([](auto& p) { p.o_stride.batch = 1ll << 40; }));
  EXPECT_TRUE(impossible([](auto& p) { p.o = reinterpret_cast<void*>(0x1008); }));
}

TEST_F(TensorMaps, ALaunchAnswersForItsOwnTensorsOnly) {
  p_.k_stride.batch = 0;
  const TensorMapRecipe query{.tensor = Tensor::kQuery};
  EXPECT_TRUE(tensor_maps_possible(spec_, {&query, 1}, p_));
  EXPECT_TRUE(tensor_maps_possible(spec_, {}, p_));
  const TensorMapRecipe key{.tensor = Tensor::kKey, .is_optional = true};
  EXPECT_TRUE(tensor_maps_possible(spec_, {&key, 1}, p_));
  EXPECT_FALSE(tensor_map_possible(spec_, key, p_));
}

TEST_F(TensorMaps, OptionalOnesNeedStridesAndPagesOfWholeBoxes) {
  const TensorMapRecipe maps[] = {{.tensor = Tensor::kKey, .box_rows = 64, .is_optional = true}};
  EXPECT_TRUE(has_optional_maps(spec_, maps, p_));
  spec_.layout = Layout::kPaged;
  p_.page_table.pages = 10;
  for (const auto& [page_size, whole] :
       {std::pair{64, true}, {192, true}, {32, false}, {96, false}, {1, false}}) {
    p_.page_table.page_size = page_size;
    EXPECT_EQ(has_optional_maps(spec_, maps, p_), whole) << page_size;
  }
  p_.page_table.page_size = 64;
  p_.k_stride.batch = 4;
  EXPECT_FALSE(has_optional_maps(spec_, maps, p_));
  const TensorMapRecipe needed[] = {{.tensor = Tensor::kKey}};
  EXPECT_TRUE(has_optional_maps(spec_, needed, p_));  // not for it to say
}

TEST_F(TensorMaps, GradientsAreLaidOutByTheirOwnStrides) {
  void* const places[] = {reinterpret_cast<void*>(0x2000), reinterpret_cast<void*>(0x3000),
                          reinterpret_cast<void*>(0x4000), reinterpret_cast<void*>(0x5000)};
  p_.d_o = places[0];
  p_.d_q = places[1];
  p_.d_k = places[2];
  p_.d_v = places[3];
  p_.d_o_stride = {1 << 20, 2048, 256};
  p_.d_q_stride = {1 << 20, 4096, 512};
  p_.d_k_stride = {1 << 20, 1024, 256};
  p_.d_v_stride = {1 << 20, 512, 128};
  struct Row {
    Tensor tensor;
    void* address;
    std::array<std::uint64_t, 4> dims;
    std::uint64_t row_bytes;
  };
  const CudaApi api = fake_driver();
  for (const Row& row : {Row{Tensor::kOutputGradient, places[0], {128, 100, 8, 2}, 4096},
                         Row{Tensor::kQueryGradient, places[1], {192, 100, 8, 2}, 8192},
                         Row{Tensor::kKeyGradient, places[2], {192, 300, 4, 2}, 2048},
                         Row{Tensor::kValueGradient, places[3], {128, 300, 4, 2}, 1024}}) {
    TensorMap map;
    ASSERT_TRUE(encode_tensor_map(api, spec_, {.tensor = row.tensor}, p_, &map).ok());
    EXPECT_EQ(encoded.address, row.address);
    EXPECT_EQ(encoded.dims, row.dims);
    EXPECT_EQ(encoded.strides[0], row.row_bytes);
  }
}

}  // namespace
}  // namespace attune

// Tensors from NumPy's files.
#include "runtime/specs/tensor_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

namespace attune {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class TensorFile : public testing::Test {
 protected:
  TensorFile() {
    directory_ = std::filesystem::path(testing::TempDir()) /
                 testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(directory_);
  }
  ~TensorFile() override { std::filesystem::remove_all(directory_); }

  std::string write(const std::string& bytes, const std::string& name = "t.npy") const {
    const std::string path = directory_ / name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  // As numpy.save() writes it.
  template <typename Element>
  static std::string npy(const std::string& descr, const std::string& shape,
                         const std::vector<Element>& values, const char* order = "False") {
    std::string dict =
        "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }";
    dict.resize((10 + dict.size() + 1 + 63) / 64 * 64 - 10, ' ');
    dict.back() = '\n';
    std::string bytes("\x93NUMPY\x01\x00", 8);
    bytes += static_cast<char>(dict.size() % 256);
    bytes += static_cast<char>(dict.size() / 256);
    bytes += dict;
    bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Element));
    return bytes;
  }
  std::string id(const std::string& bytes, expr::TensorType type = expr::TensorType::kInt32) const {
    const auto read = read_npy(write(bytes), type);
    return read.ok() ? "" : read.error().message;
  }

  std::filesystem::path directory_;
};

TEST_F(TensorFile, ReadsEveryKindOfNumber) {
  using Type = expr::TensorType;
  const auto ints =
      read_npy(write(npy<std::int32_t>("<i4", "(2, 3)", {1, -2, 3, 4, 5, 6})), Type::kInt32);
  ASSERT_TRUE(ints.ok()) << render(ints.error());
  EXPECT_THAT(ints->sizes, ElementsAre(2, 3));
  EXPECT_THAT(ints->values, ElementsAre(1, -2, 3, 4, 5, 6));
  const auto wide = read_npy(write(npy<std::int64_t>("<i8", "(2,)", {7, -8})), Type::kInt32);
  ASSERT_TRUE(wide.ok()) << render(wide.error());
  EXPECT_THAT(wide->values, ElementsAre(7, -8));
  const auto reals = read_npy(write(npy<double>("<f8", "()", {0.5})), Type::kFloat32);
  ASSERT_TRUE(reals.ok()) << render(reals.error());
  EXPECT_THAT(reals->sizes, ElementsAre());
  EXPECT_THAT(reals->values, ElementsAre(0.5));
  const auto bools = read_npy(write(npy<std::uint8_t>("|b1", "(3,)", {1, 0, 1})), Type::kBool);
  ASSERT_TRUE(bools.ok()) << render(bools.error());
  EXPECT_THAT(bools->values, ElementsAre(1, 0, 1));
}

TEST_F(TensorFile, SaysWhatIsWrong) {
  const std::string good = npy<std::int32_t>("<i4", "(2,)", {1, 2});
  EXPECT_EQ(id(good), "");
  EXPECT_THAT(id("no array"), HasSubstr("no .npy file"));
  EXPECT_THAT(id(good.substr(0, 30)), HasSubstr("header"));
  EXPECT_THAT(id(good.substr(0, good.size() - 1)), HasSubstr("ends before"));
  EXPECT_THAT(id(good + "x"), HasSubstr("goes on"));
  EXPECT_THAT(id(npy<float>("<f4", "(1,)", {1})), HasSubstr("holds `<f4`"));
  EXPECT_THAT(id(npy<std::int64_t>("<i8", "(1,)", {1LL << 40})), HasSubstr("int32 cannot"));
  EXPECT_THAT(id(npy<std::int32_t>("<i4", "(1, 2)", {1, 2}, "True")), HasSubstr("Fortran"));
  for (const char* shape : {"(-1,)", "(0,)", "(99999999999,)", "(65536, 65536)", "(2", "x"})
    EXPECT_THAT(id(npy<std::int32_t>("<i4", shape, {1, 2})), HasSubstr("header")) << shape;
  EXPECT_THAT(read_npy(directory_ / "none.npy", expr::TensorType::kInt32).error().message,
              HasSubstr("cannot be opened"));
}

TEST_F(TensorFile, IsGivenToTheTensorOfItsName) {
  auto spec = parse_spec(
      "attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\nmask: document(doc)\n"
      "tensors:\n  doc: {dtype: int32, dims: [batch, kv_len]}\n",
      "t.yaml");
  ASSERT_TRUE(spec.ok());
  const std::string path = write(npy<std::int32_t>("<i4", "(1, 4)", {0, 0, 1, 1}));
  const auto give = [&](const std::string& file) {
    const Status status = give_tensors(std::span(&file, 1), *spec);
    return status.ok() ? "" : status.error().id;
  };
  EXPECT_EQ(give("dok=" + path), "tensor-unknown");
  EXPECT_EQ(give(path), "tensor-file");
  EXPECT_EQ(give("doc=" + write(npy<std::int32_t>("<i4", "(4,)", {0, 0, 1, 1}), "flat.npy")),
            "tensor-size");
  EXPECT_EQ(give("doc=" + path), "");
  EXPECT_THAT(sample_of(*spec, 0).given->values, ElementsAre(0, 0, 1, 1));
  EXPECT_TRUE(check_given(*spec, {.q_len = 4, .kv_len = 4}).ok());
  const Status longer = check_given(*spec, {.q_len = 4, .kv_len = 5});
  ASSERT_FALSE(longer.ok());
  EXPECT_THAT(longer.error().message, HasSubstr("[1, 4] in its file and [1, 5]"));
}

}  // namespace
}  // namespace attune

// Emitted text, built by the system's C++ compiler, and a launch to call its functions with.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "generator/expr/ast.hpp"
#include "templates/params.h"
#include "tests/property/expr/world.hpp"

namespace attune::expr {

// Of a value that fp16 or bf16 holds.
unsigned short half_bits(TensorType type, double value);

// The world as a kernel sees it.
struct Launch {
  Launch(const World& world, const Environment& environment) : environment_(environment) {
    params.batch = world.batch;
    params.heads = world.heads;
    params.kv_heads = world.kv_heads;
    params.q_len = world.q_len;
    params.kv_len = world.kv_len;
    params.scalars[0].as_int = static_cast<int>(world.scalars[0]);
    params.scalars[1].as_float = static_cast<float>(world.scalars[1]);
    params.scalars[2].as_int = static_cast<int>(world.scalars[2]);
    for (std::size_t slot = 0; slot < world.tensors.size(); ++slot) {
      const TensorValues& tensor = world.tensors[slot];
      const TensorType type = environment_.tensors[slot].type;
      for (const double value : tensor.values) {
        if (is_half(type)) halves[slot].push_back(half_bits(type, value));
        if (type == TensorType::kInt32) ints[slot].push_back(static_cast<int>(value));
        if (type == TensorType::kFloat32) floats[slot].push_back(static_cast<float>(value));
        if (type == TensorType::kBool) bytes[slot].push_back(value != 0);
      }
      att::TensorArg& arg = params.tensors[slot];
      arg.data = type == TensorType::kInt32     ? static_cast<const void*>(ints[slot].data())
                 : type == TensorType::kFloat32 ? static_cast<const void*>(floats[slot].data())
                 : is_half(type)                ? static_cast<const void*>(halves[slot].data())
                                                : static_cast<const void*>(bytes[slot].data());
      for (int& size : arg.size) size = 1;
      for (std::size_t i = 0; i < tensor.sizes.size(); ++i)
        arg.size[i] = static_cast<int>(tensor.sizes[i]);
    }
  }

  void make_ranges(void (*block_range)(const att::TensorArg*, int, int, int, int)) {
    for (std::size_t slot = 0; slot < environment_.tensors.size(); ++slot) {
      const TensorDecl& tensor = environment_.tensors[slot];
      att::TensorArg& arg = params.tensors[slot];
      if (tensor.dims.empty()) continue;
      int rows = 1;
      for (std::size_t i = 0; i + 1 < tensor.dims.size(); ++i) rows *= arg.size[i];
      const int length = arg.size[tensor.dims.size() - 1];
      const int blocks = (length + att::kRangeBlock - 1) / att::kRangeBlock;
      ranges[slot].resize(static_cast<std::size_t>(2 * rows * blocks));
      arg.block_ranges = ranges[slot].data();
      for (int pair = 0; pair < rows * blocks; ++pair)
        block_range(&arg, static_cast<int>(tensor.type), pair / blocks, pair % blocks, length);
    }
  }

  att::ForwardParams params = {};
  std::vector<int> ints[8], ranges[8];
  std::vector<float> floats[8];
  std::vector<unsigned short> halves[8];
  std::vector<unsigned char> bytes[8];

 private:
  const Environment& environment_;
};

// The text with the number wherever it has an @.
std::string numbered(const std::string& text, std::size_t number);

// Null when there is no symbol of that name.
void* symbol_of(void* library, const std::string& name);

template <typename Function>
void find(void* library, const std::string& name, Function& function) {
  function = reinterpret_cast<Function>(symbol_of(library, name));
  ASSERT_NE(function, nullptr) << name;
}

class EmittedFunctions : public testing::Test {
 protected:
  // `text` behind the templates that it uses and struct Context. The library, which the test owns;
  // null when this machine has no compiler, and, with a failure, when it refuses the text.
  void* build(const std::string& text);
  static std::string build_error();
  void TearDown() override;

 private:
  std::filesystem::path directory_;
  void* library_ = nullptr;
};

}  // namespace attune::expr

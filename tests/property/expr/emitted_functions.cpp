#include "tests/property/expr/emitted_functions.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>

namespace attune::expr {

unsigned short half_bits(TensorType type, double value) {
  if (type == TensorType::kBFloat16)
    return static_cast<unsigned short>(std::bit_cast<std::uint32_t>(static_cast<float>(value)) >>
                                       16);
  const unsigned sign = std::signbit(value) ? 0x8000u : 0u;
  const double size = std::abs(value);
  if (std::isnan(value)) return 0x7e00;
  if (std::isinf(value)) return static_cast<unsigned short>(sign | 0x7c00);
  if (size < 0x1p-14) return static_cast<unsigned short>(sign | std::lround(size * 0x1p24));
  const int exponent = std::ilogb(size);
  const auto fraction = std::lround((std::ldexp(size, -exponent) - 1) * 1024);
  return static_cast<unsigned short>(sign |
                                     static_cast<unsigned>((exponent + 15) * 1024 + fraction));
}

std::string numbered(const std::string& text, std::size_t number) {
  std::string result;
  for (const char c : text) result += c == '@' ? std::to_string(number) : std::string(1, c);
  return result;
}

void* symbol_of(void* library, const std::string& name) { return dlsym(library, name.c_str()); }

void* EmittedFunctions::build(const std::string& text) {
  const char* configured = std::getenv("CXX");
  const std::string compiler = configured ? configured : "c++";
  if (std::system((compiler + " --version > /dev/null 2>&1").c_str()) != 0) return nullptr;
  directory_ =
      std::filesystem::temp_directory_path() / ("attune-emitted-" + std::to_string(getpid()));
  std::filesystem::create_directories(directory_);
  std::ofstream source(directory_ / "heads.cpp");
  source << "#include \"templates/params.h\"\n"
            "#include \"templates/tile/columns.cuh\"\n"
            "#include \"templates/tile/ranges.cuh\"\n"
            "namespace att {\n"
            "struct Context { const ForwardParams& params; int b, h, h_kv, q_len, kv_len; };\n"
            "}\n"
         << text;
  source.close();
  const std::string library = (directory_ / "heads.so").string();
  const std::string command = compiler + " -std=c++17 -O1 -w -fPIC -shared -I. -o " + library +
                              " " + (directory_ / "heads.cpp").string();
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  return library_ = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
}

std::string EmittedFunctions::build_error() {
  const char* error = dlerror();
  return error ? error : "";
}

void EmittedFunctions::TearDown() {
  if (library_) dlclose(library_);
  if (!directory_.empty() && !HasFailure()) std::filesystem::remove_all(directory_);
}

}  // namespace attune::expr

#include "tests/property/expr/emitted_functions.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

namespace attune::expr {

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

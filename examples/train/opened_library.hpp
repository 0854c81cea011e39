// Shared libraries that are opened at run time, so that nothing of CUDA is needed to build the
// example or to start it.
#pragma once

#include <dlfcn.h>

#include <string>
#include <vector>

#include "shared.hpp"

namespace train {

// Stays open to the end of the process: what it started may still run.
class OpenedLibrary {
 public:
  // The first of `names` that can be opened; none: is_open() is false.
  explicit OpenedLibrary(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
      name_ = name;
      if (handle_ != nullptr) return;
    }
  }

  bool is_open() const { return handle_ != nullptr; }
  // Throws Error when the library has no such function.
  template <typename Function>
  void bind(Function*& function, const char* name) const {
    function = reinterpret_cast<Function*>(dlsym(handle_, name));
    if (function == nullptr) {
      throw Error(Exit::kNothingToRunOn, name_ + " is too old: it has no " + name);
    }
  }

 private:
  void* handle_ = nullptr;
  std::string name_;
};

// Where CUDA's libraries are: the loader's path, CUDA_HOME, CUDA_PATH, /usr/local/cuda.
// "libnvrtc" of versions 13 and 12.
std::vector<std::string> cuda_library_names(const std::string& name);

}  // namespace train

// Libraries that are opened when they are needed, so that Attune builds and starts without them.
#pragma once

#include <string>
#include <vector>

#include "generator/support/result.hpp"

namespace attune {

// A shared library, open for as long as the process lives: drivers and compilers start threads and
// register handlers that must not outlive their code.
class DynamicLibrary {
 public:
  // Opens the first of `names` (sonames or paths) that loads. kUnavailable, id `id`, when none
  // does: the message says that `what` is missing, the detail what was tried.
  static Result<DynamicLibrary> open(const std::vector<std::string>& names, const std::string& id,
                                     const std::string& what, const std::string& hint);

  const std::string& name() const { return name_; }
  // Null when the library has no such symbol.
  void* symbol(const char* name) const;

  // Sets `function` to the symbol; false when it is not there.
  template <typename Function>
  bool bind(Function*& function, const char* name) const {
    function = reinterpret_cast<Function*>(symbol(name));
    return function != nullptr;
  }

 private:
  DynamicLibrary(void* handle, std::string name) : handle_(handle), name_(std::move(name)) {}

  void* handle_;
  std::string name_;
};

}  // namespace attune

#include "runtime/support/dynamic_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

namespace attune {

Result<DynamicLibrary> DynamicLibrary::open(const std::vector<std::string>& names,
                                            const std::string& id, const std::string& what,
                                            const std::string& hint) {
  std::string tried;
  for (const std::string& name : names) {
    if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      return DynamicLibrary(handle, name);
    }
    const char* reason = dlerror();
    tried += fmt::format("  {}\n", reason != nullptr ? reason : name.c_str());
  }
  return Error{.kind = ErrorKind::kUnavailable,
               .id = id,
               .message = what + " could not be opened",
               .hint = hint,
               .detail = "tried:\n" + tried};
}

void* DynamicLibrary::symbol(const char* name) const { return dlsym(handle_, name); }

}  // namespace attune

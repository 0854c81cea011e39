#include "opened_library.hpp"

#include <cstdlib>

namespace train {

std::vector<std::string> cuda_library_names(const std::string& name) {
  std::vector<std::string> names = {name + ".so.13", name + ".so.12", name + ".so"};
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* root = std::getenv(variable); root != nullptr && *root != '\0') {
      names.push_back(std::string(root) + "/lib64/" + name + ".so");
    }
  }
  names.push_back("/usr/local/cuda/lib64/" + name + ".so");
  return names;
}

}  // namespace train

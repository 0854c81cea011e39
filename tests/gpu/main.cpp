#include <gmock/gmock.h>

#include <string_view>

#include "tests/gpu/planted_worker.hpp"

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == attune::gpu_test::kPlantedWorker) {
    attune::gpu_test::run_planted_worker();
  }
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}

#include <gmock/gmock.h>
#include <unistd.h>

#include <string_view>

#include "tests/gpu/planted_worker.hpp"
#include "tuner/isolation/worker.hpp"

int main(int argc, char** argv) {
  const std::string_view role = argc == 2 ? argv[1] : "";
  if (role == attune::gpu_test::kPlantedWorker) attune::gpu_test::run_planted_worker();
  // As the `attune` command is started for a host, so that one binary will do.
  if (role == "worker") {
    attune::run_worker(STDIN_FILENO, STDOUT_FILENO, [] { return attune::make_local_session(); });
  }
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}

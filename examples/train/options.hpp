// The command line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "curve.hpp"
#include "dense.hpp"

namespace train {

struct Options {
  enum class Task { kTrain, kCompare, kCheckGradients, kCheckOperations, kCheckKernels, kHelp };
  Task task = Task::kTrain;
  bool uses_reference = false;  // --attention reference
  std::string device = "cpu";   // or "cuda:N"
  Products products = Products::kFastest;
  int steps = 400;
  std::uint64_t seed = 1;
  std::size_t batch = 4, length = 256;
  std::string spec_file, text_file;  // as given; else those beside the example's sources
  std::string csv_file, svg_file;    // empty: none is written
  std::vector<OtherCurve> beside;    // that the picture has as well
};

// Throws Error with what is wrong and where help is.
Options parse_options(int count, const char* const* arguments);
// What --help prints.
std::string help();

}  // namespace train

// The table of planted faults in docs/verification.md, written from results.
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace attune::planted {

// What verification said of a fault in a problem of this mask and length.
void note_result(const std::string& fault, const std::string& mask, const std::string& length,
                 bool found);

// With ATTUNE_UPDATE_TABLE set, writes what this run noted between the lines
// `<!-- planted NAME -->` and `<!-- end -->` of the file.
class TableWriter final : public testing::Environment {
 public:
  TableWriter(std::string path, std::string name)
      : path_(std::move(path)), name_(std::move(name)) {}
  void TearDown() override;

 private:
  const std::string path_, name_;
};

}  // namespace attune::planted

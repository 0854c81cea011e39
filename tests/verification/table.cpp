#include "tests/verification/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

namespace attune::planted {
namespace {

struct Results {
  std::vector<std::string> faults, masks, lengths;  // in the order in which they came
  std::map<std::string, bool> found;                // by fault, mask and length
};
Results& results() {
  static Results noted;
  return noted;
}

void add(std::vector<std::string>& names, const std::string& name) {
  if (std::ranges::find(names, name) == names.end()) names.push_back(name);
}

std::string table() {
  const Results& r = results();
  std::string text = "| fault |";
  std::string rule = "| --- |";
  for (const std::string& mask : r.masks) {
    text += fmt::format(" {} |", mask);
    rule += " --- |";
  }
  text += "\n" + rule + "\n";
  for (const std::string& fault : r.faults) {
    text += fmt::format("| {} |", fault);
    for (const std::string& mask : r.masks) {
      std::string cell;
      for (const std::string& length : r.lengths) {
        const auto at = r.found.find(fault + "/" + mask + "/" + length);
        if (at == r.found.end()) continue;
        cell +=
            fmt::format("{}{}{}", cell.empty() ? "" : ", ", length, at->second ? "" : " MISSED");
      }
      text += fmt::format(" {} |", cell.empty() ? "-" : cell);
    }
    text += "\n";
  }
  return text;
}

}  // namespace

void note_result(const std::string& fault, const std::string& mask, const std::string& length,
                 bool found) {
  Results& r = results();
  add(r.faults, fault);
  add(r.masks, mask);
  add(r.lengths, length);
  r.found[fault + "/" + mask + "/" + length] = found;
}

void TableWriter::TearDown() {
  if (std::getenv("ATTUNE_UPDATE_TABLE") == nullptr || results().faults.empty()) return;
  std::ifstream file(path_);
  std::stringstream read;
  read << file.rdbuf();
  std::string text = read.str();
  const std::string begin = fmt::format("<!-- planted {} -->\n", name_);
  const auto at = text.find(begin);
  ASSERT_NE(at, std::string::npos) << path_ << " has no place for the table";
  const auto from = at + begin.size();
  const auto to = text.find("<!-- end -->", from);
  ASSERT_NE(to, std::string::npos);
  text.replace(from, to - from, table());
  std::ofstream(path_) << text;
}

}  // namespace attune::planted

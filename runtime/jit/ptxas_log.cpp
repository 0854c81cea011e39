#include "runtime/jit/ptxas_log.hpp"

#include <charconv>

namespace attune {
namespace {

// The number in front of `unit`: 24 in "Used 24 registers" for " registers". 0 when there is none.
int number_before(std::string_view line, std::string_view unit) {
  const std::size_t end = line.find(unit);
  if (end == std::string_view::npos) return 0;
  std::size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  int value = 0;
  std::from_chars(line.data() + begin, line.data() + end, value);
  return value;
}

bool contains(std::string_view line, std::string_view part) {
  return line.find(part) != std::string_view::npos;
}

}  // namespace

PtxasReport parse_ptxas_log(std::string_view log, std::string_view symbol) {
  PtxasReport report;
  const std::string entry = "Compiling entry function '" + std::string(symbol) + "'";
  const std::string properties = "Function properties for " + std::string(symbol);
  bool in_entry = false;
  bool in_properties = false;
  while (!log.empty()) {
    const std::size_t end = log.find('\n');
    const std::string_view line = log.substr(0, end);
    log.remove_prefix(end == std::string_view::npos ? log.size() : end + 1);

    if (report.performance_loss.empty() && contains(line, "Potential Performance Loss")) {
      report.performance_loss = line;
    }
    if (contains(line, "Compiling entry function")) {
      in_entry = contains(line, entry);
      report.found |= in_entry;
    } else if (contains(line, "Function properties for")) {
      in_properties = line.ends_with(properties);
    } else if (in_entry && in_properties && contains(line, " bytes stack frame")) {
      report.stack_bytes = number_before(line, " bytes stack frame");
      report.spill_store_bytes = number_before(line, " bytes spill stores");
      report.spill_load_bytes = number_before(line, " bytes spill loads");
    } else if (in_entry && contains(line, " registers")) {
      report.registers = number_before(line, " registers");
      report.static_shared_bytes = number_before(line, " bytes smem");
    }
  }
  return report;
}

}  // namespace attune

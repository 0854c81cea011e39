// The report's pictures, as inline SVG. Every mark names itself when pointed at.
#pragma once

#include <string>

#include "cli/report_data.hpp"

namespace attune::cli {

// Text as HTML.
std::string escape(std::string_view text);

// Every problem's best plan under its device's roofs: FLOP a byte, TFLOP/s, both logarithmic.
std::string roofline_chart(const Report& report);
// Candidates by predicted and measured time, both logarithmic.
std::string scatter_chart(const ReportProblem& problem);
// The best time of every tile size.
std::string tile_heat_map(const ReportProblem& problem);

}  // namespace attune::cli

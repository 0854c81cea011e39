// The report as one HTML document that needs nothing beside itself.
#pragma once

#include <string>

#include "cli/report_data.hpp"

namespace attune::cli {

std::string report_page(const Report& report);

}  // namespace attune::cli

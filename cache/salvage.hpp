// Getting facts out of a damaged file.
#pragma once

#include <string>

#include "cache/store.hpp"

namespace attune::cache {

// Reads the pages of `damaged` directly, decodes every cell that looks like a row of one of the
// tables, and inserts those whose checksum holds into the cache at `into`. Needs neither header,
// schema nor index to be whole. Rows that refer to one that is lost are kept: they count
// again as soon as that row is written anew. Returns the number of rows found.
Result<int> salvage(const std::string& damaged, const std::string& into,
                    const StoreOptions& options);

}  // namespace attune::cache

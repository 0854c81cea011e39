// Getting facts out of a damaged file.
#pragma once

#include <string>
#include <vector>

#include "cache/store.hpp"

namespace attune::cache {

// Reads the pages of `damaged` directly, decodes every cell that looks like a row of one of the
// tables, and inserts those whose checksum holds into the cache at `into`. Needs neither header,
// schema nor index to be whole. Rows that refer to one that is lost are kept: they count
// again as soon as that row is written anew. Code is taken only `with_code`. Returns the number of
// rows found.
Result<int> salvage(const std::string& damaged, const std::string& into,
                    const StoreOptions& options, bool with_code);

// What carry_over() found: files that were damaged, by the names that they have now.
struct SetAside {
  std::vector<std::string> names;
  int rows = 0;  // carried over from them
};

// Salvages what set_aside() took away from `path` into the file that is there now, its code only if
// nobody else may have written it. No names when
// there is nothing, or another process is at it.
Result<SetAside> carry_over(const std::string& path, const StoreOptions& options);

}  // namespace attune::cache

// How many rows the tables of a file have, for files that are damaged.
#pragma once

#include <map>
#include <string>

namespace attune::cache {

// By table. Each is counted through every tree that holds its rows, the table's own and those of
// its indexes, of which one may be whole where the others are not; the largest count stands. A
// table that none of them can tell of is absent; so are all of a file that cannot be opened.
std::map<std::string, int> row_counts(const std::string& path);

}  // namespace attune::cache

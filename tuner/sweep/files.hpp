// Where a sweep keeps what, and how it is written so that a kill at any moment leaves it readable.
#pragma once

#include <string>
#include <vector>

#include "generator/support/result.hpp"
#include "tuner/sweep/manifest.hpp"

namespace attune::sweep_files {

std::string manifest(const std::string& directory);
// One cache file and one journal a worker: writers of one machine never wait for those of another.
std::string results(const std::string& directory, const Shard& shard, int device);
std::string journal(const std::string& directory, const Shard& shard, int device);
// Of the whole shard, whatever its devices.
std::string lock(const std::string& directory, const Shard& shard);
// All there are, sorted.
std::vector<std::string> all_results(const std::string& directory);
std::vector<std::string> all_journals(const std::string& directory);

// Under another name first.
Status write_whole(const std::string& path, const std::string& text);
// One line, on disk when it returns.
Status append_line(const std::string& path, const std::string& line);

}  // namespace attune::sweep_files

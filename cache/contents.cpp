#include "cache/contents.hpp"

#include <filesystem>
#include <system_error>

#include "cache/database.hpp"
#include "cache/query.hpp"
#include "cache/rows.hpp"
#include "cache/versions.hpp"

namespace attune {
namespace {

std::vector<StoredCode> read_code(SQLite::Database& database, int* damaged_rows) {
  SQLite::Statement row(
      database,
      "SELECT c.spec_hash, c.plan, c.body_hash, c.compiler, c.target, u.hash, u.length, "
      "u.registers,"
      " u.spill_store_bytes + u.spill_load_bytes, b.compile_seconds, u.last_used, u.pinned, (" +
          cache::sound(cache::table("candidate"), "c") + ") AND (" +
          cache::sound(cache::table("build"), "b") +
          ") FROM build b JOIN candidate c ON c.digest = b.candidate JOIN cubin u ON u.hash = "
          "b.cubin"
          " ORDER BY c.spec_hash, c.target, c.plan");
  std::vector<StoredCode> code;
  while (row.executeStep()) {
    if (row.getColumn(12).getInt() == 0) {
      ++*damaged_rows;
      continue;
    }
    code.push_back({.key = {.spec_hash = row.getColumn(0).getString(),
                            .plan = row.getColumn(1).getString(),
                            .body_hash = row.getColumn(2).getString(),
                            .compiler = row.getColumn(3).getString(),
                            .target = row.getColumn(4).getString()},
                    .content_hash = row.getColumn(5).getString(),
                    .image_bytes = row.getColumn(6).getInt64(),
                    .registers = row.getColumn(7).getInt(),
                    .spill_bytes = row.getColumn(8).getInt(),
                    .compile_seconds = row.getColumn(9).getDouble(),
                    .last_used = row.getColumn(10).getInt64(),
                    .pinned = row.getColumn(11).getInt() != 0});
  }
  return code;
}

}  // namespace

Result<CacheContents> read_contents(const std::string& path) {
  const StoreOptions options{.read_only = true};
  // Says whether this is a cache, and of a version that can be read.
  ATT_CHECK(open_store(path, options));
  try {
    const auto database = cache::open_any_version(path, options);
    CacheContents contents;
    for (auto& row : cache::read_measurements(*database, "", &contents.damaged_rows)) {
      contents.measurements.push_back({.key = {.spec_hash = std::move(row.spec_hash),
                                               .device = std::move(row.device),
                                               .shape = row.shape,
                                               .protocol = std::move(row.protocol),
                                               .pass = row.pass,
                                               .data = row.data},
                                       .measurement = std::move(row.measurement)});
    }
    for (auto& row : cache::read_rejections(*database, "", &contents.damaged_rows)) {
      contents.rejections.push_back({.spec_hash = std::move(row.spec_hash),
                                     .device = std::move(row.device),
                                     .shape = row.shape,
                                     .rejection = std::move(row.rejection),
                                     .pass = row.pass});
    }
    contents.code = read_code(*database, &contents.damaged_rows);
    std::error_code ignored;
    contents.file_bytes = static_cast<std::int64_t>(std::filesystem::file_size(path, ignored));
    return contents;
  } catch (const SQLite::Exception& exception) {
    return cache::to_error(exception, path);
  }
}

}  // namespace attune

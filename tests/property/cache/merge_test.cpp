// Merging is a union: commutative, associative, idempotent, whatever the files hold. Only code that
// is there stays as it is: of two compiles of one source the first.
#include <SQLiteCpp/SQLiteCpp.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "cache/maintenance.hpp"
#include "tests/unit/cache/fixtures.hpp"

namespace attune::cache {
namespace {

using namespace cache_testing;

// Everything that a file says, as text; leases say nothing.
std::string contents(const std::string& path) {
  SQLite::Database database(path, SQLite::OPEN_READONLY);
  std::string text;
  for (const char* rows_of : {"* FROM env", "* FROM spec", "* FROM problem", "* FROM candidate",
                              "candidate FROM build", "* FROM measurement", "* FROM quarantine"}) {
    SQLite::Statement rows(database, fmt::format("SELECT {} ORDER BY 1", rows_of));
    while (rows.executeStep()) {
      for (int i = 0; i < rows.getColumnCount(); ++i) text += rows.getColumn(i).getString() + "|";
      text += "\n";
    }
  }
  return text;
}

// A handful of keys, so that files collide in all of them.
void fill(const std::string& path) {
  const auto store = std::move(*open_store(path));
  const int operations = *rc::gen::inRange(0, 12);
  for (int i = 0; i < operations; ++i) {
    const int number = *rc::gen::inRange(0, 4);
    auto key = measurement_key(*rc::gen::element<std::int64_t>(128, 4096));
    key.device = *rc::gen::element(kDevice, kOtherDriver);
    switch (*rc::gen::inRange(0, 4)) {
      case 0: {
        // The same key may have been compiled to other bytes, in another time.
        CodeRecord record = code(*rc::gen::inRange(0, 3), 50);
        record.compile_seconds = *rc::gen::inRange(1, 4);
        (void)store->put_code(build_key(number), record);
        break;
      }
      case 1:
        (void)store->record(key, measurement(build_key(number).plan, *rc::gen::inRange(1, 1000)));
        break;
      case 2:
        (void)store->reject(key, {.plan = build_key(number).plan,
                                  .build_digest = build_key(number).digest(),
                                  .reason = *rc::gen::element<std::string>("hang", "compile"),
                                  .detail = fmt::format("{}", *rc::gen::inRange(0, 3))});
        break;
      default:
        (void)store->pin_code(build_key(number), true);
    }
  }
}

std::string code_in(const std::string& path) {
  SQLite::Database database(path, SQLite::OPEN_READONLY);
  SQLite::Statement rows(database, "SELECT candidate, cubin, sum FROM build ORDER BY 1");
  std::string text;
  while (rows.executeStep())
    for (int i = 0; i < 3; ++i) text += rows.getColumn(i).getString() + "|";
  return text;
}

void merge_all(const std::vector<std::string>& from, const std::string& into) {
  for (const std::string& file : from) RC_ASSERT(merge(file, into).ok());
}

RC_GTEST_PROP(Merge, IsCommutativeAssociativeAndIdempotent, ()) {
  TemporaryDirectory directory;
  const auto file = [&](const char* name) { return directory.file(name); };
  for (const char* name : {"a", "b", "c"}) fill(file(name));

  merge_all({file("a"), file("b")}, file("ab"));
  merge_all({file("b"), file("a")}, file("ba"));
  RC_ASSERT(contents(file("ab")) == contents(file("ba")));

  merge_all({file("ab"), file("c")}, file("ab_c"));
  merge_all({file("b"), file("c")}, file("bc"));
  merge_all({file("a"), file("bc")}, file("a_bc"));
  RC_ASSERT(contents(file("ab_c")) == contents(file("a_bc")));

  const std::string before = contents(file("ab_c"));
  merge_all({file("a"), file("c"), file("ab_c")}, file("ab_c"));
  RC_ASSERT(contents(file("ab_c")) == before);
  RC_ASSERT(verify(file("ab_c"))->ok());
}

RC_GTEST_PROP(Merge, NeverReplacesCode, ()) {
  TemporaryDirectory directory;
  const auto file = [&](const char* name) { return directory.file(name); };
  for (const char* name : {"a", "b"}) fill(file(name));
  merge_all({file("a"), file("b")}, file("both"));
  const std::string before = code_in(file("both"));
  merge_all({file("b"), file("a")}, file("both"));
  RC_ASSERT(code_in(file("both")) == before);
  SQLite::Database database(file("both"), SQLite::OPEN_READONLY);
  RC_ASSERT(
      database.execAndGet("SELECT count(*) FROM cubin WHERE hash NOT IN (SELECT cubin FROM build)")
          .getInt() == 0);
}

}  // namespace
}  // namespace attune::cache

// Every region of a file is overwritten in turn: answers are right or missing, and rebuilding keeps
// all other rows.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string_view>

#include "cache/maintenance.hpp"
#include "tests/unit/cache/fixtures.hpp"

namespace attune {
namespace {

using namespace cache_testing;

constexpr std::size_t kRegionBytes =
    61;  // no divisor of a page, so that regions straddle its parts
constexpr int kCodes = 3, kMeasurements = 40;

void make_base(const std::string& path) {
  const auto store = std::move(*open_store(path));
  for (int i = 0; i < kCodes; ++i) ASSERT_TRUE(store->put_code(build_key(i), code(i, 5000)).ok());
  for (int i = 0; i < kMeasurements; ++i) {
    ASSERT_TRUE(
        store->record(measurement_key(128 << i % 4), measurement("p" + std::to_string(i), 10 + i))
            .ok());
  }
  ASSERT_TRUE(store->reject(measurement_key(), {.plan = "bad", .reason = "hang"}).ok());
}

int count_rows(const std::string& path) {
  const auto s = cache::summarize(path).value();
  return s.candidates + s.measurements + s.images + s.problems + s.rejections;
}

// Everything the store answers is what was put in. Returns the number of answers.
int check_answers(const Store& store) {
  int answers = 0;
  for (int i = 0; i < kCodes; ++i) {
    const auto found = store.find_code(build_key(i));
    if (!found.ok() || !found->has_value()) continue;
    ++answers;
    EXPECT_EQ((*found)->image, code(i, 5000).image);
    EXPECT_EQ((*found)->registers, 128 + i);
  }
  for (int k = 0; k < 4; ++k) {
    const auto rows = store.measurements(measurement_key(128 << k));
    if (!rows.ok()) continue;
    for (const Measurement& m : *rows) {
      ++answers;
      EXPECT_EQ(m.plan, "p" + std::to_string(static_cast<int>(m.median_us) - 10));
      EXPECT_EQ((static_cast<int>(m.median_us) - 10) % 4, k) << "a time moved to another shape";
      EXPECT_EQ(m.measured_at, "2026-01-02T03:04:05Z");
    }
  }
  return answers;
}

TEST(Flip, EveryRegionOfTheFile) {
  TemporaryDirectory directory;
  make_base(directory.file("base.db"));
  std::ifstream input(directory.file("base.db"), std::ios::binary);
  const std::string base((std::istreambuf_iterator<char>(input)), {});
  const int all_rows = count_rows(directory.file("base.db"));
  const std::string path = directory.file("copy.db");
  int set_aside = 0, most_lost = 0;
  for (std::size_t at = 0; at < base.size(); at += kRegionBytes * POINT_STEP) {
    std::string bytes = base;
    for (std::size_t i = at; i < std::min(at + kRegionBytes, bytes.size()); ++i)
      bytes[i] = static_cast<char>(~bytes[i]);
    std::ofstream(path, std::ios::binary) << bytes;
    Warnings warnings;
    {
      const auto store = open_store(path, warnings.options());
      if (!store.ok()) {
        // Both marks of the header, or one that says another program's or a later version's file.
        EXPECT_LT(at, 100u) << store.error().message;
        continue;
      }
      check_answers(**store);
      (void)(*store)->put_code(build_key(99), code(99, 5000));
      check_answers(**store);
      set_aside += (*store)->health().set_aside;
    }
    const auto report = cache::verify(path);
    if (!report.ok() || !report->ok()) {
      ASSERT_TRUE(cache::rebuild(path, warnings.options()).ok()) << at;
    }
    ASSERT_TRUE(cache::verify(path)->structure.empty()) << at;
    const int lost = all_rows - count_rows(path);
    most_lost = std::max(most_lost, lost);
    check_answers(**open_store(path, warnings.options()));
    for (const std::string& name : directory.names_with(".corrupt-"))
      std::filesystem::remove(directory.file(name));
  }
  EXPECT_GT(set_aside, 0);
  // 61 bytes touch the tails of two rows of 100 bytes and more, and pages of one image.
  EXPECT_LE(most_lost, 3);
}

// One byte at a time over the rows themselves: what SQLite cannot see, only checksums do.
TEST(Flip, EveryByteOfTheRows) {
  TemporaryDirectory directory;
  {
    const auto store = std::move(*open_store(directory.file("base.db")));
    ASSERT_TRUE(store->put_code(build_key(0), code(0, 40)).ok());
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(
          store->record(measurement_key(128 << i), measurement("p" + std::to_string(i), 10 + i))
              .ok());
    }
  }
  std::ifstream input(directory.file("base.db"), std::ios::binary);
  const std::string base((std::istreambuf_iterator<char>(input)), {});
  const std::string path = directory.file("copy.db");
  std::ofstream(path, std::ios::binary) << base;
  Warnings warnings;
  int damaged = 0;
  constexpr std::size_t kPage = 4096, kZeros = 16;
  for (std::size_t at = kPage; at < base.size(); ++at) {
    // Zeros in a row are few together; more are free space. The schema's pages are the other
    // test's.
    const std::string_view page = std::string_view(base).substr(at / kPage * kPage, kPage);
    const std::string_view near = page.substr(at % kPage, kZeros);
    if (near.find_first_not_of('\0') == std::string_view::npos ||
        page.find("CREATE") != std::string_view::npos) {
      continue;
    }
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary)
        .seekp(static_cast<std::streamoff>(at))
        .put(static_cast<char>(base[at] ^ 0x10));
    {
      StoreOptions options = warnings.options();
      options.read_only = true;
      const auto store = open_store(path, options);
      ASSERT_TRUE(store.ok()) << at;
      const auto found = (*store)->find_code(build_key(0));
      if (found.ok() && found->has_value()) {
        ASSERT_EQ((*found)->image, code(0, 40).image) << at;
        ASSERT_EQ((*found)->registers, 128) << at;
        ASSERT_EQ((*found)->compile_seconds, 0.5) << at;
      }
      for (int k = 0; k < 2; ++k) {
        const auto rows = (*store)->measurements(measurement_key(128 << k));
        if (!rows.ok()) continue;
        for (const Measurement& m : *rows) {
          const Measurement expected = measurement("p" + std::to_string(k), 10 + k);
          ASSERT_EQ(m.plan, expected.plan) << at;
          ASSERT_EQ(m.build_digest, expected.build_digest) << at;
          ASSERT_EQ(m.median_us, expected.median_us) << at;
          ASSERT_EQ(m.spread_us, expected.spread_us) << at;
          ASSERT_EQ(m.samples, expected.samples) << at;
          ASSERT_EQ(m.shared_bytes, expected.shared_bytes) << at;
          ASSERT_EQ(m.measured_at, expected.measured_at) << at;
        }
      }
      damaged += (*store)->health().damaged_rows;
    }
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary)
        .seekp(static_cast<std::streamoff>(at))
        .put(base[at]);
  }
  EXPECT_GT(damaged, 100) << "the flips must hit rows";
}

TEST(Flip, TruncationAnywhere) {
  TemporaryDirectory directory;
  make_base(directory.file("base.db"));
  const auto bytes = std::filesystem::file_size(directory.file("base.db"));
  const std::string path = directory.file("copy.db");
  for (std::uintmax_t size = 0; size < bytes; size += 1999) {
    std::filesystem::copy_file(directory.file("base.db"), path,
                               std::filesystem::copy_options::overwrite_existing);
    std::filesystem::resize_file(path, size);
    Warnings warnings;
    const auto store = open_store(path, warnings.options());
    ASSERT_TRUE(store.ok() || size < 100) << size << ": " << store.error().message;
    if (store.ok()) {
      check_answers(**store);
      ASSERT_TRUE((*store)->put_code(build_key(99), code(99)).ok()) << size;
      EXPECT_EQ((*store)->find_code(build_key(99)).value()->image, code(99).image);
    }
    for (const std::string& name : directory.names_with("copy.db"))
      std::filesystem::remove(directory.file(name));
  }
}

}  // namespace
}  // namespace attune

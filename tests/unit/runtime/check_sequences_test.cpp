// Offsets, lengths and tables of pages: what is refused, with which words, and what is not.
#include "runtime/capi/check_sequences.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace attune {
namespace {

constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();

using Values = std::vector<std::int32_t>;

struct Launch {
  std::int64_t q_len, kv_len;
  Values cu_q, cu_kv, used_q, used_kv, page_table;
  PageSizes pages = {};
  bool appends = false;

  GivenSequences given() const {
    return {.batch = static_cast<std::int64_t>(cu_q.size()) - 1,
            .q_len = q_len,
            .kv_len = kv_len,
            .cu_q = cu_q,
            .cu_kv = cu_kv,
            .used_q = used_q,
            .used_kv = used_kv,
            .page_table = page_table,
            .pages = pages,
            .appends = appends};
  }
  // "" or "id: message = hint".
  std::string fault() const {
    const Status status = check_sequences(given());
    if (status.ok()) return "";
    const Error& error = status.error();
    EXPECT_EQ(error.kind, ErrorKind::kBadInput);
    return error.id + ": " + error.message + " = " + error.hint;
  }
};

// Two rows of q_len are behind the last sequence; the second sequence has no queries.
Launch packed() {
  return {.q_len = 10,
          .kv_len = 12,
          .cu_q = {0, 3, 3, 8},
          .cu_kv = {0, 4, 9, 12},
          .used_q = {2, 0, 5},
          .used_kv = {4, 0, 1}};
}

// Pages of four rows; 6, 0, 3 and 12 keys, of which the third sequence has no queries.
Launch paged() {
  return {.q_len = 6,
          .kv_len = 12,
          .cu_q = {0, 1, 2, 2, 6},
          .used_kv = {6, 0, 3, 12},
          .page_table = {7, 0, -1, -1, -1, -1, 2, 3, -1, 1, 5, 6},
          .pages = {.per_sequence = 3, .size = 4, .count = 8}};
}
constexpr std::size_t kRow = 3;  // entries

// The same before these: one new token of the first, none of the third, four of the last.
Launch append() {
  Launch launch = paged();
  launch.appends = true;
  return launch;
}

struct Case {
  const char* what;
  Launch launch;
  std::function<void(Launch&)> spoil;
  const char* fault;
};

TEST(CheckSequences, SaysWhatIsWrongAndWhere) {
  const Case cases[] = {
      {"packed", packed(), [](Launch&) {}, ""},
      {"paged", paged(), [](Launch&) {}, ""},
      {"append", append(), [](Launch&) {}, ""},
      {"all of each", packed(), [](Launch& l) { l.used_q = l.used_kv = {}; }, ""},
      {"no tokens", packed(),
       [](Launch& l) { l.cu_q = l.cu_kv = {0, 0, 0, 0}, l.used_q = l.used_kv = {}; }, ""},

      {"a first token", packed(), [](Launch& l) { l.cu_q[0] = 1; },
       "offsets-out-of-range: `cu_q` begins with 1 = offsets ascend from 0"},
      {"a token before the first", packed(), [](Launch& l) { l.cu_kv[0] = -1; },
       "offsets-out-of-range: `cu_kv` begins with -1 = offsets ascend from 0"},
      {"descending", packed(), [](Launch& l) { l.cu_kv[2] = 3; },
       "offsets-descend: `cu_kv` descends: sequence 1 begins at 4 and ends at 3 = they are "
       "`cu_kv[1]` and the next one"},
      {"from the largest to the least", packed(),
       [](Launch& l) { l.q_len = kMost, l.cu_q[1] = kMost, l.cu_q[2] = kLeast; },
       "offsets-descend: `cu_q` descends: sequence 1 begins at 2147483647 and ends at -2147483648 "
       "= "
       "they are `cu_q[1]` and the next one"},
      {"tokens that q has no room for", packed(), [](Launch& l) { l.cu_q[3] = 11; },
       "offsets-out-of-range: `cu_q` leads out of the tensors: sequence 2 ends at 11, and "
       "shape.q_len is 10 = it is `cu_q[3]`"},
      {"tokens that k has no room for", packed(), [](Launch& l) { l.cu_kv[1] = 13; },
       "offsets-out-of-range: `cu_kv` leads out of the tensors: sequence 0 ends at 13, and "
       "shape.kv_len is 12 = it is `cu_kv[1]`"},

      {"fewer than no queries", packed(), [](Launch& l) { l.used_q[2] = -1; },
       "length-out-of-range: `used_q` of sequence 2 is -1, not in 0 to 5 = so many tokens lie "
       "between its offsets in `cu_q`"},
      {"more queries than there are", packed(), [](Launch& l) { l.used_q[1] = 1; },
       "length-out-of-range: `used_q` of sequence 1 is 1, not in 0 to 0 = so many tokens lie "
       "between its offsets in `cu_q`"},
      {"more keys than there are", packed(), [](Launch& l) { l.used_kv[0] = 5; },
       "length-out-of-range: `used_kv` of sequence 0 is 5, not in 0 to 4 = so many tokens lie "
       "between its offsets in `cu_kv`"},
      {"the least number of keys", packed(), [](Launch& l) { l.used_kv[1] = kLeast; },
       "length-out-of-range: `used_kv` of sequence 1 is -2147483648, not in 0 to 5 = so many "
       "tokens "
       "lie between its offsets in `cu_kv`"},
      {"more keys than pages have room for", paged(), [](Launch& l) { l.used_kv[2] = 13; },
       "length-out-of-range: `used_kv` of sequence 2 is 13, not in 0 to 12 = shape.kv_len is 12, "
       "and a row of the table 3 pages of 4 rows"},
      {"more keys than the shape says", paged(), [](Launch& l) { l.kv_len = 11; },
       "length-out-of-range: `used_kv` of sequence 3 is 12, not in 0 to 11 = shape.kv_len is 11, "
       "and a row of the table 3 pages of 4 rows"},
      {"fewer than no keys", paged(), [](Launch& l) { l.used_kv[1] = -5; },
       "length-out-of-range: `used_kv` of sequence 1 is -5, not in 0 to 12 = shape.kv_len is 12, "
       "and a row of the table 3 pages of 4 rows"},

      {"the first page behind the cache", paged(), [](Launch& l) { l.page_table[1] = 8; },
       "page-out-of-range: entry 1 of sequence 0 in `page_table` is page 8, and the cache has 8 "
       "pages = it is page_table[1], where keys 4 to 5 of 6 lie"},
      {"a page of another cache", paged(), [](Launch& l) { l.page_table[3 * kRow] = 1000000; },
       "page-out-of-range: entry 0 of sequence 3 in `page_table` is page 1000000, and the cache "
       "has 8 pages = it is page_table[9], where keys 0 to 3 of 12 lie"},
      {"the last entry", paged(), [](Launch& l) { l.page_table[3 * kRow + 2] = kMost; },
       "page-out-of-range: entry 2 of sequence 3 in `page_table` is page 2147483647, and the cache "
       "has 8 pages = it is page_table[11], where keys 8 to 11 of 12 lie"},
      {"a negative page that does not say none", paged(), [](Launch& l) { l.page_table[0] = -2; },
       "page-out-of-range: entry 0 of sequence 0 in `page_table` is page -2, and the cache has 8 "
       "pages = it is page_table[0], where keys 0 to 3 of 6 lie"},
      {"no page", paged(), [](Launch& l) { l.page_table[1] = -1; }, ""},
      {"anything behind the last key", paged(), [](Launch& l) { l.page_table[2] = kLeast; }, ""},
      {"anything of a sequence without keys", paged(), [](Launch& l) { l.page_table[kRow] = 99; },
       ""},
      {"anything of a sequence without queries", paged(),
       [](Launch& l) { l.page_table[2 * kRow] = 99; }, ""},
      {"none of the queries is there", paged(),
       [](Launch& l) { l.used_q = {1, 1, 0, 0}, l.page_table[3 * kRow] = 99; }, ""},

      {"where the new token goes", append(), [](Launch& l) { l.page_table[1] = 8; },
       "page-out-of-range: entry 1 of sequence 0 in `page_table` is page 8, and the cache has 8 "
       "pages = it is page_table[1], where keys 4 to 5 of 6 lie"},
      {"where older tokens are", append(), [](Launch& l) { l.page_table[0] = 8; }, ""},
      {"new tokens over two pages", append(),
       [](Launch& l) { l.used_kv[3] = 11, l.page_table[3 * kRow + 1] = 8; },
       "page-out-of-range: entry 1 of sequence 3 in `page_table` is page 8, and the cache has 8 "
       "pages = it is page_table[10], where keys 4 to 7 of 11 lie"},
      {"behind them", append(), [](Launch& l) { l.used_kv[3] = 8, l.page_table[3 * kRow + 2] = 8; },
       ""},
      {"new tokens that were not counted", append(), [](Launch& l) { l.used_kv[3] = 3; },
       "length-out-of-range: sequence 3 has 4 new tokens, and 3 keys with them = `used_kv` counts "
       "the new tokens too"},
      {"new tokens of padding", append(), [](Launch& l) { l.used_kv[3] = 0; }, ""},
      {"more queries than keys is for attention to say", paged(),
       [](Launch& l) { l.used_kv[3] = 3; }, ""},
      {"a cache without pages", append(),
       [](Launch& l) { l.page_table = {}, l.pages = {}, l.used_kv[0] = 13; },
       "length-out-of-range: `used_kv` of sequence 0 is 13, not in 0 to 12 = so much room is "
       "there: "
       "shape.kv_len"},
  };
  for (const auto& [what, good, spoil, fault] : cases) {
    Launch launch = good;
    spoil(launch);
    EXPECT_EQ(launch.fault(), fault) << what;
  }
}

// Sequences of random lengths, in pages that are all different.
Launch drawn(std::mt19937& random) {
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution(least, most)(random);
  };
  Launch launch{.q_len = 0, .kv_len = draw(1, 60), .cu_q = {0}};
  const int batch = draw(1, 12), size = draw(1, 20);
  launch.pages = {.per_sequence = (launch.kv_len - 1) / size + 1 + draw(0, 2), .size = size};
  launch.appends = draw(0, 1) == 1;
  for (int b = 0; b < batch; ++b) {
    const int keys = draw(0, static_cast<int>(launch.kv_len));
    const int rows = draw(0, 5);
    launch.used_kv.push_back(keys);
    launch.used_q.push_back(std::min(draw(0, rows), launch.appends ? keys : rows));
    launch.cu_q.push_back(launch.cu_q.back() + rows);
    for (int entry = 0; entry < launch.pages.per_sequence; ++entry) {
      const bool is_used = entry * size < keys;
      launch.page_table.push_back(is_used ? static_cast<int>(launch.pages.count++) : -1);
    }
  }
  launch.q_len = launch.cu_q.back() + draw(0, 3);
  launch.pages.count += 1;
  return launch;
}

TEST(CheckSequences, FindsAPlantedPageWhereverALaunchWouldReadIt) {
  std::mt19937 random(17);
  int found = 0, not_read = 0;
  for (int i = 0; i < 3000; ++i) {
    Launch launch = drawn(random);
    ASSERT_EQ(launch.fault(), "") << i;
    const auto at =
        std::uniform_int_distribution<std::size_t>(0, launch.page_table.size() - 1)(random);
    const Values wrong = {static_cast<int>(launch.pages.count), kMost, kLeast, -2};
    launch.page_table[at] = wrong[static_cast<std::size_t>(i) % wrong.size()];
    // Whether one of the keys that are looked up lies there, key by key.
    const auto per_sequence = static_cast<std::size_t>(launch.pages.per_sequence);
    const std::size_t b = at / per_sequence, entry = at % per_sequence;
    const int keys = launch.used_kv[b], queries = launch.used_q[b];
    bool is_read = false;
    for (int key = launch.appends ? keys - queries : 0; key < keys && queries > 0; ++key) {
      is_read = is_read || static_cast<std::size_t>(key / launch.pages.size) == entry;
    }
    const std::string fault = launch.fault();
    ASSERT_EQ(!fault.empty(), is_read) << i << ": " << fault;
    if (is_read) {
      ASSERT_THAT(fault,
                  testing::StartsWith(fmt::format(
                      "page-out-of-range: entry {} of sequence {} in `page_table` is page {}, and "
                      "the cache has {} pages",
                      entry, b, launch.page_table[at], launch.pages.count)))
          << i;
    }
    ++(is_read ? found : not_read);
  }
  EXPECT_GT(found, 500);
  EXPECT_GT(not_read, 500);
}

TEST(CheckSequences, FindsPlantedLengthsAndOffsets) {
  std::mt19937 random(18);
  for (int i = 0; i < 3000; ++i) {
    Launch launch = drawn(random);
    const auto b = std::uniform_int_distribution<std::size_t>(0, launch.used_kv.size() - 1)(random);
    const int rows = launch.cu_q[b + 1] - launch.cu_q[b];
    std::string expected;
    switch (i % 6) {
      case 0:
        launch.used_kv[b] = static_cast<int>(launch.kv_len) + 1 + i % 7;
        expected = fmt::format("length-out-of-range: `used_kv` of sequence {} is", b);
        break;
      case 1:
        launch.used_kv[b] = i % 4 == 1 ? kLeast : -1;
        expected = fmt::format("length-out-of-range: `used_kv` of sequence {} is", b);
        break;
      case 2:
        launch.used_q[b] = rows + 1;
        expected = fmt::format("length-out-of-range: `used_q` of sequence {} is", b);
        break;
      case 3:
        launch.used_q[b] = -1;
        expected = fmt::format("length-out-of-range: `used_q` of sequence {} is", b);
        break;
      case 4:
        launch.cu_q[b + 1] = static_cast<int>(launch.q_len) + 1;
        expected = fmt::format(
            "offsets-out-of-range: `cu_q` leads out of the tensors: sequence {} ends", b);
        break;
      case 5:
        launch.cu_q[b + 1] = launch.cu_q[b] - 1;
        expected = fmt::format("offsets-descend: `cu_q` descends: sequence {} begins", b);
        break;
    }
    ASSERT_THAT(launch.fault(), testing::StartsWith(expected)) << i;
  }
}

}  // namespace
}  // namespace attune

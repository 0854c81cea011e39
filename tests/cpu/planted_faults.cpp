#include "tests/cpu/planted_faults.hpp"

#include <fmt/format.h>

namespace attune::planted {
namespace {

constexpr const char* kAccumulate =
    "  accumulate_tile<kVectors>(block, v, keys, scratch.p, rescale);\n";
constexpr const char* kLoadK = "Cache::k_rows(p, item, k0, keys, padded, scratch.k)";
constexpr const char* kLoadV = "Cache::v_rows(p, item, k0, keys, keys, scratch.v)";
constexpr const char* kMask = "(!spec::kHasMask || mask(c, q_idx, kv_idx))";
constexpr const char* kStoreO =
    "from_float(sum == 0.0f ? 0.0f : block.o[i][r] * numerator / sum, to[i])";
constexpr const char* kStoreLse = "sum == 0.0f ? -kInfinity : static_cast<float>(lse)";
constexpr const char* kRowOfO = "query_offset(sequence, p.o_stride, h, q);";

}  // namespace

std::vector<Fault> cpu_faults(const Site& site) {
  const std::string in_tile = fmt::format("(k0 <= {0} && {0} < k0 + keys)", site.key);
  const std::string stale = fmt::format("({} && k0 >= kTileKv ? k0 - kTileKv : k0)", in_tile);
  const std::string in_16 = fmt::format("(h == 1 && q >= {0} && q < {0} + 16)", site.row);
  const auto moved_mask = [&](const char* by) {
    return fmt::format(
        "(!spec::kHasMask || mask(c, q_idx + (c.h == 1 && q_idx >= {0} && q_idx < {0} + 64 ? {1} : "
        "0), kv_idx))",
        site.row, by);
  };
  const std::string in_item =
      fmt::format("(item.h0 <= 1 && 1 < item.h1 && item.q0 <= {0} && {0} < item.q1)", site.row);
  const auto before_accumulate = [&](const std::string& text) {
    return std::vector<Edit>{{kAccumulate, "  " + text + "\n" + kAccumulate}};
  };
  std::vector<Fault> faults = {
      {"V of a tile left out",
       {{kAccumulate, fmt::format("accumulate_tile<kVectors>(block, v, {} ? 0 : keys, scratch.p, "
                                  "rescale);\n",
                                  in_tile)}}},
      {"V of a tile stale",
       {{kLoadV, fmt::format("Cache::v_rows(p, item, {}, keys, keys, "
                             "scratch.v)",
                             stale)}}},
      {"K of a tile stale",
       {{kLoadK, fmt::format("Cache::k_rows(p, item, {}, keys, "
                             "padded, scratch.k)",
                             stale)}}},
      {"all before a tile scaled by 0.98",
       before_accumulate(
           fmt::format("if {} for (int i = 0; i < kVectors; ++i) rescale[i] *= 0.98f;", in_tile))},
      {"one rescale forgotten",
       before_accumulate("if (k0 == bounds_of(p, item).begin / 32 * 32 + kTileKv || k0 / kTileKv % "
                         "8 == 1) for (int i = 0; "
                         "i < kVectors; ++i) rescale[i] = broadcast(1.0f);")},
      {"the last key ignored",
       {{"const KvBounds all = bounds_of(p, item);",
         "KvBounds all = bounds_of(p, item);\n  all.end -= 1;"}}},
      {"another KV head for one tile of queries",
       {{kLoadV, fmt::format("Cache::v_rows(p, [&] {{ Item other = item; "
                             "if ({}) other.h_kv ^= 1; return other; }}(), k0, "
                             "keys, keys, scratch.v)",
                             in_item)}}},
      {"two columns exchanged in 16 rows",
       {{kStoreO, fmt::format("from_float(sum == 0.0f ? 0.0f : block.o[{} ? i ^ 1 : i][r] * "
                              "numerator / sum, to[i])",
                              in_16)}}},
      {"LSE of 16 rows off by 1e-3",
       {{kStoreLse, fmt::format("({}) + ({} ? 1e-3f : 0.0f)", kStoreLse, in_16)}}}};
  if (site.one_query) {
    faults.push_back(
        {"a row stored in another head's place",
         {{kRowOfO,
           fmt::format("query_offset(sequence, p.o_stride, {} ? h ^ 1 : h, q);", in_16)}}});
  } else {
    faults.push_back(
        {"16 rows stored in another item's place",
         {{kRowOfO,
           fmt::format("query_offset(sequence, p.o_stride, h, {} ? q ^ 128 : q);", in_16)}}});
  }
  if (site.has_mask) {
    faults.push_back({"the mask a key too wide for 64 rows", {{kMask, moved_mask("1")}}});
    faults.push_back({"the mask a key too narrow for 64 rows", {{kMask, moved_mask("-1")}}});
  }
  if (site.has_dropout) {
    faults.push_back(
        {"one of 32 dropout bits shifted",
         {{"bytes[i * kLength + j] < below", "bytes[(i == 5 ? 6 : i) * kLength + j] < below"}}});
  }
  return faults;
}

}  // namespace attune::planted

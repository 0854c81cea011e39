#include "tests/gpu/planted_faults.hpp"

#include <fmt/format.h>

namespace attune::planted {
namespace {

// The same names as the CPU family's, so that the tables can be read side by side.
constexpr const char* kLeftOut = "V of a tile left out";
constexpr const char* kStaleV = "V of a tile stale";
constexpr const char* kStaleK = "K of a tile stale";
constexpr const char* kScaled = "all before a tile scaled by 0.98";
constexpr const char* kRescale = "one rescale forgotten";
constexpr const char* kLastKey = "the last key ignored";
constexpr const char* kKvHead = "another KV head for one tile of queries";
constexpr const char* kColumns = "columns exchanged in one warp";
constexpr const char* kLse = "LSE of 16 rows off by 1e-3";
constexpr const char* kElsewhere = "16 rows stored in another item's place";
constexpr const char* kWide = "the mask a key too wide for 64 rows";
constexpr const char* kNarrow = "the mask a key too narrow for 64 rows";
constexpr const char* kPart = "what the first warp or piece found left out";
constexpr const char* kDropoutBit = "dropout bits of one lane shifted";

// Four lanes share a row: a single query is in the first four.
int dropout_lane(const Site& site) { return site.one_query ? 1 : 5; }

// Masks that are ranges of keys are the same in both families. Moves a range's end.
Edit moved_range(const Site& site, const char* by) {
  return {"return {keys.begin - k0, keys.end - k0, 0, 0};",
          fmt::format("return {{keys.begin - k0, keys.end - k0 + (c.h == 1 && q >= {0} && "
                      "q < {0} + 64 ? {1} : 0), 0, 0}};",
                      site.row, by)};
}
void add_range_faults(const Site& site, std::vector<GpuFault>& faults) {
  faults.push_back({{kWide, {moved_range(site, "1")}}});
  faults.push_back({{kNarrow, {moved_range(site, "-1")}}});
}

// The mask's edges where they are not a range, of kernels that use templates/tile/row_mask.cuh.
void add_edge_faults(const Site& site, std::vector<GpuFault>& faults) {
  constexpr const char* kLive = "return (column < row.end) & mask(c, row.q, row.k0 + column);";
  const std::string at_edge =
      fmt::format("(c.h == 1 && row.q >= {0} && row.q < {0} + 64 && row.k0 + column == {1})",
                  site.row, site.edge_key);
  faults.push_back({{kWide,
                     {{kLive, fmt::format("return (column < row.end) & (mask(c, row.q, "
                                          "row.k0 + column) | {});",
                                          at_edge)}}}});
  faults.push_back({{kNarrow,
                     {{kLive, fmt::format("return (column < row.end) & mask(c, row.q, "
                                          "row.k0 + column) & !{};",
                                          at_edge)}}}});
}

std::vector<GpuFault> sm80_faults(const Site& site) {
  const std::string in_tile = fmt::format("(k0 <= {0} && {0} < k0 + plan::kTileKv)", site.key);
  const auto stale = [&](const char* which) {
    const std::string rows = fmt::format("rows(params.{0}, params.{0}_stride)", which);
    return Edit{rows, fmt::format("{} - ({} && k0 > 0 ? plan::kTileKv * params.{}_stride.seq * 2 "
                                  ": 0)",
                                  rows, in_tile, which)};
  };
  const auto accumulate = [&](const char* chunk) {
    const std::string call = fmt::format("accumulate<{}>(s, stage, key, k0 + key);", chunk);
    return Edit{call, fmt::format("if ((k0 + key) / 64 != {}) {}", site.key / 64, call)};
  };
  constexpr const char* kApplied = "if (partial) live.apply(s, c, q0, k0);";
  const auto dead = [&](const std::string& condition) {
    return Edit{kApplied,
                std::string(kApplied) +
                    "\n    for_each_score<kBlocks, kKeys / 8>(c, q0, [](int q) { return q; },\n"
                    "        [&](int m, int n, int e, int q, int column) {\n"
                    "          const int key = k0 + lane_index() % 4 * 2 + column;\n"
                    "          if (" +
                    condition + ") s[m][n][e] = -infinity();\n        });"};
  };
  constexpr const char* kTile =
      "const bool full = tile % 2 != 0;\n      const int k0 = tile / 2 * plan::kTileKv;\n";
  constexpr const char* kStoredLse = "lse[row * spec::kResidues] = rows.log_sum_exp(m, half);";
  constexpr const char* kHead = "const int tile_h = opaque(c.h_kv);";
  constexpr const char* kStoredO =
      "copy_shared_to_global_16(out + row * params.o_stride.seq * Element::kBytes + unit * 16,";
  const std::string in_warp = fmt::format("item.h == 1 && item.q0 + row0 + 16 * m == {}", site.row);
  std::vector<GpuFault> faults = {
      {{kLeftOut, {accumulate("plan::kChunk, true"), accumulate("kOnlineChunk, false")}}},
      {{kStaleV, {stale("v")}}},
      {{kStaleK, {stale("k")}}},
      {{kScaled,
        {{kTile, fmt::format("{}      if {} {{\n"
                             "        for (int m = 0; m < kBlocks; ++m)\n"
                             "          for (int n = 0; n < kDimV / 8; ++n)\n"
                             "            for (int e = 0; e < 4; ++e) warp.o[m][n][e] *= 0.98f;\n"
                             "      }}\n",
                             kTile, in_tile)}}}},
      {{kRescale, {{"o[m][n][2 * half] *= rescale;\n", "\n"}}}, true},
      {{kLastKey, {dead("key == c.kv_len - 1")}}},
      {{kKvHead,
        {{kHead, fmt::format("const int tile_h = opaque(c.h_kv) ^ (c.h == 1 && q0 <= {0} && {0} < "
                             "q1 ? 1 : 0);",
                             site.row)}}}},
      {{kColumns,
        {{"shared, row0 + row, n, lane, o[m]",
          fmt::format("shared, row0 + row, n ^ ({} ? 1 : 0), lane, o[m]", in_warp)}}}},
      {{kLse,
        {{kStoredLse,
          fmt::format("lse[row * spec::kResidues] = rows.log_sum_exp(m, half) + ({} ? 1e-3f : "
                      "0.0f);",
                      in_warp)}}}},
      {{kElsewhere,
        {{kStoredO, fmt::format("copy_shared_to_global_16(out - (item.h == 1 && (item.q0 + row0 + "
                                "row) / 16 == {} ? params.o_stride.head * 2 : 0) + row * "
                                "params.o_stride.seq * Element::kBytes + unit * 16,",
                                site.row / 16)}}}}};
  if (site.mask_is_range) {
    add_range_faults(site, faults);
  } else if (site.has_mask) {
    add_edge_faults(site, faults);
  }
  if (site.has_dropout) {
    faults.push_back({{kDropoutBit,
                       {{"dropout_keep_bits(words[2 * half + j], drop_below)",
                         fmt::format("dropout_keep_bits(words[2 * half + j] >> (lane == {} ? 1 : "
                                     "0), drop_below)",
                                     dropout_lane(site))}}}});
  }
  return faults;
}

std::vector<GpuFault> sm90_faults(const Site& site) {
  const std::string in_tile = fmt::format("row <= {0} && {0} < row + kTileKv", site.key);
  constexpr const char* kVRow = "shared.v_full(position.stage), row,";
  constexpr const char* kKRow = "shared.k_full(position.stage), row,";
  const auto at_row = [&](const char* barrier, const char* row) {
    return fmt::format("shared.{}(position.stage), {} ? {} : row,", barrier, in_tile, row);
  };
  constexpr const char* kFrozen = "const bool masked = spec::kHasMask && !full;\n";
  constexpr const char* kRunning = "  apply_score<false>(c, s, at, full);\n";
  const std::string ignore =
      "  for (int i = 0; i < kPieceKeys / 2; ++i) {\n"
      "    if (at.key() + i / 4 * 8 + (i & 1) == c.kv_len - 1) s[i] = -infinity();\n  }\n";
  constexpr const char* kPacked =
      "pack_2<spec::kDType>(s[8 * step + 2 * i], s[8 * step + 2 * i + 1]);";
  constexpr const char* kNormalised = "normalise(result.c, o, rows, result_row);\n";
  constexpr const char* kVHead =
      "shared.v_full(position.stage), row,\n"
      "            item.h_kv,";
  const auto in_16 = [&](const char* row) {
    return fmt::format("c.h == 1 && ({}) / 16 == {}", row, site.row / 16);
  };
  std::vector<GpuFault> faults = {
      // Beyond the keys the tensor unit brings zeros.
      {{kLeftOut, {{kVRow, at_row("v_full", "(1 << 28)")}}}},
      {{kStaleV, {{kVRow, at_row("v_full", "(row > 0 ? row - kTileKv : row)")}}}},
      {{kStaleK, {{kKRow, at_row("k_full", "(row > 0 ? row - kTileKv : row)")}}}},
      {{kScaled,
        {{kPacked, fmt::format("pack_2<spec::kDType>(s[8 * step + 2 * i] * (at.first_key > {0} ? "
                               "0.98f : 1.0f), s[8 * step + 2 * i + 1] * (at.first_key > {0} ? "
                               "0.98f : 1.0f));",
                               site.key)}}}},
      {{kRescale,
        {{"o[i] = kZeroesFirst && first ? 0.0f : corrected(o[i], correction[i / 2 % 2]);",
          "o[i] = kZeroesFirst && first ? 0.0f : o[i];"}}},
       true},
      {{kLastKey, {{kFrozen, kFrozen + ignore}, {kRunning, ignore + kRunning}}}},
      {{kKvHead,
        {{kVHead, fmt::format("shared.v_full(position.stage), row,\n"
                              "            item.h_kv ^ (item.h_kv == 0 && item.q0 <= "
                              "{0} && {0} < item.q0 + 512 ? 1 : 0),",
                              site.row)}}}},
      {{kColumns,
        {{kNormalised, fmt::format("{}    if (result.c.h == 1 && result_row / 16 == {}) {{\n"
                                   "      const float kept = o[0];\n      o[0] = o[4];\n"
                                   "      o[4] = kept;\n    }}\n",
                                   kNormalised, site.row / 16)}}}},
      {{kLse,
        {{"lse[row * spec::kResidues] = rows.sum[0];",
          fmt::format("lse[row * spec::kResidues] = rows.sum[0] + ({} ? 1e-3f : 0.0f);",
                      in_16("row"))},
         {"lse[(row + 8) * spec::kResidues] = rows.sum[1];",
          fmt::format("lse[(row + 8) * spec::kResidues] = rows.sum[1] + ({} ? 1e-3f : 0.0f);",
                      in_16("row + 8"))}}}},
      {{kElsewhere,
        {{"(first_slab + i) * kSlabColumns, sequence.q_first + first_row, c.h, sequence.slice);",
          fmt::format("(first_slab + i) * kSlabColumns, sequence.q_first + first_row, c.h - ({} ? "
                      "1 : 0), sequence.slice);",
                      in_16("first_row"))},
         {"2 * query_offset(sequence_of(c), stride, c.h, row);",
          fmt::format("2 * query_offset(sequence_of(c), stride, c.h - ({} ? 1 : 0), "
                      "row);",
                      in_16("row"))}}}}};
  if (site.mask_is_range) {
    add_range_faults(site, faults);
  } else if (site.has_mask) {
    constexpr const char* kLow = "s[low] = mask_at(c, low_row, column, key) ? s[low]";
    const std::string at_edge = fmt::format(
        "(c.h == 1 && at.row >= {0} && at.row < {0} + 64 && at.first_key + at.lane + "
        "at_column == {1})",
        site.row, site.edge_key);
    // Where runs are told of, the mask is a range.
    faults.push_back({{kWide,
                       {{kLow, fmt::format("s[low] = (mask_at(c, low_row, column, key) | "
                                           "{}) ? s[low]",
                                           at_edge)},
                        moved_range(site, "1")}}});
    faults.push_back({{kNarrow,
                       {{kLow, fmt::format("s[low] = (mask_at(c, low_row, column, key) & "
                                           "!{}) ? s[low]",
                                           at_edge)},
                        moved_range(site, "-1")}}});
  }
  if (site.has_dropout) {
    faults.push_back({{kDropoutBit,
                       {{"dropout_keep_bits(words[(i & 1) * 2], drop_below)",
                         fmt::format("dropout_keep_bits(words[(i & 1) * 2] >> (thread_index() % "
                                     "32 == {} ? 1 : 0), drop_below)",
                                     dropout_lane(site))}}}});
  }
  return faults;
}

std::vector<GpuFault> decode_faults(const Site& site) {
  const std::string in_unit = fmt::format("k0 / 64 == {}", site.key / 64);
  const auto stale = [&](const char* which) {
    const std::string rows = fmt::format("rows(params.{0}, params.{0}_stride)", which);
    return Edit{rows, fmt::format("{} - ({} && k0 > 0 ? plan::kStepKeys * params.{}_stride.seq * "
                                  "2 : 0)",
                                  rows, in_unit, which)};
  };
  const auto in_16 = [&](const char* h, const char* q) {
    return fmt::format("{} == 1 && {} / 16 == {}", h, q, site.row / 16);
  };
  const std::string in_rows = in_16("lane_rows.context(m, half).h", "lane_rows.query(m, half)");
  constexpr const char* kRaise = "Arithmetic::raise(rows, s, o);\n";
  constexpr const char* kProduct = "Cache::add_values<kBlocks, kDimV>(o, a, v +";
  constexpr const char* kHead = "key_offset(sequence, Cache::copied(stride), item.h_kv, k0)";
  constexpr const char* kStored = "to[Cache::column(n, 0)] = o[m][n][2 * half];";
  constexpr const char* kStoredLse = "= log_sum_exp(reference, sum);";
  constexpr const char* kStoredO = "query_offset(item.sequence, p.o_stride, h, q)";
  constexpr const char* kWeight = "weights.of[row][part] = weight;";
  std::vector<GpuFault> faults = {
      {{kLeftOut, {{kProduct, fmt::format("if (!({})) {}", in_unit, kProduct)}}}},
      {{kStaleV, {stale("v")}}},
      {{kStaleK, {stale("k")}}},
      {{kPart, {{kWeight, "weights.of[row][part] = part == 0 ? 0.0f : weight;"}}}},
      {{kRescale, {{"o[m][n][2 * half] *= rescale;\n", "\n"}}}},
      {{kLastKey,
        {{kRaise,
          fmt::format("for (int m = 0; m < kBlocks; ++m)\n"
                      "      for (int n = 0; n < kTiles; ++n)\n"
                      "        for (int e = 0; e < 4; ++e)\n"
                      "          if (first_key + 8 * n + e % 2 == "
                      "lane_rows.item.sequence.kv_len - 1) s[m][n][e] = -infinity();\n    {}",
                      kRaise)}}}},
      {{kKvHead,
        {{kHead, fmt::format(
                     "key_offset(sequence, Cache::copied(stride), item.h_kv ^ (item.h0 <= 1 && 1 < "
                     "item.h1 && item.q0 <= {0} && {0} < item.q1 ? 1 : 0), k0)",
                     site.row)}}}},
      {{kColumns,
        {{kStored,
          fmt::format("to[Cache::column(n, 0)] = o[m][n ^ ({} ? 1 : 0)][2 * half];", in_rows)}}}},
      {{kLse,
        {{kStoredLse,
          fmt::format("= log_sum_exp(reference, sum) + ({} ? 1e-3f : 0.0f);", in_16("h", "q"))}}}},
      {{kElsewhere,
        {{kStoredO, fmt::format("query_offset(item.sequence, p.o_stride, h - ({} ? 1 : 0), q)",
                                in_16("h", "q"))}}}}};
  if (site.mask_is_range) {
    add_range_faults(site, faults);
  } else if (site.has_mask) {
    add_edge_faults(site, faults);
  }
  return faults;
}

}  // namespace

std::vector<GpuFault> gpu_faults(Family family, const Site& site) {
  switch (family) {
    case Family::kSm90a:
      return sm90_faults(site);
    case Family::kDecode:
      return decode_faults(site);
    default:
      return sm80_faults(site);
  }
}

}  // namespace attune::planted

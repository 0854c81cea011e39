// Faults planted in the GPU families' backward kernels. Places are of K/V heads with two query
// heads each.
#pragma once

#include <vector>

#include "generator/plan/plan.hpp"
#include "tests/verification/editing_compiler.hpp"

namespace attune::planted {

// What the families share.
inline std::vector<Fault> shared_gradient_faults() {
  return {
      {"D of the row beside",
       {{"p.row_deltas[row] = delta;", "p.row_deltas[row ^ 1] = delta;"},
        {"store_global_16(p.row_deltas + 4 * row, split_row(delta).words);",
         "store_global_16(p.row_deltas + 4 * (row ^ 1), split_row(delta).words);"}}},
  };
}

inline std::vector<Fault> sm80_gradient_faults() {
  const std::string d_v =
      "Operand::add_rows<kDimV, kFirstV, kCountV>(d_v, factor, at + kOtherStepOffset);";
  const std::string d_k = "Operand::add_rows<kDimQk, kFirstQk, kCountQk>(d_k, factor, at);";
  const std::string d_q = "Operand::add_rows<kDimQk, 0, kDimQk>(d_q, factor, at);";
  const std::string of_keys = "if (query == 5 * kStep && c.h == 1 && key < kRows) ";
  const std::string not_of_keys = "if (query != 5 * kStep || c.h != 1 || key >= kRows) ";
  return {
      {"dV of a tile left out", {{d_v, not_of_keys + d_v}}},
      {"dK of a tile left out", {{d_k, not_of_keys + d_k}}},
      {"dK of a tile added twice", {{d_k, d_k + of_keys + d_k}}},
      {"dQ of a tile left out", {{d_q, "if (tile / 2 != 1 || h != 1) " + d_q}}},
      {"the last query head of a group left out",
       {{"walk(context(h_kv * group), k0, k1, group, kRows);",
         "walk(context(h_kv * group), k0, k1, group - 1, kRows);"}}},
      {"dV of one item scaled by 1.02",
       {{"k0, dropout_scale(context(0)), shared);",
         "k0, dropout_scale(context(0)) * (k0 == 0 ? 1.02f : 1.0f), shared);"}}},
  };
}

// In either walk, and in the one that keeps a single P also where that is rounded first.
inline std::vector<Fault> sm90_tile_faults() {
  const std::string p = "        p_operand[n / 2][n % 2 * 2 + half] = ";
  const std::string d_s = "ds_operand[n / 2][n % 2 * 2 + half] = ";
  const std::string in_tile = "now.tile == 3 && now.h == 1 && k0 == 0 ? ";
  const std::string packed = "pack_2<spec::kDType>(low, high);";
  const std::string rounded_p = "c.p_operand[n / 2][n % 2 * 2 + half] = ";
  const std::string rounded_d_s = "make_ds_of_rounded(c.p_operand, c.d, c.ds_operand);";
  const std::string d_s_of_parts = "make_ds_of_parts(c.p_operand, rests, c.d, c.ds_operand);";
  const std::string in_rounded_tile = "now.tile == 3 && now.h == 1 && c.k0 == 0";
  const std::string half_of_p = "round_p(half_of<1>(c.s), half_of<1>(c.p_operand));";
  const std::string one_d_s = "make_ds(c.s, c.d, c.ds_operand);";
  const auto each_pair = [&](const std::string& of) {
    return " if (" + in_rounded_tile + ") for (auto& step : " + of +
           ") for (unsigned& pair : step) pair = ";
  };
  const std::string each_d_s = each_pair("c.ds_operand");
  const std::string half_of_d_s =
      "make_ds(half_of<1>(c.s), half_of<1>(c.d), half_of<1>(c.ds_operand));";
  const std::string each_of_half = each_pair("half_of<1>(c.ds_operand)");
  return {
      {"P of a tile left out",
       {{p + packed, p + in_tile + "0u : " + packed},
        {rounded_p + packed, rounded_p + in_rounded_tile + " ? 0u : " + packed},
        {half_of_p, half_of_p + each_pair("half_of<1>(c.p_operand)") + "0u;"}}},
      {"dS of a tile left out",
       {{d_s + packed, d_s + in_tile + "0u : " + packed},
        {rounded_d_s, rounded_d_s + each_d_s + "0u;"},
        {d_s_of_parts, d_s_of_parts + each_d_s + "0u;"},
        {half_of_d_s, half_of_d_s + each_of_half + "0u;"},
        {one_d_s, one_d_s + each_d_s + "0u;"}}},
      {"two neighbours of dS exchanged in a tile",
       {{d_s + packed, d_s + in_tile + "pack_2<spec::kDType>(high, low) : " + packed},
        {rounded_d_s, rounded_d_s + each_d_s + "pair >> 16 | pair << 16;"},
        {d_s_of_parts, d_s_of_parts + each_d_s + "pair >> 16 | pair << 16;"},
        {half_of_d_s, half_of_d_s + each_of_half + "pair >> 16 | pair << 16;"},
        {one_d_s, one_d_s + each_d_s + "pair >> 16 | pair << 16;"}}},
  };
}

inline std::vector<Fault> sm90_gradient_faults(const KernelPlan& plan) {
  const std::string store =
      "stmatrix_x4_trans(swizzled(slab, step * 16 + row, unit), c.ds_operand[step]);";
  const std::string k_of =
      "load_slabs<kQkSlabs>(shared.k(), kKvSlabBytes, k_map, shared.kv_full(), item.k0, ";
  std::vector<Fault> faults = sm90_tile_faults();
  // Ordered kernels make dQ of another dS.
  if (plan.family() == Family::kSm90a) {
    faults.push_back({"dS of a tile stale for dQ", {{store, "if (n != 5) " + store}}});
  }
  faults.push_back({"K of another K/V head for a tile of keys",
                    {{k_of + "item.h_kv,", k_of + "(item.k0 == 0 ? 1 - item.h_kv : item.h_kv),"}}});
  return faults;
}

// Of keys, where each warpgroup makes one gradient.
inline std::vector<Fault> ordered_key_faults() {
  const std::string operand = "operand[n / 2][n % 2 * 2 + half] = ";
  const std::string p = "keep, [&](int n, int half, float low, float high) {\n        " + operand;
  const std::string d_s =
      "          [&](int n, int half, float low, float high) {\n            " + operand;
  const std::string in_tile = "now.tile == 3 && now.h == 1 && k0 == 0 ? ";
  const std::string packed = "pack_2<spec::kDType>(low, high);";
  return {
      {"P of a tile left out", {{p + packed, p + in_tile + "0u : " + packed}}},
      {"dS of a tile left out", {{d_s + packed, d_s + in_tile + "0u : " + packed}}},
      {"two neighbours of dS exchanged in a tile",
       {{d_s + packed, d_s + in_tile + "pack_2<spec::kDType>(high, low) : " + packed}}},
  };
}

inline std::vector<Fault> ordered_query_faults() {
  const std::string d_s = "operand[n / 2][n % 2 * 2] = ";
  const std::string in_tile = "tile / 2 == 3 && h == 1 ? ";
  const std::string packed = "pack_2<spec::kDType>(d[4 * n], d[4 * n + 1]);";
  return {
      {"dS of a tile left out of dQ", {{d_s + packed, d_s + in_tile + "0u : " + packed}}},
      {"two neighbours of dS exchanged in a tile of dQ",
       {{d_s + packed,
         d_s + in_tile + "pack_2<spec::kDType>(d[4 * n + 1], d[4 * n]) : " + packed}}},
  };
}

// Of wide heads in five products.
inline std::vector<Fault> wide_gradient_faults() {
  const std::string in_tile = "now.tile == 3 && now.h == 1 && k0 == 0 ? ";
  const std::string p = "p_rows[block / 2][block % 2 * 2 + half] = ";
  const std::string packed = "pack_2<spec::kDType>(low, high);";
  const std::string d_s = "pack(d, step, ds_rows[step]);";
  const std::string store = "store(shared.d_s(n), step, ds_rows[step]);";
  const std::string part = "if (makes_second) add_dq(d_q, ";
  return {
      {"P of a tile left out", {{p + packed, p + in_tile + "0u : " + packed}}},
      {"two neighbours of P exchanged in a tile",
       {{p + packed, p + in_tile + "pack_2<spec::kDType>(high, low) : " + packed}}},
      {"dS of a tile left out",
       {{d_s, "{ " + d_s +
                  " if (now.tile == 3 && now.h == 1 && k0 == 0) "
                  "for (unsigned& pair : ds_rows[step]) pair = 0u; }"}}},
      {"dS of a tile stale", {{store, "if (n != 5) " + store}}},
      {"a part of dQ added twice", {{part, "if (now.tile == 2) add_dq(d_q, sums); " + part}}},
      {"a part of dQ left out of a tile", {{part, "if (now.tile != 2) " + part}}},
      {"the last query head of a group left out",
       {{"end(h + p.heads / p.kv_heads) {", "end(h + p.heads / p.kv_heads - 1) {"}}},
      {"dQ's sums of a tile not zeroed",
       {{"store_global_16(sums + 16 * i, zeros);",
         "if (first_query != 64) store_global_16(sums + 16 * i, zeros);"}}},
  };
}

inline std::vector<Fault> gradient_faults(const KernelPlan& plan) {
  std::vector<Fault> faults = shared_gradient_faults();
  const auto add = [&](const std::vector<Fault>& own) {
    faults.insert(faults.end(), own.begin(), own.end());
  };
  if (plan.family() == Family::kSm80) {
    add(sm80_gradient_faults());
  } else if (plan.family() == Family::kSm90a) {
    add(sm90_gradient_faults(plan));
  } else if (plan.family() == Family::kSm90aWide) {
    add(wide_gradient_faults());
  } else {
    const bool both = std::get<Sm90aOrderedPlan>(plan.tile).both_gradients;
    add(both ? sm90_gradient_faults(plan) : ordered_key_faults());
    add(ordered_query_faults());
  }
  return faults;
}

// give_own_rows() serves several pairs of matrices: of one of them it leaves `matrix` as it is,
// which stands in the call behind `before`. No matrix lies at 1.
inline Fault foreign_rows_fault(const std::string& name, const std::string& slabs,
                                const std::string& parameter, const std::string& before,
                                const std::string& matrix) {
  const std::string clears = "clear_rows<" + slabs + ", kRows>(" + parameter + ", own_rows);";
  return {name,
          {{clears, "if (" + parameter + " != 1u) " + clears}, {before + matrix, before + "1u,"}}};
}

// Of packed sequences: the first ones of every family.
inline std::vector<Fault> packed_gradient_faults(Family family) {
  std::vector<Fault> faults = {{"what two tiles know of their rows in one place",
                                {{"return first / tile + sequence;", "return sequence;"}}},
                               {"the last tile of a sequence is not listed",
                                {{"min_i32(tile_count(Items::rows(sequence), Items::kRows), room)",
                                  "min_i32(Items::rows(sequence) / Items::kRows, room)"}}}};
  if (family == Family::kSm80) {
    faults.push_back({"a tile goes on behind its sequence",
                      {{"row + at < length &&", "row + at < length + (length == 140) &&"}}});
    return faults;
  }
  faults.insert(
      faults.end(),
      {{"a tile goes on behind its sequence", {{"if (at < count) {", "if (at <= count) {"}}},
       {"a tile's last rows are stored as others",
        {{"if (key + 16 > own.kv_len) {", "if (key > own.kv_len) {"}}},
       foreign_rows_fault("queries of another sequence are not zeroed", "kQkSlabs", "of_qk",
                          "own_rows, ", "shared.q(at.stage),"),
       foreign_rows_fault("dO of another sequence is not zeroed", "kVSlabs", "of_v",
                          "shared.q_full(at.stage), ", "shared.d_o(at.stage),")});
  if (family == Family::kSm90aOrdered) {
    faults.insert(
        faults.end(),
        {foreign_rows_fault("keys of another sequence are not zeroed", "kQkSlabs", "of_qk",
                            "item.own.kv_len - k0, ", "shared.k(at.stage),"),
         foreign_rows_fault("V of another sequence is not zeroed", "kVSlabs", "of_v",
                            "shared.k_full(at.stage), ", "shared.v(at_v.stage),"),
         {"V that gradients are of is not zeroed, of another sequence",
          {{"clear_rows<kVSlabs, kKeys>(shared.v(), own_rows);", ""}}},
         {"a sequence's last tiles are nobody's",
          {{"if (first >= length(own)) return", "if (first + rows > length(own)) return"}}},
         {"dQ's rows are known as those of the first sequence",
          {{"first_padded_row(p, spec::kIsPacked ? own : sequence_of(p, b), b, h);",
            "first_padded_row(p, own, 0, h);"}}},
         {"keys' rows of Q are the first sequence's",
          {{"item.own.q_first + now.tile * kTileQ;", "now.tile * kTileQ;"}}}});
    return faults;
  }
  faults.insert(
      faults.end(),
      {{"keys of another sequence are not zeroed",
        {{"clear_rows<kSlabs, kTileKv>(matrix, item.own.kv_len - item.k0);", ""}}},
       {"a sequence's last key tile is nobody's",
        {{"if (k0 >= own.kv_len) return false;", "if (k0 + kTileKv > own.kv_len) return false;"}}},
       {"a query tile of several key tiles is stored as one of a single one's",
        {{"return bounds.end <= first + kTileKv ? first : -1;", "return first;"}}},
       {"dQ of a single key tile goes to another tile's rows",
        {{"return {h, index - base - h * of_head};",
          "return {h, index - base - h * of_head + 1};"}}},
       {"dQ's sums of two sequences in one place",
        {{"return static_cast<int>(first_row_of_head(p, own, b, 0) / kTileQ);", "return 0;"}}}});
  return faults;
}

}  // namespace attune::planted
